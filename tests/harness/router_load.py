"""Writers and readers of many routers on a server that crashes: is every destination its source?

Only this file judges routers over many lives of a served process.  Whatever a reader was shown
once is there again, the same under the same seq; what a source has is in its destination, in the
order of the source, once; and who has written reads it in the destination at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.api.records import Record, Tombstone
from headrace.client import AsyncClient, Draft
from tests.harness.events import Violation
from tests.support.server_lives import LOOK_SECONDS, Lost, Site, heard, together

TAGS = (None, "a", "b", "a:1")
PAGE = 1_000
FANS_CHECKED = 40  # at a restart; in the end all are
AT_ONCE = 16
HOPS_MAX = 8
CAP = 60
SOURCE_KEY = "_topics_router"


class Edge(NamedTuple):
    """A router."""

    name: str
    source: str
    dest: str
    filter: str | None = None
    preserve: bool = True  # tag and node
    once: bool = False
    cycle: bool = False

    async def put(self, client: AsyncClient, *, backfill: bool = False) -> None:
        await client.put_router(
            self.name,
            self.source,
            self.dest,
            filter=self.filter,
            preserve_node=self.preserve,
            preserve_tag=self.preserve,
            allow_cycle=self.cycle,
            guarantee="exactly_once" if self.once else "at_least_once",
            backfill=backfill,
        )


TOPICS: dict[str, dict[str, object]] = {
    "s-disk": {},
    "s-fsync": {"durability": "fsync"},
    "s-memory": {"durability": "memory"},
    "s-gone": {"durability": "ephemeral"},
    "s-cap": {"cap_records": CAP},
    "d-disk": {},
    "d-fsync": {"durability": "fsync"},
    "d-memory": {"durability": "memory"},
    "d-once": {"durability": "fsync"},
    "d-filter": {"durability": "fsync"},
    "d-queue": {"type": "queue"},
    "c-2": {"durability": "fsync"},
    "c-3": {"durability": "memory"},
    "m-a": {"durability": "fsync"},
    "g-fsync": {"durability": "fsync"},
    "k-fsync": {"durability": "fsync"},
}
FAN_OUT = (
    Edge("disk-disk", "s-disk", "d-disk"),
    Edge("disk-fsync", "s-disk", "d-fsync"),
    Edge("disk-memory", "s-disk", "d-memory", preserve=False),
    Edge("disk-once", "s-disk", "d-once", once=True),
    Edge("disk-filter", "s-disk", "d-filter", filter="a*"),
    Edge("disk-queue", "s-disk", "d-queue"),
    Edge("memory-fsync", "s-memory", "e-1", once=True),
)
CHAIN = (
    Edge("c1", "s-fsync", "c-1"),
    Edge("c2", "c-1", "c-2", once=True),
    Edge("c3", "c-2", "c-3"),
)
AGAIN = Edge("again", "s-fsync", "d-again", once=True)  # deleted and made again
MIRROR = (Edge("ab", "m-a", "m-b"), Edge("ba", "m-b", "m-a", cycle=True))
LOSSY = (Edge("gone-fsync", "s-gone", "g-fsync"), Edge("cap-fsync", "s-cap", "k-fsync"))
# Where writers write, and who reads what they wrote there.
READERS = {
    "s-disk": ("d-disk", "d-fsync", "d-memory", "d-once", "d-queue"),
    "s-fsync": ("c-1", "c-2", "c-3"),
    "s-memory": ("e-1",),
    "s-gone": ("g-fsync",),
    "s-cap": (),
    "m-a": ("m-b",),
    "m-b": ("m-a",),
    "d-disk": ("d-disk",),  # a direct write into a destination
}


class Topic:
    """What was read of a topic so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.records: dict[int, Record] = {}
        self.holes: list[Tombstone] = []
        self.head = 0
        self.texts: set[str] = set()
        self._reading = asyncio.Lock()

    async def catch_up(self, client: AsyncClient) -> None:
        """Read on to the head."""
        async with self._reading:
            while True:
                page = await heard(client.diff(self.name, self.head, limit=PAGE))
                if page.tombstone is not None:
                    self.holes.append(page.tombstone)
                for record in page.records:
                    self.records[record.seq] = record
                    self.texts.add(record.data["text"])
                self.head = page.next_from_seq
                if page.caught_up:
                    return


