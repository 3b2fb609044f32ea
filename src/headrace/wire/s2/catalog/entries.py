"""The entries of the catalog: basins, access tokens and the default location, as they are stored.

On disk: names and meanings never change, a new field has a default.  docs/formats/s2_catalog.md
says the same.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

import msgspec

from headrace.core.limits import KIB
from headrace.wire.s2.configs import BasinConfig
from headrace.wire.s2.token_scopes import TokenScope

# Of a token as it is stored: its id and the names of its scope take up to six bytes for each of
# theirs, and whoever issues it bounds all else.
TOKEN_ENTRY_BYTES_MAX: Final = 16 * KIB


class Basin(msgspec.Struct, frozen=True, tag="basin", tag_field="kind", omit_defaults=True):
    """A basin: a name that streams live under, and what new ones of them are like."""

    name: str
    created_ms: int
    config: BasinConfig
    location: str
    creation_key: str = ""
    deleted_ms: int = 0  # when its delete was asked for; 0: it was not

    @property
    def key(self) -> str:
        """What its records are tagged with."""
        return f"basin/{self.name}"


class Token(msgspec.Struct, frozen=True, tag="token", tag_field="kind", omit_defaults=True):
    """An access token; what was handed out is known by its digest alone."""

    id: str
    digest: str
    scope: TokenScope
    expires_ms: int = 0  # 0: never
    auto_prefix: bool = False
    expires_at: str = ""  # as whoever issued it said it, to the nanosecond perhaps

    @property
    def key(self) -> str:
        """What its records are tagged with: an id may be any text, a tag may not."""
        return f"token/{sha256(self.id.encode()).hexdigest()}"


class DefaultLocation(
    msgspec.Struct, frozen=True, tag="default_location", tag_field="kind", omit_defaults=True
):
    """Where basins are that name no location."""

    name: str

    @property
    def key(self) -> str:
        """What its records are tagged with."""
        return "default_location"


Entry = Basin | Token | DefaultLocation

DECODER: Final[msgspec.json.Decoder[Entry]] = msgspec.json.Decoder(Entry)
ENCODER: Final = msgspec.json.Encoder()
