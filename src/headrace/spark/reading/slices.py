"""Reading one part, in an executor: files where they lie, the rest from the server.

The rule it owns: every seq of a part is delivered, deleted by somebody, or told as a loss.  A file
that is not where the plan says is looked for once more, by a new manifest.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from headrace.api.records import Tombstone
from headrace.api.segments import Manifest
from headrace.client import Client
from headrace.client.arrow_pages import ArrowPage
from headrace.core.clock import NS_PER_MS, SystemClock
from headrace.core.errors import HeadraceError, NotFound, NotReady, TopicNotFound
from headrace.spark.connection import connect, give_back
from headrace.spark.options import SourceOptions
from headrace.spark.read_failures import lost, unreadable
from headrace.spark.reading.locations import OpenFiles
from headrace.spark.reading.manifests import slices_of
from headrace.spark.reading.parts import FileSlice, HttpSlice, Pin, ReadPart, Slice
from headrace.spark.reading.slice_rows import live_rows
from headrace.spark.reading.spans import Span, clipped

if TYPE_CHECKING:
    from headrace.spark.reading.columns import Shape

log = logging.getLogger("headrace.spark")

# What is asked of the server at once; a batch of Spark has about as much.
PAGE_BYTES_MAX = 8 << 20
PAGE_ROWS_MAX = 65_536
# Smaller batches are put together: each one costs Spark about a millisecond.
BATCH_BYTES_MIN = 1 << 20


def read_part(
    options: SourceOptions, shape: Shape, part: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The rows of a part, as `shape` has them."""
    if not isinstance(part, ReadPart):
        return  # Spark's own, where a plan has no parts
    with connect(options.connection) as client:
        yield from gathered(_Task(client, options, shape, part).batches())


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, small batches put together and empty ones left out."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        large = batch.nbytes >= BATCH_BYTES_MIN
        if not large:
            waiting.append(batch)
            size += batch.nbytes
        if waiting and (large or size >= BATCH_BYTES_MIN):
            yield pa.concat_batches(waiting)  # type: ignore[attr-defined]
            waiting, size = [], 0
        if large:
            yield batch
    if waiting:
        yield pa.concat_batches(waiting)  # type: ignore[attr-defined]


