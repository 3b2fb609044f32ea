"""The engine against the model, call by call, without power losses: every answer and every read.

A run is a seed: it decides the calls, and how the lanes of the engine take turns.  A failure names
the seed, the call and what came before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from headrace.core.clock import ManualClock
from headrace.core.errors import HeadraceError, InvalidRequest, TopicNotFound
from headrace.engine.reading.page import Page
from headrace.engine.topics.config import TopicConfig
from headrace.storage.files.merge_policy import MergePolicy
from headrace.testing.diskmodel import Dice
from headrace.testing.simdisk import SimDisk
from tests.harness.engine_driver import Driver, Setup
from tests.harness.events import Loss
from tests.harness.model import (
    AppendCall,
    NewRecord,
    Producer,
    Rec,
    Refused,
    TopicModel,
    config_of,
)
from tests.harness.oracle import Oracle

NAMES = ("a", "b", "c")
TAGS = (None, "x", "y", "chat-42:1", "chat-420:1", "", "ü*")
MATCHES = (None, "x", "y", "chat-42:*", "chat-4*", "*", "", "ü*", "absent")
POLICY = MergePolicy(
    fan_in=2, own_rows_min=12, own_bytes_min=300, own_bytes_max=900, own_topics_max=8
)
T = TypeVar("T")


class Lockstep:
    """Calls go to both; whatever the engine says, the model must have said."""

    def __init__(self, seed: int) -> None:
        self.dice = dice = Dice(seed, 0xA17)
        self.clock = ManualClock()
        self.disk = SimDisk()
        self.setup = Setup(policy=POLICY, cached=dice.coin(), shuffled=dice.coin())
        self.oracle = Oracle(ordered=False)
        self.lives = 0
        self.log: list[str] = []
        self.start()
        self.actions: list[tuple[int, Callable[[], None]]] = [
            (10, self.append),
            (3, self.append_with_key),
            (3, self.append_as_producer),
            (3, self.append_at_head),
            (1, self.append_without_creating),
            (4, self.delete),
            (1, self.put),
            (1, self.drop),
            (2, self.archived),
            (3, self.advance),
            (2, self.checkpoint),
            (1, self.restart),
            (8, self.read),
            (2, self.read_last),
            (2, self.read_from_time),
        ]

    def start(self) -> None:
        self.lives += 1
        self.driver = Driver(self.disk, self.setup, self.clock, self.lives)
        self.driver.recover()
        self.driver.on_event = self.oracle.feed

    def pick(self, choices: Sequence[T]) -> T:
        return choices[self.dice.below(len(choices))]

    def step(self) -> None:
        total = sum(weight for weight, _ in self.actions)
        number = self.dice.below(total)
        for weight, action in self.actions:
            number -= weight
            if number < 0:
                action()
                break
        self.check_counts()

    def say(self, *words: object) -> None:
        self.log.append(" ".join(map(str, words)))

    def now_ms(self) -> int:
        return self.driver.engine.state.clock.now_ms()

    def topic(self, name: str) -> TopicModel | None:
        self.oracle.expire(name, self.now_ms())
        return self.oracle.topic(name)

    # Writing

    def records(self) -> tuple[NewRecord, ...]:
        dice = self.dice
        return tuple(
            NewRecord(
                dice.bytes(dice.below(60)),
                self.pick(TAGS),
                self.pick((None, None, "n1", "n2")),
                self.pick((None, None, b"{}", b'{"k":1}')),
            )
            for _ in range(1 + dice.below(6))
        )

    def config(self) -> TopicConfig:
        durability = self.pick(("fsync", "disk", "memory", "ephemeral"))
        return config_of(
            durability=durability,
            cap_records=self.pick((0, 0, 0, 5, 20)),
            cap_bytes=self.pick((0, 0, 0, 200, 900)),
            ttl_ms=self.pick((0, 0, 0, 500, 5_000)),
            discard=self.pick(("old", "old", "reject")),
            idempotency_window_ms=2_000,
            dedupe_node=self.dice.coin(),
            retain_until_archived=self.pick((False, False, True)),
            retain_bytes_max=150 if durability == "ephemeral" else self.pick((0, 0, 150)),
        )

    def append(self) -> None:
        self.send(AppendCall(self.pick(NAMES), self.records(), config=self.config()))

    def append_with_key(self) -> None:
        self.send(AppendCall(self.pick(NAMES), self.records(), key=self.pick(("k1", "k2", "k3"))))

    def append_as_producer(self) -> None:
        producer = Producer(self.pick(("p", "q")), self.dice.below(3), self.dice.below(4))
        self.send(AppendCall(self.pick(NAMES), self.records(), producer=producer))

    def append_at_head(self) -> None:
        name = self.pick(NAMES)
        topic = self.topic(name)
        head = (topic.head if topic is not None else 0) + self.pick((0, 0, 0, 1, -1))
        self.send(AppendCall(name, self.records(), expected_head=max(0, head)))

    def append_without_creating(self) -> None:
        self.send(AppendCall(self.pick(NAMES), self.records(), create=False))

    def send(self, call: AppendCall) -> None:
        if self.oracle.is_open(call):
            return
        due = self.refusal(call)
        tags = [record.tag for record in call.records]
        sizes = [record.size for record in call.records]
        self.say("append", tags, sizes, *call._replace(records=())[:-1], "due:", due)
        if call.config is not None:
            self.log[-1] += f" {shown(call.config)}"
        ticket = self.driver.append(
            call.name,
            *call.records,
            key=call.key,
            producer=call.producer,
            expected_head=call.expected_head,
            create=call.create,
            config=call.config,
        )
        self.driver.finish()
        assert ticket.done
        error = ticket.error
        assert error is None or isinstance(error, HeadraceError)
        assert (error.code if error is not None else None) == due, error

    def refusal(self, call: AppendCall) -> str | None:
        """The code of the refusal that is due, if one is."""
        topic = self.topic(call.name)
        if topic is None:
            if call.create is False:
                return "topic_not_found"
            topic = TopicModel(call.config or TopicConfig())
        try:
            topic.admit(call, self.now_ms())
        except Refused as refused:
            return refused.code
        return None

    def delete(self) -> None:
        name, match = self.pick(NAMES), self.pick(MATCHES)
        topic = self.topic(name)
        around = topic.earliest_seq + self.dice.below(30) - 5 if topic is not None else 5
        before = self.pick((None, max(0, around)))
        self.say("delete", name, before, match)
        ticket = self.driver.delete(name, before, match)
        self.driver.finish()
        if before is None and match is None:
            assert isinstance(ticket.error, HeadraceError)
        elif topic is None:
            assert isinstance(ticket.error, TopicNotFound)
        else:
            assert ticket.error is None, ticket.error

    def put(self) -> None:
        name, config = self.pick(NAMES), self.config()
        self.say("put", name, shown(config))
        ticket = self.driver.put(name, config)
        self.driver.finish()
        assert ticket.error is None, ticket.error

    def drop(self) -> None:
        name = self.pick(NAMES)
        self.say("drop", name)
        self.driver.drop(name)
        self.driver.finish()
        assert self.topic(name) is None

    def archived(self) -> None:
        name = self.pick(NAMES)
        topic = self.topic(name)
        to_seq = max(0, (topic.head if topic is not None else 5) + 1 - self.dice.below(12))
        self.say("archived", name, to_seq)
        ticket = self.driver.archived(name, to_seq)
        self.driver.finish()
        if topic is None:
            assert isinstance(ticket.error, TopicNotFound)
        elif to_seq > topic.head:
            assert isinstance(ticket.error, InvalidRequest)
        else:
            assert ticket.result().archived_seq == topic.archived >= to_seq

    # Time and files

    def advance(self) -> None:
        ms = self.pick((1, 60, 400, 3_000))
        self.say("advance", ms)
        self.clock.advance(ms)
        self.driver.finish()

    def checkpoint(self) -> None:
        self.say("checkpoint")
        ticket = self.driver.checkpoint()
        self.driver.finish()
        assert ticket.done and ticket.error is None, ticket.error

    def restart(self) -> None:
        loss: Loss = self.pick(("clean", "kill"))
        self.say("restart", loss)
        if loss == "clean":
            self.driver.engine.close()
        else:
            self.driver.abandon()
        self.start()
        views = self.driver.observe()
        fits = self.oracle.check(views, loss, self.now_ms())
        self.oracle = self.oracle.after(views, fits, loss)
        self.driver.on_event = self.oracle.feed

    # Reading

    def read(self) -> None:
        name = self.pick(NAMES)
        topic = self.topic(name)
        low = 0 if topic is None or self.dice.below(3) == 0 else max(0, topic.earliest_seq - 3)
        start = low + self.dice.below(1 + (topic.head + 2 - low if topic is not None else 1))
        limit, bytes_max = self.dice.below(12), self.pick((0, 1, 30, 100, 10_000))
        nodes = self.pick(((), (), ("n1",), ("n1", "n2")))
        self.say("read", name, start, limit, bytes_max, nodes)
        ticket = self.driver.engine.read(name, start, limit=limit, bytes_max=bytes_max, nodes=nodes)
        self.driver.finish()
        if topic is None:
            assert isinstance(ticket.error, TopicNotFound)
            return
        page = ticket.result()
        cursor = check_tombstone(topic, page, start)
        check_page(topic, page, cursor, limit, bytes_max, nodes)

    def read_last(self) -> None:
        name, last, limit = self.pick(NAMES), self.dice.below(30), 1 + self.dice.below(12)
        self.say("read last", name, last, limit)
        topic = self.topic(name)
        if topic is not None:
            page = self.driver.engine.read(name, last=last, limit=limit).result()
            seqs = sorted(topic.live)
            cursor = seqs[-last - 1] if last < len(seqs) else topic.earliest_seq - 1
            cursor = check_tombstone(topic, page, cursor)
            check_page(topic, page, cursor, limit, 1 << 20, ())

    def read_from_time(self) -> None:
        name, limit = self.pick(NAMES), 1 + self.dice.below(12)
        ts = self.now_ms() - self.dice.below(6_000)
        self.say("read from", name, ts, limit)
        topic = self.topic(name)
        if topic is not None:
            page = self.driver.engine.read(name, from_ts=ts, limit=limit).result()
            wanted = [seq for seq, rec in sorted(topic.live.items()) if rec.ts >= ts]
            seen = [record.seq for record in page.records]
            assert seen == wanted[: len(seen)]
            assert seen or not wanted or page.tombstone or page.next_from_seq < wanted[0]

    def check_counts(self) -> None:
        infos = {info.topic: info for info in self.driver.engine.topics()}
        due = {name: topic for name in self.oracle.names() if (topic := self.topic(name))}
        assert infos.keys() == due.keys()
        for name, topic in due.items():
            info = infos[name]
            seen = (
                info.head_seq, info.earliest_seq, info.count, info.bytes, info.config,
                info.archived_seq, info.overtaken_seq,
            )  # fmt: skip
            assert seen == (
                topic.head, topic.earliest_seq, topic.count, topic.bytes, topic.config,
                topic.archived, topic.overtaken,
            ), name  # fmt: skip
        state = self.driver.engine.state
        assert state.totals.bytes == sum(topic.bytes for topic in due.values())
        totals = state.totals
        assert totals.records == sum(topic.count for topic in due.values())
        assert totals.topics == len(due)
        classes: list[object] = [topic.config.durability for topic in due.values()]
        assert totals.by_class == {name: classes.count(name) for name in totals.by_class}

    def finish(self) -> None:
        self.say("the end")
        self.oracle.check(self.driver.observe(), "none", self.now_ms())
        self.driver.abandon()


def shown(config: TopicConfig) -> str:
    kept = f" kept {config.retain_bytes_max}" if config.retain_until_archived else ""
    return f"{config.durability} {config.discard} ttl={config.ttl_ms} cap={config.cap_records}" + (
        f"/{config.cap_bytes}{kept}"
    )


def check_tombstone(topic: TopicModel, page: Page, start: int) -> int:
    """What a reader at `start` is told is what it must be told; returns where records begin."""
    told = page.tombstone
    seen = None if told is None else (told.gap_from, told.gap_to)
    if start > topic.head:
        assert seen == (1, topic.head)
        assert told is not None and told.reason == "recreated"
        return topic.earliest_seq - 1
    if start < topic.evict_floor:
        assert seen == (start + 1, topic.evict_floor)
        assert told is not None and told.reason in ("cap", "ttl", "mixed")
        return topic.evict_floor
    for first, last in topic.gaps:
        if last > start and not any(start < seq < first for seq in topic.live):
            assert seen == (max(first, start + 1), last)
            assert told is not None and told.reason == "crash"
            return last
    assert told is None
    return start


def check_page(
    topic: TopicModel,
    page: Page,
    cursor: int,
    limit: int,
    bytes_max: int,
    nodes: tuple[str, ...],
) -> None:
    """A page is the longest run of wanted records that fits, and says where to go on."""
    excluded = nodes if topic.config.dedupe_node else ()
    end = min([topic.head, *(first - 1 for first, _ in topic.gaps if first > cursor)])
    wanted = [
        seq
        for seq, rec in sorted(topic.live.items())
        if cursor < seq <= end and (rec.node is None or rec.node not in excluded)
    ]
    records = page.records
    count = len(records)
    assert [record.seq for record in records] == wanted[:count]
    for r in records:
        seen = Rec(r.data, r.tag, r.node, r.meta, r.ts, r.append_first_seq)
        assert seen == topic.live[r.seq]
    size = sum(topic.live[seq].size for seq in wanted[:count])
    assert count <= limit
    assert size <= bytes_max or count == 1
    assert page.head_seq == topic.head
    if count < len(wanted):
        following = topic.live[wanted[count]].size
        full = count == limit or size >= bytes_max or size + following > bytes_max
        assert full, "the page could hold one more record"
        assert count or not limit, "a read of one record or more gives at least one"
        assert page.next_from_seq < wanted[count]
    elif count < limit and size < bytes_max:
        assert page.next_from_seq == max(end, cursor)
    if records:
        assert page.next_from_seq >= records[-1].seq


def run(seed: int, calls: int) -> Lockstep:
    """Make so many calls, as the seed says; the run as it ended."""
    lockstep = Lockstep(seed)
    try:
        for _ in range(calls):
            lockstep.step()
        lockstep.finish()
    except Exception as error:
        before = "\n  ".join(lockstep.log[-12:])
        raise AssertionError(
            f"seed {seed}, call {len(lockstep.log)}: {error}\n  {before}"
        ) from error
    return lockstep
