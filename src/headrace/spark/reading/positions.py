"""Where reading starts and ends: words, seqs and times of the options become seqs of each topic.

The rule it owns: a place that is not there is an error that says so, and never another place.  What
was trimmed is not looked at here: a span keeps the seq it was given, and planning tells what of it
is lost.  Only `earliest` cannot be lost, because it means what is left.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from headrace.client import Client
from headrace.core.errors import InvalidRequest
from headrace.spark.options import (
    EARLIEST,
    LATEST,
    SEQ_EARLIEST,
    SEQ_LATEST,
    Position,
    SourceOptions,
)
from headrace.spark.reading.spans import Span
from headrace.spark.reading.topics import TopicHead


def spans_of(client: Client, options: SourceOptions, heads: dict[str, TopicHead]) -> list[Span]:
    """What a batch query reads of each topic, by name; it ends at the heads at the latest."""
    firsts = starting_seqs(client, options, heads)
    ends = _seqs(client, options.ending, "ending", heads)
    spans = []
    for name, head in sorted(heads.items()):
        # Records that came after `heads` was asked for are not part of this query.
        first, end = min(firsts[name], head.head + 1), min(ends[name], head.head + 1)
        if end < first:
            raise InvalidRequest(
                f"reading {name!r} would end before seq {end}, and start at seq {first}",
                fix="start before the end; the ending seq is the first that is not read",
                detail={"topic": name, "starting": first, "ending": end},
            )
        spans.append(Span(name, head.epoch, first, end - 1))
    return spans


def starting_seqs(
    client: Client, options: SourceOptions, heads: Mapping[str, TopicHead]
) -> dict[str, int]:
    """The first seq to read of each topic; one beyond the head where there is none yet."""
    return _seqs(client, options.starting, "starting", heads)


def _seqs(
    client: Client, position: Position, which: str, heads: Mapping[str, TopicHead]
) -> dict[str, int]:
    """Where `position` is in each topic; as an end it is the first seq that is not read."""
    if position.word == EARLIEST:
        return {name: head.earliest for name, head in heads.items()}
    if position.word == LATEST:
        return {name: head.head + 1 for name, head in heads.items()}
    if position.ts_ms is not None:
        return {name: _seq_at(client, head, position.ts_ms) for name, head in heads.items()}
    if position.ts_by_topic:
        _expect_the_same(position.ts_by_topic, heads, f"{which}SeqsByTimestamp")
        times = position.ts_by_topic
        return {name: _seq_at(client, head, times[name]) for name, head in heads.items()}
    _expect_the_same(position.seqs, heads, f"{which}Seqs")
    return {name: _seq_of(position.seqs[name], which, head) for name, head in heads.items()}


def _expect_the_same(given: Mapping[str, int], heads: Mapping[str, TopicHead], option: str) -> None:
    """Every topic that is read has a place, and every place is of a topic that is read."""
    for name in given:
        if name not in heads:
            near = difflib.get_close_matches(name, heads, n=1, cutoff=0.0)
            raise InvalidRequest(
                f"{option} names {name!r}, which this query does not read",
                fix=f"did you mean {near[0]!r}?" if near else "leave it out",
                detail={"topic": name},
            )
    for name in heads:
        if name not in given:
            raise InvalidRequest(
                f"{option} does not say where to be in {name!r}",
                fix=f"give every topic a place; in seqs {SEQ_EARLIEST} is the earliest"
                f" and {SEQ_LATEST} the latest",
                detail={"topic": name},
            )


def _seq_of(seq: int, which: str, head: TopicHead) -> int:
    if seq == SEQ_EARLIEST:
        return head.earliest
    if seq == SEQ_LATEST:
        return head.head + 1
    if seq < 0 or seq > head.head + 1:
        raise InvalidRequest(
            f"{which}Seqs has seq {seq} for {head.topic!r}, whose last record is {head.head}",
            fix=f"use 1 to {head.head + 1}, {SEQ_EARLIEST} for the earliest"
            f" or {SEQ_LATEST} for the latest",
            detail={"topic": head.topic, "seq": seq, "head_seq": head.head},
        )
    return max(seq, 1)


def _seq_at(client: Client, head: TopicHead, ts_ms: int) -> int:
    """The first live seq with a time of at least `ts_ms`; one beyond the head if there is none."""
    page = client.diff(
        head.topic, from_ts=ts_ms, limit=1, include_tags=False, include_meta=False, epoch=head.epoch
    )
    # A page ends where a crash took records, and is empty when there was nothing before them.
    while not page.records and not page.caught_up:
        page = client.diff(head.topic, page.next_from_seq, limit=1, epoch=page.epoch)
    if page.epoch != head.epoch:
        raise InvalidRequest(
            f"{head.topic!r} was deleted and made anew while the query started",
            fix="start the query again",
            detail={"topic": head.topic},
        )
    return page.records[0].seq if page.records else page.head_seq + 1
