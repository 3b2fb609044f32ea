"""What the structs of this package share: their two base classes and the types of their fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import msgspec
from msgspec import Meta, Raw

U32_MAX: Final = (1 << 32) - 1

Unsigned = Annotated[int, Meta(ge=0)]
Unsigned32 = Annotated[int, Meta(ge=0, le=U32_MAX)]

# A tag ("x", "x*"), or a list of three such as ["tag", "Glob", "x*"].
Match = str | list[str]
# One node, or several.
Nodes = str | list[str]

# Any JSON value.  Decoding leaves it as bytes (`Raw`); to encode it may be any value that JSON has.
if TYPE_CHECKING:
    Json = Any
else:
    Json = Raw

NULL: Final = Raw(b"null")

# The keys of `Meta.extra` that `/openapi.json` is made from.
DOCUMENTED: Final = "documented"
LEFT_OUT_KEY: Final = "left_out"

# Marks a field of an answer that the server leaves out where it has its default.
LEFT_OUT: Final = Meta(extra={LEFT_OUT_KEY: True})


def documented(kind: object) -> Meta:
    """Return a mark that has `/openapi.json` show a field as `kind` instead of its own type.

    A string names a type that the body of some request has: api/ cannot import the server's own.
    """
    return Meta(extra={DOCUMENTED: kind})


class Performance(msgspec.Struct):
    """What the server spent, in milliseconds."""

    server_total_ms: float
    wal_append_ms: float | msgspec.UnsetType = msgspec.UNSET
    fsync_ms: float | msgspec.UnsetType = msgspec.UNSET
    throttle_wait_ms: Annotated[
        float | msgspec.UnsetType,
        Meta(description="How long a busy server made it wait on purpose; absent: not at all."),
    ] = msgspec.UNSET
    records_scanned: int | msgspec.UnsetType = msgspec.UNSET
    cold_segments_read: int | msgspec.UnsetType = msgspec.UNSET
    lake_records_read: Annotated[
        int | msgspec.UnsetType,
        Meta(description="Of the records scanned, those that only the lake has; absent: none."),
    ] = msgspec.UNSET


class Body(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a request."""


class Answer(msgspec.Struct, frozen=True):
    """The body of an answer, without the `performance` block that the server adds to each.

    `added_fields` are the fields that are in the JSON and not in the struct.
    """

    added_fields: ClassVar[dict[str, type]] = {"performance": Performance}
