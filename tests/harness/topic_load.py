"""The traffic of `traffic.py` over HTTP, on a server that is killed: `ledger.py` judges it.

Some clients share the topics, each topic one client's, so that per topic the order is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Coroutine
from typing import Any

import msgspec

from headrace.api.records import Draft, Producer
from headrace.client import AsyncClient
from headrace.core.errors import TopicNotFound
from headrace.storage.block import KIND_JSON, Record
from tests.harness.kill_area import Area
from tests.harness.ledger import Acked, Ledger
from tests.harness.traffic import (
    APPEND,
    CHECKPOINT,
    DELETE_BEFORE,
    DELETE_TAG,
    DROP,
    READ,
    TOPICS,
    Op,
    TopicDump,
    Traffic,
)
from tests.support.server_lives import LOOK_SECONDS, Lost, Site, heard

CLIENTS = 3
PAGE = 1_000
RETRIES_MAX = 8


class TopicLoad(Area):
    """Topics of every class, keys, a producer, deletes, drops."""

    name = "topics"

    def __init__(self, site: Site, seed: int) -> None:
        super().__init__(site, seed)
        self.ledger = Ledger(seed, timed=False)
        self._chance = random.Random(f"{seed} retries")
        self._retries: list[tuple[int, int]] = []

    async def create(self) -> None:
        """Appends create their topics."""

    def workers(self) -> list[Coroutine[None, None, None]]:
        names = list(TOPICS)
        return [self._work(frozenset(names[number::CLIENTS])) for number in range(CLIENTS)]

    async def _work(self, mine: frozenset[str]) -> None:
        while not self.finished:
            await self.site.opened()
            life = self.site.life
            with contextlib.suppress(Lost):
                async with self.site.client() as client:
                    await self._live(client, mine, life)
            while self.site.life == life and not self.finished:
                await asyncio.sleep(LOOK_SECONDS)

    async def _live(self, client: AsyncClient, mine: frozenset[str], life: int) -> None:
        for run, number in self._retries:
            op = self.ledger.op(run, number)
            if op.topic in mine:
                self.ledger.retrying(run, number)
                answer = await self._heard(op, self._append(client, op))
                self.ledger.retried(run, number, answer)
        traffic = Traffic(self.seed, life)
        for number in itertools.count():
            if self.finished:
                return
            op = traffic[number]
            if op.topic in mine and op.kind != CHECKPOINT:
                await self._one(client, op)
            elif number % 64 == 0:
                await asyncio.sleep(0)

    async def _one(self, client: AsyncClient, op: Op) -> None:
        ledger, head = self.ledger, self.ledger.head_of(op.topic)
        place = 1 + head * op.share // 100 if op.kind in (DELETE_BEFORE, READ) else 0
        ledger.began(op, place)
        try:
            if op.kind == APPEND:
                ledger.appended(op, await self._heard(op, self._append(client, op)))
            elif op.kind == DROP:
                gone = await self._heard(op, client.delete_topic(op.topic))
                ledger.dropped(op, gone.deleted)
            elif op.kind == READ:
                page = await heard(client.diff(op.topic, place, limit=200))
                seqs = [record.seq for record in page.records]
                self.want(seqs == sorted(set(seqs)), f"{op} shows {seqs}")
            else:
                by = {"match": op.match} if op.kind == DELETE_TAG else {"before_seq": place}
                done = await self._heard(op, client.delete_records(op.topic, **by))
                ledger.deleted(op, done.deleted)
        except TopicNotFound:
            if op.kind == DROP:
                ledger.dropped(op, False)
            else:
                self.want(not head, f"{op}: no such topic, with {head} records")
                ledger.refused(op, unknown=False)

    async def _heard(self, op: Op, call: Coroutine[None, None, Any]) -> Any:
        try:
            return await heard(call)
        except Lost as lost:
            self.ledger.refused(op, unknown=lost.unknown)
            raise

    async def _append(self, client: AsyncClient, op: Op) -> Acked:
        batch = op.batch()
        drafts = [
            Draft(
                msgspec.Raw(data),
                batch.tags[row] if batch.tags is not None else None,
                meta=_raw(batch.metas[row] if batch.metas is not None else None),
            )
            for row, data in enumerate(batch.data)
        ]
        assert batch.nodes is None or isinstance(batch.nodes, str)
        done = await client.append(
            op.topic,
            drafts,
            node=batch.nodes,
            config=TOPICS[op.topic],
            idempotency_key=op.key,
            producer=Producer(*op.claim) if op.claim is not None else None,
        )
        assert done.epoch is not None
        return Acked(done.epoch, done.first_seq, done.last_seq, 0, done.deduped)

    async def check(self) -> None:
        async with self.site.client(patient=True) as client:
            # What is there is what the ledger asks for; other areas have topics of their own.
            there = [summary.topic async for summary in client.topics()]
            found = {name: await dumped(client, name) for name in there if name in TOPICS}
        self.ledger.compare(found)
        self.judged += self.ledger.records
        self._retries = self.ledger.to_retry(
            lambda stored: self._chance.sample(stored, min(RETRIES_MAX, len(stored)))
        )


def _raw(meta: bytes | None) -> msgspec.Raw | None:
    return None if meta is None else msgspec.Raw(meta)


async def dumped(client: AsyncClient, name: str) -> TopicDump:
    """A topic from its beginning to its head, as an engine's own dump shows it."""
    records: list[Record] = []
    lost: list[tuple[int, int, str]] = []
    cursor = 0
    while True:
        page = await client.diff(name, cursor, limit=PAGE)
        if (gone := page.tombstone) is not None:
            lost.append((gone.gap_from, gone.gap_to, gone.reason))
        for record in page.records:
            meta = bytes(record.raw_meta)
            records.append(
                Record(
                    record.seq,
                    record.ts,
                    bytes(record.raw),
                    record.tag,
                    record.node,
                    None if meta == b"null" else meta,
                    None,
                    KIND_JSON,
                    0,
                )
            )
        cursor = page.next_from_seq
        if page.caught_up:
            break
    state = await client.topic(name)
    assert state.epoch is not None
    return TopicDump(
        name, state.epoch, state.head_seq, state.earliest_seq, state.count, state.bytes, lost,
        records,
    )  # fmt: skip
