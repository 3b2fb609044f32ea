"""What a server knows of the files that it needs."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from headrace.api.base import LEFT_OUT, Answer, documented


class ScrubbedFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file, and when the scrub last found it whole.

    `why` is there when it is damaged; `tier`, of a segment.
    """

    file: str  # relative to the data directory, or to the cold tier
    verified_ms: int | None  # None: not yet
    damaged: bool
    tier: Annotated[str, documented(Literal["hot", "cold"]), LEFT_OUT] = ""
    why: Annotated[str, LEFT_OUT] = ""


class ScrubPage(Answer, frozen=True):
    """How files are verified, and a page of them."""

    schema_name: ClassVar[str] = "ScrubAnswer"

    enabled: bool
    bytes_per_second: int
    interval_ms: int
    total: int  # files
    damaged: int  # of these
    files: list[ScrubbedFile]
    next_cursor: Annotated[str | None, LEFT_OUT] = None  # None on the last page
