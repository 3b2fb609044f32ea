"""What Spark says of a query's batches, as the report that the server keeps.

Pure: `StreamingQueryProgress` in, a `PipelineReport` out.  The lag is what the sources' heads were
ahead of the batch, in records, summed up over topics.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from headrace.api.pipelines import PipelineReport

# Names of what is observed of the bad records of a source begin so; the alias follows.
BAD_PREFIX: Final = "headrace_bad_"
_BAD_RECORD: Final = re.compile(r"record (\d+) of topic '([^']+)'")
RATE_DIGITS: Final = 1


class _Place(msgspec.Struct):
    seq: int
    epoch: int = 0


class _Offset(msgspec.Struct):
    topics: dict[str, _Place] = {}


def report_of(progress: Any, topics: Mapping[str, str]) -> PipelineReport:
    """The report of one batch; `topics` are the sources' by their aliases."""
    rate = progress.processedRowsPerSecond
    state = list(progress.stateOperators)
    bad, bad_topic, bad_seq = _bad_records(progress.observedMetrics, topics)
    return PipelineReport(
        state="running",
        batch=progress.batchId,
        rows=progress.numInputRows,
        # Spark's word for a batch without rows is NaN.
        rows_per_s=round(rate, RATE_DIGITS) if rate == rate and rate < 1e300 else 0.0,
        lag=sum(lag_of(one.endOffset, one.latestOffset) for one in progress.sources),
        read=read_of(one.endOffset for one in progress.sources),
        state_rows=sum(one.numRowsTotal for one in state) if state else None,
        state_bytes=sum(one.memoryUsedBytes for one in state) if state else None,
        watermark=(progress.eventTime or {}).get("watermark"),
        bad_records=bad,
        bad_topic=bad_topic,
        bad_seq=bad_seq,
    )


def lag_of(end: str | None, latest: str | None) -> int:
    """Records between two offsets of the source, as it writes them.

    >>> lag_of('{"topics":{"a":{"epoch":1,"seq":5}}}', '{"topics":{"a":{"epoch":1,"seq":7}}}')
    2
    >>> lag_of(None, "null")
    0
    """
    read, there = _topics(end), _topics(latest)
    return sum(
        max(place.seq - (read[name].seq if same_epoch(read.get(name), place) else 0), 0)
        for name, place in there.items()
    )


def read_of(ends: Iterable[str | None]) -> dict[str, int]:
    """The last seq of each topic that was read; the least of them where several read a topic.

    >>> read_of(['{"topics":{"a":{"epoch":1,"seq":5}}}', '{"topics":{"a":{"epoch":1,"seq":3}}}'])
    {'a': 3}
    """
    found: dict[str, int] = {}
    for end in ends:
        for name, place in _topics(end).items():
            found[name] = min(place.seq, found.get(name, place.seq))
    return found


def same_epoch(one: _Place | None, other: _Place) -> bool:
    return one is not None and one.epoch == other.epoch


def _topics(text: str | None) -> dict[str, _Place]:
    if not text:
        return {}
    try:
        return (msgspec.json.decode(text, type=_Offset | None) or _Offset()).topics
    except msgspec.MsgspecError:
        return {}


def _bad_records(
    observed: Mapping[str, Any] | None, topics: Mapping[str, str]
) -> tuple[int | None, str | None, int | None]:
    """How many records did not fit, and the first of them."""
    count = 0
    place: tuple[str | None, int | None] = (None, None)
    for name, row in (observed or {}).items():
        if not name.startswith(BAD_PREFIX):
            continue
        found = row.asDict()
        if found["bad"] and place == (None, None):
            place = topics.get(name[len(BAD_PREFIX) :]), found["seq"]
        count += found["bad"] or 0
    return (count, *place) if count else (None, None, None)


def bad_record_in(message: str) -> tuple[str | None, int | None]:
    """The record that an error is about, if it names one.

    >>> bad_record_in("record 7 of topic 'orders' cannot be read as this query asks: ...")
    ('orders', 7)
    """
    found = _BAD_RECORD.search(message)
    return (None, None) if found is None else (found[2], int(found[1]))


def newest(reports: Iterable[PipelineReport]) -> PipelineReport | None:
    """Several batches as one report: the last one, with the rows and bad records of all."""
    found = list(reports)
    if not found:
        return None
    bad = [report for report in found if report.bad_records]
    return msgspec.structs.replace(
        found[-1],
        rows=sum(report.rows or 0 for report in found),
        bad_records=sum(report.bad_records or 0 for report in bad) or None,
        bad_topic=bad[0].bad_topic if bad else None,
        bad_seq=bad[0].bad_seq if bad else None,
    )
