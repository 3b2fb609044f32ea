"""What callers ask of streams: to create one, to write to one, to read from a position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from headrace.engine.topics.config import TopicConfig


class Position(NamedTuple):
    """A place between two records: behind this seq of the stream with this epoch."""

    incarnation: int
    seq: int


START = Position(0, 0)  # of any stream


class StreamSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A stream that is asked for.  `kind`, `content_type`: None is what the source has."""

    dialect: str
    content_type: str | None
    kind: int | None
    ttl_s: int | None = None
    expires_ms: int | None = None
    expires_at: str = ""
    closed: bool = False
    source: str | None = None  # the topic to fork
    fork_at: Position | None = None  # None: its tail
    sub_offset: int = 0  # how much of the next append of the source is taken, too
    config: TopicConfig
    own: bytes = b""
    sealed: bool = False  # its records are ciphertext


class StreamWrite(msgspec.Struct, frozen=True, gc=False):
    """What a dialect wants of an append beside what native appends can ask for."""

    media_type: str | None = None  # lower case, without parameters; None: not compared
    sequence: str | None = None  # has to be greater than the last one
    closes: bool = False  # nothing comes behind it
    fencing_token: str | None = None  # has to be the stream's; None: not compared
    fence: str | None = None  # the stream's token after it; None: as before
    trim: int | None = None  # records up to this seq may go once it is stored
    trim_row: int | None = None  # its record that says so, which may go, too; None: the last one
    more_trims: Sequence[tuple[int, int]] = ()  # row and seq of others, where it has several
