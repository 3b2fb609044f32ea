"""Planning: from spans of topics to parts of about the same size, one for each task.

Only this file decides whether files are read directly, and how the work is cut.  It asks the
server for manifests and reads no records.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from headrace.api.segments import ManifestFile
from headrace.client import Client
from headrace.core.clock import SystemClock
from headrace.core.errors import Forbidden, NotReady, TopicNotFound
from headrace.spark.connection import give_back
from headrace.spark.options import SourceOptions
from headrace.spark.read_failures import lost, unreadable
from headrace.spark.reading.locations import open_file
from headrace.spark.reading.manifests import DATA_BYTES_GUESS, ROW_BYTES, slices_of
from headrace.spark.reading.parts import FileSlice, Gap, HttpSlice, ReadPart, Slice
from headrace.spark.reading.pushdown import Filters
from headrace.spark.reading.spans import Span

log = logging.getLogger("headrace.spark")

# A task reads about this much, so that a failed one has little to do again.
PART_BYTES_MAX = 64 << 20
# Less is not worth a task, unless minPartitions says so.
PART_BYTES_MIN = 4 << 20
# What opening a file, or asking the server once, costs, as if so much more were read.
SLICE_BYTES = 64 << 10
# A span of more rows than this is worth asking how large its records are.
HTTP_ROWS_UNASKED_MAX = 65_536


Parts = list[tuple[Slice, ...]]


class Plan(NamedTuple):
    """What to read; `pins` (topic, pin) may be released when all of it has been."""

    parts: list[ReadPart]
    pins: list[tuple[str, str]]


def plan(
    client: Client,
    options: SourceOptions,
    spans: Sequence[Span],
    *,
    filters: Filters | None = None,
    http_rows_max: int = 0,
    floating: bool = False,
    cut: Callable[[Sequence[Slice]], Parts] | None = None,
) -> Plan:
    """The parts that together are these spans.

    Spans of at most `http_rows_max` seqs are read over HTTP without asking for a manifest.  With
    `floating`, what starts at the earliest record (of a time) starts with what is left now: a topic
    with a cap loses records all the time, also since somebody looked where it begins.  `cut` makes
    the parts in another way than by the size of what they read.
    """
    planned_ms = SystemClock().wall_ms()
    planner = _Planner(client, options, filters, http_rows_max, floating)
    try:
        found = [one for span in spans for one in planner.slices(span)]
        if options.fail_on_data_loss:
            for one in found:
                if isinstance(one, Gap):
                    raise lost(one.span.topic, one.span.first, one.span.last, one.reason)
    except BaseException:
        give_back(client, planner.pins)
        raise
    used = {(one.pin.topic, one.pin.pin) for one in found if isinstance(one, FileSlice)}
    give_back(client, (pin for pin in planner.pins if pin not in used))
    parts = cut(found) if cut else parts_of(found, options.min_partitions, os.cpu_count() or 1)
    return Plan([ReadPart(part, filters, planned_ms) for part in parts], sorted(used))


class _Planner:
    """One plan under way."""

    def __init__(
        self,
        client: Client,
        options: SourceOptions,
        filters: Filters | None,
        http_rows_max: int,
        floating: bool,
    ) -> None:
        self._client = client
        self._options = options
        self._filters = filters
        self._http_rows_max = http_rows_max
        self._floating = floating
        self._over_http = options.direct == "false"
        self._reachable: dict[str, bool] = {}  # by tier
        self.pins: list[tuple[str, str]] = []

    def slices(self, span: Span) -> list[Slice]:
        filters = self._filters
        if filters is not None:
            first, last = max(span.first, filters.seq_first), min(span.last, filters.seq_last)
            span = span._replace(first=first, last=last)
        if span.length == 0:
            return []
        try:
            if span.length <= self._http_rows_max:
                return [_unasked(span)]
            return self._http(span) if self._over_http else self._direct(span)
        except TopicNotFound:
            return [Gap(span, "deleted")]

    def _direct(self, span: Span) -> list[Slice]:
        try:
            manifest = self._client.segments(span.topic)
        except Forbidden as error:
            if self._options.direct == "true":
                raise Forbidden(
                    error.message,
                    fix="use a key without prefixes, or direct=auto to read over HTTP",
                    detail=error.detail,
                ) from None
            self._over_http = True
            return self._http(span)
        self.pins.append((manifest.topic, manifest.pin))
        if manifest.epoch != span.epoch:
            return [Gap(span, "recreated")]
        span = self._left(span, manifest.earliest_seq)
        ahead = span._replace(first=max(span.first, manifest.head_seq + 1))
        behind = span._replace(last=min(span.last, manifest.head_seq))
        # No topic loses its head but by being replaced, or by an older backup.
        found: list[Slice] = [Gap(ahead, "recreated")] if ahead.length else []
        if behind.length:
            can_open = partial(self._can_open, span.topic)
            found = slices_of(manifest, behind, can_open, self._filters) + found
        return found

    def _left(self, span: Span, earliest: int) -> Span:
        """What is left of a span that does not start at a seq that somebody named."""
        if not (self._floating and self._options.starting.floats(span.topic)):
            return span
        return span._replace(first=max(span.first, earliest))

    def _can_open(self, topic: str, file: ManifestFile) -> bool:
        """Whether files of this tier can be read from here; one of them is tried."""
        tier = file.tier
        if tier not in self._reachable:
            self._reachable[tier] = self._try(topic, file)
        return self._reachable[tier]

    def _try(self, topic: str, file: ManifestFile) -> bool:
        try:
            open_file(file).close()
        except (OSError, NotReady) as error:
            if self._options.direct == "true":
                raise unreadable(topic, file.location, str(error)) from None
            log.warning(
                "files of the %s tier cannot be opened here, so they are read over HTTP: %s (%s); "
                "set direct=false if this is as it should be",
                file.tier,
                file.location,
                error,
            )
            return False
        return True

    def _http(self, span: Span) -> list[Slice]:
        """Everything from the server; what is lost at the front is found out once, here."""
        if span.length <= HTTP_ROWS_UNASKED_MAX:
            return [_unasked(span)]
        state = self._client.topic(span.topic, touch=False)
        page = self._client.diff_arrow(span.topic, span.first - 1, limit=1, epoch=span.epoch)
        if page.epoch != span.epoch:
            return [Gap(span, "recreated")]
        span = self._left(span, page.earliest_seq)
        found: list[Slice] = []
        gap = page.tombstone
        if gap is not None and gap.gap_from <= span.first <= gap.gap_to:
            last = min(gap.gap_to, span.last)
            found.append(Gap(span._replace(last=last), gap.reason))
            span = span._replace(first=last + 1)
        if span.length:
            per_row = state.bytes // max(1, state.count) + ROW_BYTES
            found.append(HttpSlice(span, span.length * per_row))
        return found


def _unasked(span: Span) -> HttpSlice:
    return HttpSlice(span, span.length * (DATA_BYTES_GUESS + ROW_BYTES))


def tasks_for(size: int, min_partitions: int | None, processors: int) -> int:
    """Return how many tasks a number of bytes is worth.

    >>> tasks_for(1_000, None, 8), tasks_for(1_000, 3, 8), tasks_for(20 << 20, None, 8)
    (1, 3, 5)
    """
    count = min_partitions or min(processors, size // PART_BYTES_MIN)
    return max(1, count, -(-size // PART_BYTES_MAX))


def parts_of(slices: Sequence[Slice], min_partitions: int | None, processors: int) -> Parts:
    """Slices in their order, cut where a part is full, so that all parts are about as large."""
    total = sum(map(_weight, slices))
    count = tasks_for(total, min_partitions, processors)
    sliver = total // count // 16  # less is not worth opening a file once more
    parts: list[list[Slice]] = [[]]
    before = 0  # what the slices before this one weigh
    for one in slices:
        weight, (_, _, first, last) = _weight(one), one.span
        while len(parts) < count:
            room = total * len(parts) // count - before  # of this slice, in the open part
            if weight - room <= sliver:
                break
            seq = one.span.first + room * one.span.length // weight if room > sliver else first
            if seq > first:
                assert not isinstance(one, Gap)
                parts[-1].append(one.cut(first, seq - 1))
                first = seq
            parts.append([])
        parts[-1].append(one if isinstance(one, Gap) else one.cut(first, last))
        before += weight
    return [tuple(part) for part in parts if part]


def _weight(one: Slice) -> int:
    return 0 if isinstance(one, Gap) else one.bytes + SLICE_BYTES
