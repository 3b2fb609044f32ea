"""Offsets of Durable Streams as text: how a position is written, and what is taken for one.

Only this file knows the grammar.  Both numbers have sixteen digits, so that offsets sort as text as
their positions do.  Whether a position is in a stream is the engine's to say.
"""

from __future__ import annotations

import enum
import re
from typing import Final

from headrace.core.errors import InvalidRequest
from headrace.engine.streams.spec import Position

_DIGITS: Final = 16
NUMBER_MAX: Final = 10**_DIGITS - 1
# `[0-9]`, not `\d`: other scripts have digits, too.
_own = re.compile(r"([0-9]{16})_([0-9]{16})").fullmatch


class Mark(enum.Enum):
    """A place that is named without a number."""

    START = "-1"
    NOW = "now"


START: Final = Mark.START
NOW: Final = Mark.NOW

# Accepted everywhere as the start, and never written by a stream that has a number of its own.
ZERO: Final = Position(0, 0)

Offset = Position | Mark


def offset_text(position: Position) -> bytes:
    """Return a position as its offset.

    >>> offset_text(Position(7, 42))
    b'0000000000000007_0000000000000042'
    """
    assert 0 <= position[0] <= NUMBER_MAX and 0 <= position[1] <= NUMBER_MAX, position
    return b"%016d_%016d" % position


def parse_offset(text: str) -> Offset:
    """Return the place that a client names, or refuse the text.

    >>> parse_offset("0000000000000007_0000000000000042")
    Position(incarnation=7, seq=42)
    >>> parse_offset("-1") is START, parse_offset("now") is NOW
    (True, True)
    """
    found = _own(text)
    if found is not None:
        return Position(int(found[1]), int(found[2]))
    if text == "-1":
        return START
    if text == "now":
        return NOW
    raise InvalidRequest(
        f"{text[:40]!r} is no offset",
        fix="send -1, now, or a Stream-Next-Offset of this stream as it was received",
    )
