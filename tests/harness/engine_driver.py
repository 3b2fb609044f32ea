"""Drives one engine on a simulated disk, and notes every call and answer where it happened.

Only this file turns an engine's answers into the oracle's events.  Each event is a mark in the
disk's trace, so that for a crash at any position it is known exactly what had been asked and what
had been acknowledged.  Everything runs in one thread; dice say whether a lone commit is synced at
once or by a lane, and for some workloads which lane goes next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from headrace.api.records import DeleteResult
from headrace.core.clock import Clock, ManualClock, SeededRandom
from headrace.core.errors import HeadraceError
from headrace.core.limits import KIB, MIB
from headrace.core.runtime import Done, StepRuntime, Ticket
from headrace.core.settings import Settings
from headrace.engine.appending.admission import Append
from headrace.engine.appending.pending_append import Appended, PendingAppend
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.engine import Engine
from headrace.engine.reading.page import Page
from headrace.engine.removal.watermark import ArchivedTo
from headrace.engine.topics.config import TopicConfig
from headrace.engine.topics.lifecycle import Deleted, Put
from headrace.storage.block import KIND_BYTES, Batch
from headrace.storage.files.merge_policy import MergePolicy
from headrace.storage.files.store import DirectoryStore
from headrace.storage.fs import File, Filesystem, Lock
from headrace.testing.diskmodel import Dice
from headrace.testing.simdisk import SimDisk
from tests.harness import model
from tests.harness.events import (
    Answer,
    Answered,
    Event,
    Failed,
    Invoked,
    Quiet,
    TopicView,
    Violation,
)
from tests.harness.model import NewRecord, Producer, Rec, merged

# As small as it goes, so that every mechanism is reached within a few hundred disk calls.
SMALL = Settings(
    wal_file_bytes=64 * KIB,
    wal_batch_bytes_max=16 * KIB,
    memory_budget_bytes=MIB,
    read_cache_bytes=256 * KIB,
    tag_index_bytes_max=64 * KIB,
    disk_reserve_bytes=64 * KIB,
)
COLD = "cold"
# Longer than the background sync of the classes that do not wait for one.
SETTLE_MS = 60
PAGES_MAX = 100_000
T = TypeVar("T")


@dataclass(frozen=True)
class Setup:
    """How an engine is opened; the same before and after a crash unless a test says otherwise."""

    settings: Settings = SMALL
    policy: MergePolicy = field(default_factory=MergePolicy)
    cold: bool = False
    cached: bool = True  # False: every read of a file goes through the reader lane
    shuffled: bool = False  # lanes take turns by the dice
    idle_in: int = 8  # the loop is busy once in so many times that it is asked


class DicedRuntime(StepRuntime):
    """Whether the loop has nothing else to do, and may sync by itself, is chosen by dice."""

    def __init__(self, clock: Clock, dice: Dice, idle_in: int) -> None:
        super().__init__(clock)
        self._dice = dice
        self._idle_in = idle_in

    def idle(self) -> bool:
        return self._dice.below(self._idle_in) > 0


class ShuffledRuntime(DicedRuntime):
    """Everything in one thread, but which lane goes next is chosen by dice.

    The jobs of a lane run in order, one at a time, and what they report is a step of its own, as
    with real threads.
    """

    def __init__(self, clock: Clock, dice: Dice, idle_in: int) -> None:
        super().__init__(clock, dice, idle_in)
        self._lanes: dict[str, deque[tuple[Callable[[], object], Done]]] = {}

    def submit(self, lane: str, work: Callable[[], object], done: Done) -> None:
        self._lanes.setdefault(lane, deque()).append((work, done))

    def step(self) -> bool:
        busy = [lane for lane, jobs in self._lanes.items() if jobs]
        choices = len(busy) + bool(self._ready)
        if not choices:
            return super().step()
        chosen = self._dice.below(choices)
        if chosen == len(busy):
            return super().step()
        self._work(self._lanes[busy[chosen]])
        return True

    def _work(self, jobs: deque[tuple[Callable[[], object], Done]]) -> None:
        work, done = jobs.popleft()
        try:
            value, error = work(), None
        except Exception as failure:  # noqa: BLE001 - as the real lanes do
            value, error = None, failure
        self._ready.append(lambda: done(value, error))

    def drain(self) -> None:
        while self._ready or any(self._lanes.values()):
            self.step()

    def close(self) -> None:
        super().close()
        self._lanes.clear()


class Subtree:
    """A directory of a filesystem as a filesystem.

    The cold tier of a simulated machine lies on the same disk as the hot one, so that one trace
    holds the calls on both in the order they happened, and a crash can fall between any two.
    """

    def __init__(self, fs: Filesystem, root: str) -> None:
        self._fs = fs
        self._root = root

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def create(self, path: str, *, private: bool = False) -> File:
        return self._fs.create(self._at(path), private=private)

    def open(self, path: str) -> File:
        return self._fs.open(self._at(path))

    def open_read(self, path: str) -> File:
        return self._fs.open_read(self._at(path))

    def exists(self, path: str) -> bool:
        return self._fs.exists(self._at(path))

    def listdir(self, path: str) -> list[str]:
        return self._fs.listdir(self._at(path))

    def mkdir(self, path: str) -> None:
        self._fs.mkdir(self._at(path))

    def rename(self, source: str, target: str) -> None:
        self._fs.rename(self._at(source), self._at(target))

    def unlink(self, path: str) -> None:
        self._fs.unlink(self._at(path))

    def sync_dir(self, path: str) -> None:
        self._fs.sync_dir(self._at(path))

    def lock(self, path: str) -> Lock:
        return self._fs.lock(self._at(path))

    def free_bytes(self) -> int:
        return self._fs.free_bytes()

    def total_bytes(self) -> int:
        return self._fs.total_bytes()

    def boot_id(self) -> bytes:
        return self._fs.boot_id()

    def describe(self, path: str) -> str:
        return self._fs.describe(self._at(path))


class Driver:
    """One run of an engine on one disk."""

    def __init__(self, disk: SimDisk, setup: Setup, clock: ManualClock, seed: int) -> None:
        self.disk = disk
        self.clock = clock
        self.setup = setup
        self.dice = Dice(seed, 0xD1CE)
        self.on_event: Callable[[Event], None] = lambda _event: None
        disk.cached = setup.cached
        runtime = ShuffledRuntime if setup.shuffled else DicedRuntime
        self.runtime = runtime(clock, Dice(seed, 0x5C4ED), setup.idle_in)
        cold = None
        if setup.cold:
            fs = Subtree(disk, COLD)
            fs.mkdir("")
            cold = DirectoryStore(fs)
        self.engine = Engine(
            disk,
            self.runtime,
            setup.settings,
            random=SeededRandom(seed),
            cold=cold,
            policy=setup.policy,
        )
        self._ops = 0

    def recover(self) -> None:
        self.engine.recover()

    # Calls.  Each may be left in flight; `settle` and `finish` bring them home.

    def put(self, name: str, config: TopicConfig) -> Ticket[Put]:
        return self._call(model.PutCall(name, config), lambda: self.engine.put_topic(name, config))

    def append(
        self,
        name: str,
        *records: NewRecord | bytes,
        key: str | None = None,
        producer: Producer | None = None,
        expected_head: int | None = None,
        create: bool | None = None,
        config: TopicConfig | None = None,
    ) -> Ticket[Appended]:
        news = tuple(NewRecord(r) if isinstance(r, bytes) else r for r in records)
        call = model.AppendCall(name, news, key, producer, expected_head, create, config)
        claim = ProducerClaim(*producer) if producer is not None else None
        return self._call(
            call,
            lambda: self.engine.append(
                name,
                batch_of(news),
                config=config,
                create=create,
                idempotency_key=key,
                producer=claim,
                expected_head_seq=expected_head,
            ),
        )

    def append_turn(self, *asked: tuple[str, NewRecord, TopicConfig]) -> None:
        """Append a record to each of these topics, as a turn of the loop that ends here."""
        appends = [
            PendingAppend(self.runtime, name, batch_of((record,)), Append(config))
            for name, record, config in asked
        ]
        for (name, record, config), pending in zip(asked, appends, strict=True):
            call = model.AppendCall(name, (record,), None, None, None, None, config)
            self._call(call, partial(_same, pending))
        self.engine.append_all(appends, lambda _done: None, ends_turn=True)

    def delete(
        self, name: str, before_seq: int | None = None, match: str | None = None
    ) -> Ticket[DeleteResult]:
        call = model.DeleteCall(name, before_seq, match)
        return self._call(
            call, lambda: self.engine.delete(name, before_seq=before_seq, match=match)
        )

    def drop(self, name: str) -> Ticket[Deleted]:
        return self._call(model.DropCall(name), lambda: self.engine.delete_topic(name))

    def archived(self, name: str, to_seq: int) -> Ticket[ArchivedTo]:
        """Tell the topic of this name, as it is now, how far it is archived."""
        topic = self.engine.state.by_name.get(name)
        epoch = topic.epoch if topic is not None else 0
        told = self.engine.archives.told
        return self._call(model.ArchiveCall(name, to_seq), lambda: told(name, epoch, to_seq))

    def checkpoint(self) -> Ticket[None]:
        return self._call(model.CheckpointCall(), self.engine.checkpoint)

    def govern(self, pressure: float) -> None:
        """Be under so much pressure: what has to be synced waits for more to join it."""
        self.engine.state.throttle.govern(pressure)

    def _call(self, call: model.Call, run: Callable[[], Ticket[T]]) -> Ticket[T]:
        self._ops += 1
        op = self._ops
        self._note(Invoked(op, call, self.engine.state.clock.now_ms()))
        ticket = run()
        ticket.when_done(lambda done: self._note(_outcome(op, done)))
        return ticket

    def _note(self, event: Event) -> None:
        self.disk.mark(event)
        self.on_event(event)

    # Time

    def steps(self, count: int) -> None:
        """Let so many things happen."""
        for _ in range(count):
            if not self.runtime.step():
                return

    def finish(self) -> None:
        """Let everything happen that needs no time to pass."""
        self.runtime.run()

    def settle(self) -> None:
        """Let the background sync come round, and note that it did."""
        self.finish()
        self.clock.advance(SETTLE_MS)
        self.finish()
        self._note(Quiet())

    # Looking

    def observe(self) -> dict[str, TopicView]:
        """Every topic as its readers see it from the start."""
        return {info.topic: self._view(info.topic) for info in self.engine.topics()}

    def _view(self, name: str) -> TopicView:
        records: dict[int, Rec] = {}
        crashed, evicted, cursor = [], 0, 0
        for _ in range(PAGES_MAX):
            page = self.read(name, cursor)
            told = page.tombstone
            if told is not None and told.reason == "crash":
                crashed.append((told.gap_from, told.gap_to))
            elif told is not None:
                if cursor or told.gap_from != 1:
                    raise Violation(f"{name}: {told} at cursor {cursor}")
                evicted = told.gap_to
            records.update(_records(page, cursor))
            if page.next_from_seq >= page.head_seq:
                break
            if page.next_from_seq <= cursor:
                raise Violation(f"{name}: a read from {cursor} does not get on")
            cursor = page.next_from_seq
        info = self.engine.topic(name)
        if info.head_seq != page.head_seq or page.next_from_seq != page.head_seq:
            raise Violation(f"{name}: head {info.head_seq}, read to {page.next_from_seq}")
        return TopicView(
            name, info.epoch, info.head_seq, info.earliest_seq, info.count, info.bytes,
            info.config, records, merged(crashed), evicted, info.archived_seq,
            info.overtaken_seq,
        )  # fmt: skip

    def read(self, name: str, cursor: int, limit: int = 1_000) -> Page:
        return self.engine.read(name, cursor, limit=limit).result()

    def abandon(self) -> None:
        self.engine.abandon()


def batch_of(records: Sequence[NewRecord]) -> Batch:
    """Records as the engine takes them."""
    tags = [r.tag for r in records]
    nodes = [r.node for r in records]
    metas = [r.meta for r in records]
    return Batch(
        [r.data for r in records],
        KIND_BYTES,
        tags if any(t is not None for t in tags) else None,
        nodes if any(n is not None for n in nodes) else None,
        metas if any(m is not None for m in metas) else None,
    )


def _records(page: Page, cursor: int) -> dict[int, Rec]:
    found: dict[int, Rec] = {}
    for record in page.records:
        if not cursor < record.seq <= page.next_from_seq:
            raise Violation(f"{page.topic}: seq {record.seq} out of order after {cursor}")
        cursor = record.seq
        if record.kind != KIND_BYTES or record.headers is not None:
            raise Violation(f"{page.topic}: {record} has a kind or headers nobody gave it")
        found[cursor] = Rec(
            record.data, record.tag, record.node, record.meta, record.ts, record.append_first_seq
        )
    return found


def _outcome(op: int, done: Ticket[T]) -> Event:
    error = done.error
    if error is None:
        return Answered(op, _answer(done.result()))
    if not isinstance(error, HeadraceError):
        raise Violation(f"call {op} failed with {error!r}") from error
    return Failed(op, error.code, error.detail.get("outcome") == "unknown")


def _answer(result: object) -> Answer:
    if isinstance(result, Appended):
        return Answer(
            result.epoch, result.first_seq, result.count, result.head_seq, result.deduped, result.ts
        )
    if isinstance(result, DeleteResult):
        return Answer(0, 0, result.deleted, result.head_seq)
    if isinstance(result, ArchivedTo):
        return Answer(result.epoch, result.archived_seq, 0, result.head_seq)
    return Answer(result.epoch if isinstance(result, Put) else 0)


def _same(pending: PendingAppend) -> Ticket[Appended]:
    return pending