@dataclass
class RouterLoad:
    """The load, and all that is known about it."""

    site: Site
    seed: int
    writers: int
    crashes: int
    writes: int  # of each life
    fans: int
    pace_seconds: float = 0.0  # between two writes of one writer
    acked: dict[str, dict[int, str]] = field(default_factory=dict)
    seen: dict[str, Topic] = field(default_factory=dict)
    checked: int = 0
    ryw: int = 0
    _written: int = 0
    _finished: bool = False

    def __post_init__(self) -> None:
        self.fan = [Edge(f"f>{n}", "f", f"f-{n}", once=n % 2 == 0) for n in range(self.fans)]
        self._chance = random.Random(f"{self.seed} checks")

    # The whole story

    async def run(self) -> None:
        await self.site.start()
        await self.create()
        self.site.open()
        await together(self.direct(), self.everybody(), self.finish)
        await self.check(everything=True)
        self.site.kill()
        await self.site.deserted()
        await self.site.start()
        await self.check(everything=True)
        await self.work_off()

    def everybody(self) -> list[Coroutine[None, None, None]]:
        """Who writes, and who deletes a router and makes it again."""
        return [self.remake(), *(self.write(number) for number in range(self.writers))]

    def finish(self) -> None:
        self._finished = True

    async def create(self) -> None:
        async with self.site.client(patient=True) as client:
            for name, config in TOPICS.items():
                await client.put_topic(name, config)
            for edge in (*FAN_OUT, *CHAIN, *MIRROR, *LOSSY):
                await edge.put(client)
            await AGAIN.put(client, backfill=True)
            await client.put_topic("f")
            for start in range(0, self.fans, AT_ONCE):
                fan = self.fan[start : start + AT_ONCE]
                config = {"durability": ("disk", "fsync", "memory")[start // AT_ONCE % 3]}
                await asyncio.gather(*(client.put_topic(edge.dest, config) for edge in fan))
                await asyncio.gather(*(edge.put(client) for edge in fan))

    async def direct(self) -> None:
        """End the server after so many writes, again and again."""
        chance = random.Random(f"{self.seed} crashes")
        for number in range(self.crashes):
            due = self._written + self.writes * chance.uniform(0.3, 1)
            while self._written < due:
                await asyncio.sleep(LOOK_SECONDS)
            if number % 3 == 1:
                await self.site.stop()
            else:
                self.site.kill()
            await self.site.deserted()
            await self.site.start(stumbling=number % 4 == 2)
            await self.check(everything=False)
            self.site.open()
        while self._written < due + self.writes:
            await asyncio.sleep(LOOK_SECONDS)

    # Load

    async def write(self, number: int) -> None:
        chance = random.Random(f"{self.seed} writer {number}")
        for count in itertools.count():
            if self._finished:
                return
            topic = "f" if chance.random() < 0.1 else chance.choice(list(READERS))
            size = 3_000 if chance.random() < 0.05 else 1
            records = [
                Draft(
                    {"text": f"{topic} {number}-{count}-{n}", "more": "x" * size},
                    chance.choice(TAGS),
                    f"w{number}",
                    {"n": n} if chance.random() < 0.5 else None,
                )
                for n in range(chance.randint(1, 5))
            ]
            await self._append(topic, records, f"{number}-{count}")
            await asyncio.sleep(self.pace_seconds)
            if chance.random() < 0.3:
                await self._read_own(topic, records[-1].data["text"], chance)

    async def _append(self, topic: str, records: list[Draft], key: str) -> None:
        """Until it is answered, under one key."""
        while True:
            await self.site.opened()
            with contextlib.suppress(Lost):
                async with self.site.client() as client:
                    call = client.append(topic, records, idempotency_key=key)
                    done = await heard(call)
                assert done.first_seq is not None  # under a key it is always known
                known = self.acked.setdefault(topic, {})
                for seq, record in enumerate(records, done.first_seq):
                    text = record.data["text"]
                    if known.setdefault(seq, text) != text:
                        raise Violation(f"{topic}: {seq} is {known[seq]} and {text}")
                self._written += 1
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def _read_own(self, topic: str, text: str, chance: random.Random) -> None:
        """What was acknowledged is in a destination that is read now."""
        dests = READERS[topic] if topic != "f" else [chance.choice(self.fan).dest]
        if not dests or self.site.ending:
            return
        dest, life = chance.choice(dests), self.site.life
        known = self.topic(dest)
        with contextlib.suppress(Lost):
            async with self.site.client() as client:
                await known.catch_up(client)
            if text not in known.texts and (topic != "s-gone" or life == self.site.life):
                raise Violation(f"{dest}: {text} was acknowledged, and cannot be read")
            self.ryw += 1

    async def remake(self) -> None:
        """A router is deleted and made again, all the time."""
        while not self._finished:
            await self.site.opened()
            with contextlib.suppress(Lost):
                async with self.site.client() as client:
                    await heard(client.delete_router(AGAIN.name))
                    await asyncio.sleep(LOOK_SECONDS)
                    await heard(AGAIN.put(client, backfill=True))
            await asyncio.sleep(LOOK_SECONDS * 2)

    def topic(self, name: str) -> Topic:
        return self.seen.setdefault(name, Topic(name))

    # Judgement, while nobody writes

    async def check(self, *, everything: bool) -> None:
        fan = (
            self.fan if everything else self._chance.sample(self.fan, min(self.fans, FANS_CHECKED))
        )
        async with self.site.client(patient=True) as client:
            await AGAIN.put(client, backfill=True)
            await self._settle_mirror(client)
            topics = {name: await self._read(client, name) for name in self._names(fan)}
            for edge in (*FAN_OUT, *CHAIN, AGAIN, *fan):
                _same_copies(edge, topics[edge.source], topics[edge.dest])
                if edge is not AGAIN:
                    told = (await client.router(edge.name)).forwarded_total
                    copies = len(_copies(edge, topics[edge.dest]))
                    _same(f"the total of {edge.name}", told, copies)
            self._check_mirror(topics["m-a"], topics["m-b"])
            self._check_lossy(topics)
        self.checked += 1

    def _names(self, fan: list[Edge]) -> list[str]:
        edges = (*FAN_OUT, *CHAIN, *MIRROR, *LOSSY, AGAIN, *fan)
        return sorted({name for edge in edges for name in (edge.source, edge.dest)})

    async def _settle_mirror(self, client: AsyncClient) -> None:
        """Every read lets records go on by one hop at least."""
        for _ in range(HOPS_MAX):
            for edge in MIRROR:
                await client.router(edge.name)

    async def _read(self, client: AsyncClient, name: str) -> Topic:
        """A topic from its start; what was read of it before is the same."""
        topic = Topic(name)
        await topic.catch_up(client)
        before = self.seen.get(name)
        self.seen[name] = topic
        if name == "s-gone":
            return topic
        floor = max(0, topic.head - CAP) if name == "s-cap" else 0
        for seq, record in before.records.items() if before is not None else ():
            if seq > floor and topic.records.get(seq) != record:
                raise Violation(f"{name}: {seq} was {record}, is {topic.records.get(seq)}")
        for seq, text in self.acked.get(name, {}).items():
            found = topic.records.get(seq)
            if seq > floor and (found is None or found.data["text"] != text):
                raise Violation(f"{name}: {seq} is not {text} but {found}")
        missing = set(range(floor + 1, topic.head + 1)) - topic.records.keys()
        for hole in topic.holes:
            missing -= set(range(hole.gap_from, hole.gap_to + 1))
        _same(f"{name}: seqs without a word", sorted(missing), [])
        return topic

    def _check_mirror(self, a: Topic, b: Topic) -> None:
        found = [Counter(r.data["text"] for r in t.records.values()) for t in (a, b)]
        for at, name in enumerate(("m-a", "m-b")):
            for text in self.acked.get(name, {}).values():
                rounds = (found[at][text], found[1 - at][text])
                _same(f"rounds of {text}", rounds, (1 + HOPS_MAX // 2, HOPS_MAX // 2))

    def _check_lossy(self, topics: dict[str, Topic]) -> None:
        """Where sources lose records: no copy twice, none out of order, each in its place."""
        for edge in LOSSY:
            texts = [r.data["text"] for r in topics[edge.dest].records.values()]
            _same(f"{edge.dest}: twice", len(texts), len(set(texts)))
        source, dest = topics["s-cap"], topics["k-fsync"]
        _same("the head of k-fsync", dest.head, source.head)
        for seq, text in self.acked.get("s-cap", {}).items():
            found = dest.records.get(seq)
            if found is not None:
                _same(f"{seq} of k-fsync", found.data["text"], text)
        for hole in dest.holes:
            _same("a hole of k-fsync", hole.reason, "source_trim")

    async def work_off(self) -> None:
        """The destination that is a queue: each copy is claimed once."""
        wanted = sorted(self.acked["s-disk"].values())
        found: list[str] = []
        async with self.site.client(patient=True) as client:
            while jobs := (await client.claim("d-queue", "w", PAGE)).jobs:
                found += [job.data["text"] for job in jobs]
                _same("acked", (await client.ack("d-queue", "w", jobs)).acked, len(jobs))
        _same("jobs", sorted(found), wanted)


def _same(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise Violation(f"{what}: {found!r:.500}, not {wanted!r:.500}")


def _copies(edge: Edge, dest: Topic) -> list[Record]:
    """Without what was written there directly."""
    records = dest.records.values()
    return [r for r in records if not r.data["text"].startswith(f"{edge.dest} ")]


def _same_copies(edge: Edge, source: Topic, dest: Topic) -> None:
    wanted = [
        (record, record.tag if edge.preserve else None, record.node if edge.preserve else None)
        for record in source.records.values()
        if edge.filter is None or (record.tag or "").startswith(edge.filter[:-1])
    ]
    found = _copies(edge, dest)
    texts = [copy.data["text"] for copy in found]
    if texts != [record.data["text"] for record, _, _ in wanted]:
        twice = [text for text, times in Counter(texts).items() if times > 1]
        lost = [r for r, _, _ in wanted if r.data["text"] not in set(texts)]
        raise Violation(f"{edge}: twice {twice!r:.300}, lost {lost!r:.300}, or out of order")
    for copy, (record, tag, node) in zip(found, wanted, strict=True):
        meta: Any = copy.meta
        if edge.once:
            told = meta.pop(SOURCE_KEY)
            named = (told["router"], told["source_topic"], told["source_seq"])
            _same(f"the trace of {copy}", named, (edge.name, edge.source, record.seq))
            original: Any = record.meta or {}
            original.pop(SOURCE_KEY, None)
        else:
            original = record.meta
        same = bytes(copy.raw) == bytes(record.raw) and meta == original
        if not same or (copy.tag, copy.node) != (tag, node):
            raise Violation(f"{edge}: {copy} is no copy of {record}")
