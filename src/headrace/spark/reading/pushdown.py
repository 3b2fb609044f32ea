"""Filters that Spark hands over: what they say about seq, ts and tag, so that less is read.

Every filter is also left to Spark, which applies it again: what is missing here costs time and is
never wrong.  Only filters that all have to hold arrive here, one by one.

Spark 4.2 and 4.3 keep the plan of the last filters with the data frame: one that is used again, by
another query or twice in the same one, is read by those filters, whatever they are now.  So a data
frame with pushFilters is for one query and one place in it, and nothing here is done unasked.
`startingSeqs`, `endingSeqs` and the timestamps narrow what is read without that danger.

A gap row has neither seq nor ts nor tag, so Spark's own filter on one of these drops it: a query
that wants to see gaps asks for `gap IS NOT NULL OR …`, which Spark does not hand over.  Losses
outside a range of seqs that was handed over are not looked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import msgspec
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

SEQ_MAX = (1 << 63) - 1
TS_MIN, TS_MAX = -(1 << 62), 1 << 62
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Filters(msgspec.Struct, frozen=True):
    """Bounds on seq and on ts (milliseconds), inclusive; tags, of which one has to match.

    `tags` None: any, and none.  Empty with no prefixes: nothing matches.
    """

    seq_first: int = 0
    seq_last: int = SEQ_MAX
    ts_first: int = TS_MIN
    ts_last: int = TS_MAX
    tags: tuple[str, ...] | None = None
    tag_prefixes: tuple[str, ...] = ()  # each has to match
    tag_present: bool = False

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> Self:
        """What these filters say together."""
        found = cls()
        for one in filters:
            found = found._with(one)
        return found

    def _with(self, one: Filter) -> Self:
        attribute = getattr(one, "attribute", ())
        if attribute == ("seq",):
            return self._bounded("seq", _seq_bounds(one))
        if attribute == ("ts",):
            return self._bounded("ts", _ts_bounds(one))
        return self._tagged(one) if attribute == ("tag",) else self

    def _bounded(self, column: str, bounds: tuple[int, int] | None) -> Self:
        if bounds is None:
            return self
        low, high = f"{column}_first", f"{column}_last"
        narrower = {
            low: max(getattr(self, low), bounds[0]),
            high: min(getattr(self, high), bounds[1]),
        }
        return msgspec.structs.replace(self, **narrower)

    def _tagged(self, one: Filter) -> Self:
        if isinstance(one, IsNotNull):
            return msgspec.structs.replace(self, tag_present=True)
        if isinstance(one, StringStartsWith):
            prefixes = (*self.tag_prefixes, one.value)
            return msgspec.structs.replace(self, tag_prefixes=prefixes)
        if not isinstance(one, EqualTo | In):
            return self
        values = one.value if isinstance(one, In) else (one.value,)
        tags = tuple(value for value in values if isinstance(value, str))
        if self.tags is not None:
            tags = tuple(tag for tag in tags if tag in self.tags)
        return msgspec.structs.replace(self, tags=tags)

    @property
    def on_tags(self) -> bool:
        return self.tag_present or self.tags is not None or bool(self.tag_prefixes)

    @property
    def on_ts(self) -> bool:
        return self.ts_first > TS_MIN or self.ts_last < TS_MAX

    def tag_mask(self, tags: Any) -> Any:
        """Which rows of a column of tags may match, as booleans without nulls."""
        # Not above: the planner needs no Arrow.
        import pyarrow as pa
        import pyarrow.compute as pc

        mask = pc.is_valid(tags)
        if self.tags is not None:
            mask = pc.and_(mask, pc.is_in(tags, value_set=pa.array(self.tags, pa.utf8())))
        for prefix in self.tag_prefixes:
            starts = pc.fill_null(pc.starts_with(tags, pattern=prefix), False)
            mask = pc.and_(mask, starts)
        return mask


def _seq_bounds(one: Filter) -> tuple[int, int] | None:
    values = _values(one, int)
    return None if values is None else _bounds(one, values, values)


def _ts_bounds(one: Filter) -> tuple[int, int] | None:
    """In milliseconds; a time between two of them lies between two records."""
    times = _values(one, datetime)
    if times is None:
        return None
    micros = [_micros(time) for time in times]
    return _bounds(
        one, [micro // 1_000 for micro in micros], [-(-micro // 1_000) for micro in micros]
    )


def _micros(time: datetime) -> int:
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return (aware - _EPOCH) // _MICROSECOND


def _values(one: Filter, kind: type) -> tuple[Any, ...] | None:
    """The values a filter compares with, None where it is no comparison with such values."""
    comparisons = EqualTo | In | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
    if not isinstance(one, comparisons):
        return None
    values = tuple(one.value) if isinstance(one, In) else (one.value,)
    known = all(isinstance(value, kind) and not isinstance(value, bool) for value in values)
    return values if known and values else None


def _bounds(one: Filter, floors: Any, ceilings: Any) -> tuple[int, int] | None:
    """The first and the last number that the filter lets through."""
    match one:
        case EqualTo() | In():
            return min(ceilings), max(floors)
        case GreaterThan():
            return floors[0] + 1, TS_MAX
        case GreaterThanOrEqual():
            return ceilings[0], TS_MAX
        case LessThan():
            return TS_MIN, ceilings[0] - 1
        case LessThanOrEqual():
            return TS_MIN, floors[0]
    return None
