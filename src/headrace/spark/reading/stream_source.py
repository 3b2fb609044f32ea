"""The streaming reader: which seqs each micro-batch reads, and when there is one.

What a batch holds is decided by its two offsets (offsets.py).  Everything this reader keeps in
memory may be lost at any time: the connection, the pins of the last batch, the clock of a batch
that is held back, the target of an AvailableNow run.  `commit` arrives late or never, so it does
nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from headrace.client import Client
from headrace.core.clock import NS_PER_MS, Clock, SystemClock
from headrace.core.errors import InvalidRequest
from headrace.spark.connection import connect, give_back
from headrace.spark.options import SourceOptions
from headrace.spark.read_failures import DataLost
from headrace.spark.reading.offsets import (
    DELETED,
    Ahead,
    Offset,
    RunEnd,
    TopicOffset,
    ahead_of,
    decode,
    step,
)
from headrace.spark.reading.parts import Gap, ReadPart
from headrace.spark.reading.planning import plan
from headrace.spark.reading.positions import starting_seqs
from headrace.spark.reading.stream_parts import cut_by_seqs, tasks_of
from headrace.spark.reading.topics import TopicHead, topic_heads, wanted_by

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.spark.reading.columns import Shape

# A batch with at most this many seqs of a topic reads them from the server, which has them in
# memory, and spares itself the manifest.
HTTP_SEQS_MAX = 4_096

# Spark asks a hundred times a second whether there is something new.  After a look that found
# nothing comes a rest of this many times what it took, so that a list of very many topics does not
# keep the server busy.
REST_PER_LOOK = 4
REST_MS_MIN = 10  # what Spark rests itself
REST_MS_MAX = 1_000


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics batch after batch."""

    def __init__(self, options: SourceOptions, shape: Shape, clock: Clock | None = None) -> None:
        self._options = options
        self._shape = shape
        self._clock = clock or SystemClock()
        self._forget()

    def _forget(self) -> None:
        """Know nothing yet."""
        self._client: Client | None = None
        self._seen: Mapping[str, TopicHead] = {}
        self._target: RunEnd | None = None
        self._batch_ns: int | None = None
        self._rest_ms = 0
        # Of the batch that was planned last: its offsets, and what keeps its files.
        self._planned: tuple[dict[str, Any], dict[str, Any]] | None = None
        self._pins: list[tuple[str, str]] = []

    def __getstate__(self) -> dict[str, Any]:
        # Executors get a copy only to read parts.
        return {"_options": self._options, "_shape": self._shape, "_clock": self._clock}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def initialOffset(self) -> dict[str, Any]:
        self._refuse_future()
        with connect(self._options.connection, starting=True) as client:
            heads = topic_heads(client, self._options)
            firsts = starting_seqs(client, self._options, heads)
        places = {name: TopicOffset(head.epoch, firsts[name] - 1) for name, head in heads.items()}
        return Offset(topics=places, new=True).to_json()

    def _refuse_future(self) -> None:
        """A place in the future is not known: the records before it would be read as well."""
        starting, now_ms = self._options.starting, self._clock.wall_ms()
        times = [starting.ts_ms or 0, *starting.ts_by_topic.values()]
        if max(times) > now_ms:
            raise InvalidRequest(
                f"the stream is to start at {max(times)}, {max(times) - now_ms} ms from now",
                fix="use startingSeqs=latest, and a condition on ts",
            )

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends; `start` itself when there is to be none."""
        before = decode(start)
        if self._rest_ms > REST_MS_MIN:
            threading.Event().wait(self._rest_ms / 1_000)
        began_ns = self._clock.monotonic_ns()
        self._seen = heads = self._heads()
        if self._target is not None:
            heads = self._target.cut(heads, before)
        seqs_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        ahead = ahead_of(before, heads, wanted_by(self._options), seqs_max)
        self._check(step(before, ahead.offset).gaps, ahead.offset)
        now_ns = self._clock.monotonic_ns()
        self._rest_ms = min((now_ns - began_ns) * REST_PER_LOOK // NS_PER_MS, REST_MS_MAX)
        if self._batch_ns is None:
            self._batch_ns = now_ns
        if ahead.offset is before:
            return start
        if not isinstance(limit, ReadAllAvailable) and self._is_held(before, ahead, now_ns):
            if not before.new:
                return start
            # The first batch is made without delay, and empty: it is what keeps the start.
            return Offset(topics=before.topics, came_from=before.topics).to_json()
        self._batch_ns, self._rest_ms = now_ns, 0
        spans = step(before, ahead.offset).spans
        tasks = tasks_of(spans, heads, self._options.min_partitions, os.cpu_count() or 1)
        return msgspec.structs.replace(ahead.offset, parts=tasks).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_records_per_trigger is not None:
            return ReadMaxRows(self._options.max_records_per_trigger)
        if self._options.min_records_per_trigger is not None:
            return ReadMinRows(self._options.min_records_per_trigger)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The heads as `latestOffset` saw them last: a report is not worth another call."""
        if not self._seen:
            return None
        places = {name: TopicOffset(head.epoch, head.head) for name, head in self._seen.items()}
        return Offset(topics=places).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = RunEnd(self._heads())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        before, after = decode(start), decode(end)
        spans, gaps = step(before, after)
        self._check(gaps, after)
        client = self._connected()
        cut = partial(cut_by_seqs, spans, count=after.parts)
        planned = plan(client, self._options, spans, http_rows_max=HTTP_SEQS_MAX, cut=cut)
        if self._planned != (start, end):
            # One batch at a time: that another is planned means that nobody reads the one before.
            give_back(client, self._pins)
            self._pins = []
        self._planned = (start, end)
        self._pins += planned.pins
        parts: list[InputPartition] = list(planned.parts)
        if gaps:
            parts.append(ReadPart(tuple(gaps)))
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Not above: the process that plans batches starts with each query, and reads nothing.
        from headrace.spark.reading.slices import read_part

        return read_part(self._options, self._shape, partition)

    def stop(self) -> None:
        """Give back what would lapse by itself."""
        if self._client is not None:
            give_back(self._client, self._pins)
            self._client.close()
            self._client = None

    def _connected(self) -> Client:
        if self._client is None:
            self._client = connect(self._options.connection)
        return self._client

    def _heads(self) -> dict[str, TopicHead]:
        """The topics that there are now.  One that is missing may have been deleted."""
        return topic_heads(self._connected(), self._options, missing_ok=True)

    def _is_held(self, before: Offset, ahead: Ahead, now_ns: int) -> bool:
        """Whether there is too little for a batch, and time to wait for more."""
        least = self._options.min_records_per_trigger
        if least is None or self._target is not None or ahead.seqs >= least:
            return False
        if step(before, ahead.offset).gaps:
            return False
        assert self._batch_ns is not None
        return now_ns - self._batch_ns < self._options.max_trigger_delay_ms * NS_PER_MS

    def _check(self, gaps: list[Gap], after: Offset) -> None:
        """Fail for the first of these losses, unless the query wants rows instead."""
        if not gaps or not self._options.fail_on_data_loss:
            return
        (name, epoch, first, last), reason = gaps[0].span, gaps[0].reason
        if reason == DELETED:
            what = f"topic {name!r} (epoch {epoch}) was deleted"
        else:
            what = (
                f"topic {name!r} is another one now: the query was at seq {last} of epoch {epoch}, "
                f"and this is epoch {after.topics[name].epoch}"
            )
        raise DataLost(
            f"{what}; what came after seq {last} is lost",
            fix="start again with a new checkpointLocation, or set failOnDataLoss=false to get a "
            "row with `gap` and go on",
            detail={"topic": name, "first": first, "reason": reason},
        )
