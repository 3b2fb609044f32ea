"""What a read of a stream asks for: where it starts, how much it takes, how long it waits.

Only this file takes the query of a read apart, and says which of its values make sense together.
A read that an event stream resumes (`Last-Event-ID`) is a query like any other: it starts behind
the last event, with limits that are smaller by what was delivered before.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl

import msgspec

from headrace.wire.s2.errors import RangeNotSatisfiable, bad_header, bad_query, invalid
from headrace.wire.s2.records import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, U64_MAX, Position

U32_MAX: Final = (1 << 32) - 1
# How long a read that is answered as a whole waits at most.
UNARY_WAIT_S_MAX: Final = 60
FIELDS_MAX: Final = 64

_STARTS: Final = ("seq_num", "timestamp", "tail_offset")
_NUMBERS: Final = {
    "seq_num": U64_MAX,
    "timestamp": U64_MAX,
    "tail_offset": U64_MAX,
    "count": U64_MAX,
    "bytes": U64_MAX,
    "until": U64_MAX,
    "wait": U32_MAX,
}
_FLAGS: Final = {"true": True, "false": False}


class ReadQuery(msgspec.Struct, frozen=True):
    """A read, as it was asked for; of the three starts at most one is given."""

    seq_num: int | None = None
    timestamp: int | None = None
    tail_offset: int | None = None
    clamp: bool = False
    count: int | None = None
    bytes: int | None = None  # metered
    until: int | None = None  # a timestamp, exclusive
    wait: int | None = None  # seconds
    delivered: tuple[int, int] = (0, 0)  # records and bytes that were delivered before a resume

    @property
    def is_bounded(self) -> bool:
        """Whether it ends by itself once it has enough."""
        return self.count is not None or self.bytes is not None or self.until is not None

    @property
    def may_follow(self) -> bool:
        """Whether it may begin at the tail, where there is nothing yet."""
        return not self.is_bounded or bool(self.wait)

    @property
    def waits(self) -> bool:
        """Whether it goes on at the tail."""
        return bool(self.wait) if self.wait is not None else not self.is_bounded

    @property
    def is_spent(self) -> bool:
        """Whether it may take nothing."""
        return self.count == 0 or self.bytes == 0

    def as_unary(self) -> ReadQuery:
        """The same read, as one that is answered with a single batch."""
        return msgspec.structs.replace(
            self,
            count=_least(self.count, BATCH_RECORDS_MAX),
            bytes=_least(self.bytes, BATCH_BYTES_MAX),
            wait=_least(self.wait, UNARY_WAIT_S_MAX) if self.wait is not None else None,
        )

    def resumed(self, last_event_id: str) -> ReadQuery:
        """The rest of this read for a client that has all events up to this id.

        >>> rest = ReadQuery(timestamp=5, count=10).resumed("6,4,100")
        >>> rest.timestamp, rest.seq_num, rest.count, rest.delivered
        (None, 7, 6, (4, 100))
        """
        parts = last_event_id.split(",")
        if len(parts) != 3 or not all(_is_number(part, U64_MAX) for part in parts):
            raise bad_header("Last-Event-ID is not <seq_num>,<records>,<bytes>")
        seq_num, records, size = map(int, parts)
        return msgspec.structs.replace(
            self,
            seq_num=seq_num + 1,
            timestamp=None,
            tail_offset=None,
            count=None if self.count is None else max(self.count - records, 0),
            bytes=None if self.bytes is None else max(self.bytes - size, 0),
            delivered=(records, size),
        )

    def start(self, tail: Position) -> int | None:
        """The seq_num to begin at; None: it is the one of the first record from `timestamp` on.

        Raise where the read begins behind the tail, or at it and may not wait there.
        """
        start: int | None = None
        if self.seq_num is not None:
            start = self.seq_num
        elif self.timestamp is not None:
            if self.timestamp > tail.timestamp:
                start = tail.seq_num + 1
        else:
            start = max(tail.seq_num - (self.tail_offset or 0), 0)
        if start is not None and start > tail.seq_num and self.clamp:
            start = tail.seq_num
        if start is not None:
            self.check_start(start, tail)
        return start

    def check_start(self, start: int, tail: Position) -> None:
        """Raise unless the read may begin at this seq_num."""
        if start > tail.seq_num or (start == tail.seq_num and not self.may_follow):
            raise RangeNotSatisfiable(*tail)


def parse_query(text: str) -> ReadQuery:
    """The read that a query string asks for; fields that it does not know are left alone.

    >>> parse_query("seq_num=3&wait=10").may_follow
    True
    >>> parse_query("count=-1")
    Traceback (most recent call last):
    headrace.wire.s2.errors.S2_bad_query: count must be a whole number from 0 to \
18446744073709551615
    """
    fields: dict[str, int | bool] = {}
    for name, value in query_pairs(text):
        if name in fields:
            raise bad_query(f"{name} is given twice")
        if name in _NUMBERS:
            fields[name] = _number(name, value)
        elif name == "clamp":
            if value not in _FLAGS:
                raise bad_query("clamp must be true or false")
            fields[name] = _FLAGS[value]
    query = ReadQuery(**fields)  # type: ignore[arg-type]
    if sum(name in fields for name in _STARTS) > 1:
        raise invalid("only one of seq_num, timestamp and tail_offset can be given")
    if query.timestamp is not None and query.until is not None and query.timestamp >= query.until:
        raise invalid("timestamp must be less than until")
    return query


def query_pairs(text: str) -> list[tuple[str, str]]:
    """The fields of a query string, as they come."""
    if not text:
        return []
    try:
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX)
    except ValueError as error:
        raise bad_query(f"the query does not parse: {error}") from None


def _number(name: str, text: str) -> int:
    most = _NUMBERS[name]
    if not _is_number(text, most):
        raise bad_query(f"{name} must be a whole number from 0 to {most}")
    return int(text)


def _is_number(text: str, most: int) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 40 and int(text) <= most


def _least(asked: int | None, most: int) -> int:
    return most if asked is None else min(asked, most)