class _Task:
    """One part being read."""

    def __init__(
        self, client: Client, options: SourceOptions, shape: Shape, part: ReadPart
    ) -> None:
        self._client = client
        self._options = options
        self._shape = shape
        self._part = part
        self._filters = part.filters
        self._needs = shape.needs
        if self._filters is not None and self._filters.on_tags:
            self._needs |= {"tag"}
        self._pins = _Pins(client, part.pins, SystemClock().wall_ms() - part.planned_ms)
        self._files = OpenFiles()
        self._manifests: dict[str, Manifest] = {}  # of topics whose files were not in their places

    def batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for one in self._part.slices:
                yield from self._read(one, again=True)
        finally:
            self._files.close()
            self._pins.release()

    def _read(self, one: Slice, again: bool) -> Iterator[pa.RecordBatch]:
        self._pins.keep()
        if isinstance(one, FileSlice):
            yield from self._file(one, again)
        elif isinstance(one, HttpSlice):
            yield from self._http(one.span)
        else:
            yield self._lost(one.span, one.reason)

    # Files

    def _file(self, part: FileSlice, again: bool) -> Iterator[pa.RecordBatch]:
        try:
            segment = self._files.get(part.file)
        except (OSError, NotReady) as error:
            if not again:
                raise unreadable(part.span.topic, part.file.location, str(error)) from None
            yield from self._planned_again(part.span)
            return
        for batch in live_rows(segment, part, self._needs, self._filters):
            self._pins.keep()
            yield from self._shape.rows(part.span.topic, batch, part.content_type)

    def _planned_again(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Files were merged or moved since the plan was made: where are these records now?"""
        try:
            manifest = self._manifests.get(span.topic) or self._new_manifest(span.topic)
        except TopicNotFound:
            yield self._lost(span, "deleted")
            return
        if manifest.epoch != span.epoch:
            yield self._lost(span, "recreated")
            return
        for one in slices_of(manifest, span, lambda _file: True, self._filters):
            yield from self._read(one, again=False)

    def _new_manifest(self, topic: str) -> Manifest:
        manifest = self._client.segments(topic)
        self._pins.add(Pin(topic, manifest.pin, manifest.pin_ms))
        self._manifests[topic] = manifest
        return manifest

    # The server

    def _http(self, span: Span) -> Iterator[pa.RecordBatch]:
        cursor = span.first - 1
        while cursor < span.last:
            left = span._replace(first=cursor + 1)
            try:
                page = self._page(left)
            except TopicNotFound:
                yield self._lost(left, "deleted")
                return
            if page.epoch != span.epoch or page.next_from_seq <= cursor:
                yield self._lost(left, "recreated")
                return
            yield from self._losses(left, page.tombstone)
            yield from self._rows(left, page)
            cursor = page.next_from_seq
            self._pins.keep()

    def _page(self, span: Span) -> ArrowPage:
        return self._client.diff_arrow(
            span.topic,
            span.first - 1,
            limit=min(PAGE_ROWS_MAX, span.length),
            max_batch_bytes=PAGE_BYTES_MAX,
            include_tags="tag" in self._needs,
            include_meta="meta" in self._needs,
            include_headers="headers" in self._needs,
            epoch=span.epoch,
        )

    def _rows(self, span: Span, page: ArrowPage) -> Iterator[pa.RecordBatch]:
        for batch in page.table.combine_chunks().to_batches():
            if not batch.num_rows:
                continue
            if batch.column("seq")[-1].as_py() > span.last:
                batch = batch.filter(pc.less_equal(batch.column("seq"), pa.scalar(span.last)))
            if self._filters is not None and self._filters.on_tags:
                batch = batch.filter(self._filters.tag_mask(batch.column("tag")))
            yield from self._shape.rows(span.topic, batch, page.content_type)

    # Losses

    def _losses(self, span: Span, gap: Tombstone | None) -> Iterator[pa.RecordBatch]:
        if gap is not None:
            for first, last in clipped([(gap.gap_from, gap.gap_to)], span.first, span.last):
                yield self._lost(span._replace(first=first, last=last), gap.reason)

    def _lost(self, span: Span, reason: str) -> pa.RecordBatch:
        if self._options.fail_on_data_loss:
            raise lost(span.topic, span.first, span.last, reason)
        return self._shape.gap(span.topic, span.first, span.last, reason)


class _Pins:
    """Pins that are renewed while a task reads: when a third of their time has passed.

    One that has lapsed is no error: the files may be there all the same.
    """

    def __init__(self, client: Client, pins: Iterable[Pin], age_ms: int) -> None:
        self._client = client
        self._pins = list(pins)
        self._own: list[Pin] = []  # no other task needs them
        # Not at once: a task that reads many topics has as many pins, and most tasks are short.
        # The age is by the clocks of two machines.
        self._due_ns = self._next_ns(max(0, age_ms))

    def add(self, pin: Pin) -> None:
        """One that only this task has."""
        self._pins.append(pin)
        self._own.append(pin)

    def release(self) -> None:
        """Give back what was added."""
        give_back(self._client, ((pin.topic, pin.pin) for pin in self._own))

    def keep(self) -> None:
        """Renew them if it is time."""
        if not self._pins or SystemClock.monotonic_ns() < self._due_ns:
            return
        self._due_ns = self._next_ns(0)
        try:
            self._pins = [pin for pin in self._pins if self._renewed(pin)]
        except HeadraceError as error:
            # The others not either: a task that can read its files does not wait for a server.
            log.info("pins were not renewed: %s", error)

    def _next_ns(self, age_ms: int) -> int:
        least_ms = min((pin.ms for pin in self._pins), default=0)
        return SystemClock.monotonic_ns() + (least_ms // 3 - age_ms) * NS_PER_MS

    def _renewed(self, pin: Pin) -> bool:
        try:
            self._client.renew_pin(pin.topic, pin.pin)
        except NotFound:
            return False
        return True
