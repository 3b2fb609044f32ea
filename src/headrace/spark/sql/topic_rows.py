"""The rows of one table of SQL: from the archive of a topic, and from the server behind it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from pyspark.sql import DataFrame, SparkSession

from headrace.api.segments import Manifest
from headrace.client import Client
from headrace.core.errors import Forbidden
from headrace.spark.connection import give_back
from headrace.spark.options import Connection
from headrace.spark.read_failures import lost
from headrace.spark.reading.manifests import losses_of
from headrace.spark.reading.spans import Span
from headrace.spark.sql.archive import Loss, TopicLife
from headrace.spark.sql.topic_ends import Cut
from headrace.spark.sql.used_columns import Bounds, Use
from headrace.spark.sql.view_columns import (
    ORIGIN,
    VALUE,
    VALUE_NEEDS,
    marked,
)


class NotArchived(Exception):
    """An archive does not have all of a topic."""


class TopicRows:
    """Reads topics for the statements of one session."""

    def __init__(self, spark: SparkSession, connection: Connection, client: Client) -> None:
        self._spark = spark
        self._connection = connection
        self._client = client

    def parts(
        self, cut: Cut, life: TopicLife | None, columns: list[str], use: Use, *, archive_only: bool
    ) -> Iterator[DataFrame]:
        """The rows of a table: of its archive, and of the server behind that.

        With `archive_only`, `NotArchived` where the archive does not have all of them.
        """
        manifest = None
        whole = life is not None and life.to_seq >= cut.head and life.is_light
        if archive_only and not whole:
            raise NotArchived
        if not cut.alone and (life is not None or ORIGIN in use.columns):
            manifest = self._manifest(cut.topic)
            if manifest.epoch != cut.epoch:
                raise lost(cut.topic, cut.earliest, cut.head, "recreated")
        if life is not None:
            cut.past_to = _past_to(cut, life, manifest)
            cut.losses = [*_losses(cut, life, use.bounds, manifest)]
        # Which losses a statement is about is known when it has been analysed.
        if archive_only and (cut.losses or cut.past_to < cut.head):
            raise NotArchived
        if life is not None and cut.past_to:
            past = life.rows(cut.past_to, columns, use.bounds, manifest)
            yield marked(past, "'lake'", use)
        first = max(cut.past_to + 1, use.bounds.seq_first)
        last = min(cut.head, use.bounds.seq_last)
        if cut.alone or last < first:
            return
        cut.floats = life is not None and cut.past_to < cut.earliest
        live = self._live(cut, columns, use, (first, last))
        if life is not None and VALUE in columns:
            live = life.valued(live).select(*columns)
        tail_from = 0 if manifest is None else manifest.tail_from_seq
        yield marked(live, f"if(seq >= {tail_from}, 'tail', 'segments')", use)

    def _manifest(self, topic: str) -> Manifest:
        try:
            manifest = self._client.segments(topic)
        except Forbidden as error:
            raise Forbidden(
                error.message,
                fix="use a key without prefixes, or ask without a lake and without --origin",
                detail=error.detail,
            ) from None
        give_back(self._client, [(manifest.topic, manifest.pin)])
        return manifest

    def _live(self, cut: Cut, columns: list[str], use: Use, seqs: tuple[int, int]) -> DataFrame:
        """What the server has of a range of seqs."""
        first, last = seqs
        asked = [name for name in columns if name != VALUE]
        if VALUE in columns:
            asked += [name for name in VALUE_NEEDS if name not in asked]
        # A comma would part two names.
        named = ("subscribePattern", re.escape(cut.topic)) if "," in cut.topic else (
            "subscribe", cut.topic
        )  # fmt: skip
        reader = self._spark.read.format("headrace").option(*named)
        for name, value in self._options(use).items():
            reader = reader.option(name, value)
        reader = reader.option("columns", ",".join(asked))
        reader = reader.option("endingSeqs", json.dumps({cut.topic: last + 1}))
        # Where no archive is before it, a topic begins with what is left when it is read.
        if cut.past_to >= cut.earliest:
            reader = reader.option("startingSeqs", json.dumps({cut.topic: first}))
        return reader.load()

    def _options(self, use: Use) -> dict[str, str]:
        options = {
            "url": self._connection.url,
            "pushFilters": "true" if use.places == 1 else "false",
            "retryTimeout": f"{self._connection.retry_timeout_ms}ms",
        }
        if self._connection.token is not None:
            options["token"] = self._connection.token
        if self._connection.ca_file is not None:
            options["caFile"] = self._connection.ca_file
        return options


def _past_to(cut: Cut, life: TopicLife, manifest: Manifest | None) -> int:
    """Up to where rows come from the archive."""
    if manifest is None:
        return life.to_seq
    life.check(manifest)
    # Deletes of what is not sealed yet are not in a manifest: that comes from the server.
    return max(0, min(life.to_seq, manifest.tail_from_seq - 1, cut.head))


def _losses(cut: Cut, life: TopicLife, bounds: Bounds, manifest: Manifest | None) -> Iterator[Loss]:
    """What neither the archive has nor the server."""
    yield from life.losses(bounds.within(Bounds(seq_last=cut.past_to)))
    if manifest is not None:
        first = max(cut.past_to + 1, bounds.seq_first)
        last = min(cut.earliest - 1, cut.head, bounds.seq_last)
        for gap in losses_of(manifest, Span(cut.topic, cut.epoch, first, last)):
            yield Loss(gap.span.first, gap.span.last, gap.reason)
