"""Actors that ask things of a server whose machine loses power: topics, queues and their settings.

Each owns what it writes, asks for one thing at a time, and after a power loss says whether
what it was told still holds.  An answer counts; a call without one may have been done or not.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from typing import Any, Final

from headrace.client import Client, Draft
from headrace.core.errors import TopicNotFound
from headrace.testing.process import ServerProcess
from tests.harness.events import Violation
from tests.harness.power_history import History, State

PATIENCE_MS: Final = 60_000
PAGE: Final = 1_000
PAD_MAX: Final = 200
CAP_RECORDS: Final = 40
LEASE_MS: Final = 600_000
CLAIM: Final = 6  # jobs at once
CLAIM_MAX: Final = 500
TAGS: Final = ("a", "b", "c")


class Lost(Exception):
    """The call has no answer that says what became of it."""


class Actor(ABC):
    """One thread of load."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.chance = random.Random(f"{seed} {name}")
        self.failed: tuple[int, Exception] | None = None  # when (monotonic ns), why
        self.steps = 0
        self.life = 0
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    def live(self, server: ServerProcess, stop: threading.Event) -> None:
        """Ask until the server is gone."""
        self.failed = None
        self.life += 1
        with Client(server.url, deadline_ms=0, random_keys=False) as self._client:
            try:
                while not stop.is_set():
                    self.step()
                    self.steps += 1
            except Exception as error:  # noqa: BLE001 - whoever started it says what it means
                self.failed = (time.monotonic_ns(), error)

    def judge(self, server: ServerProcess) -> int:
        """Raise a `Violation` if a promise is broken; returns how many records were compared."""
        with Client(server.url, deadline_ms=PATIENCE_MS) as self._client:
            try:
                return self.check()
            except Violation as violation:
                raise Violation(f"{self.name}: {violation}") from None

    @abstractmethod
    def step(self) -> None: ...

    @abstractmethod
    def check(self) -> int: ...

    def text(self, row: int = 0) -> str:
        """A payload that no other record has."""
        pad = "x" * self.chance.randrange(PAD_MAX)
        return f"{self.name}:{self.life}:{self.steps}:{row}:{pad}"

    def texts(self, most: int) -> list[str]:
        return [self.text(row) for row in range(self.chance.randint(1, most))]


class Found:
    """All that can be read of a topic."""

    def __init__(self, client: Client, topic: str) -> None:
        self.records: dict[int, tuple[Any, str | None]] = {}
        self.crashed: list[tuple[int, int]] = []
        cursor = 0
        while True:
            page = client.diff(topic, cursor, limit=PAGE)
            gone = page.tombstone
            if gone is not None and gone.reason not in ("cap", "crash"):
                raise Violation(f"announces {gone}")
            if gone is not None and gone.reason == "crash":
                self.crashed.append((gone.gap_from, gone.gap_to))
            for record in page.records:
                if record.seq in self.records:
                    raise Violation(f"seq {record.seq} is read twice")
                self.records[record.seq] = (record.data, record.tag)
            cursor = page.next_from_seq
            if page.caught_up:
                break
        state = client.topic(topic)
        self.head, self.earliest = state.head_seq, state.earliest_seq
        self.archived = state.archived_seq
        if state.count != len(self.records):
            raise Violation(f"counts {state.count} records, {len(self.records)} can be read")

    def announced(self, first: int, last: int) -> bool:
        """Whether readers are told that all of these seqs are lost."""
        return all(any(a <= seq <= b for a, b in self.crashed) for seq in range(first, last + 1))


def difference(found: dict[Any, Any], due: dict[Any, Any]) -> str:
    """In words, briefly."""
    missing = sorted(due.keys() - found.keys())
    extra = sorted(found.keys() - due.keys())
    changed = sorted(key for key in due.keys() & found.keys() if due[key] != found[key])
    return (
        f"missing {missing[:3]} of {len(missing)}, not due {extra[:3]} of {len(extra)}, "
        f"changed {[(key, found[key], due[key]) for key in changed[:1]]} of {len(changed)}"
    )


class TopicActor(Actor):
    """One writer of one topic: appends, under keys now and then, and deletes."""

    def __init__(self, name: str, seed: int, durability: str, *, cap: int = 0) -> None:
        super().__init__(name, seed)
        self.config: dict[str, object] = {"durability": durability, "cap_records": cap}
        self.cap = cap
        self.history = History({"records": {}, "head": 0}, lossy=durability != "fsync")
        self.head = 0
        self.lost = 0
        self._created = False
        self._keyed: tuple[str, list[Draft], int] | None = None  # the last: key, records, seq

    def step(self) -> None:
        if not self._created:
            self.client.put_topic(self.name, self.config)
            self._created = True
        kind = self.chance.random()
        if kind < 0.9 or self.cap:
            self._append()
        elif kind < 0.95:
            self._delete_tag(self.chance.choice(TAGS))
        else:
            self._delete_before(self.head - self.chance.randrange(60))

    def _append(self) -> None:
        drafts = [Draft(text, tag=self.chance.choice(TAGS)) for text in self.texts(8)]
        key = f"{self.name} {self.life} {self.steps}" if self.chance.random() < 0.2 else None
        first = self.head + 1
        if key is not None:
            self._keyed = (key, drafts, first)
        self.history.begin(lambda state: self._appended(state, first, drafts))
        answer = self.client.append(self.name, drafts, idempotency_key=key)
        if answer.first_seq != first or answer.deduped:
            raise Violation(f"{self.name}: the head is {self.head}, and the answer {answer}")
        self.head = first + len(drafts) - 1
        self.history.done()

    def _appended(self, state: State, first: int, drafts: list[Draft]) -> None:
        records = state["records"]
        for seq, draft in enumerate(drafts, first):
            records[seq] = (draft.data, draft.tag)
        state["head"] = first + len(drafts) - 1
        if self.cap:
            for seq in [seq for seq in records if seq <= state["head"] - self.cap]:
                del records[seq]

    def _delete_tag(self, tag: str) -> None:
        def change(state: State) -> None:
            for seq in [seq for seq, (_, own) in state["records"].items() if own == tag]:
                del state["records"][seq]

        self.history.begin(change)
        self.client.delete_records(self.name, match=tag)
        self.history.done()

    def _delete_before(self, before: int) -> None:
        def change(state: State) -> None:
            for seq in [seq for seq in state["records"] if seq < before]:
                del state["records"][seq]

        if before > 0:
            self.history.begin(change)
            self.client.delete_records(self.name, before_seq=before)
            self.history.done()

    def check(self) -> int:
        try:
            found = Found(self.client, self.name)
        except TopicNotFound:
            if self._created:
                raise Violation("the topic is gone") from None
            return 0
        self._created = True
        self.lost += self.history.judge(lambda state: self._compare(found, state))
        if found.head < self.head:
            raise Violation(f"the head is {found.head}, seq {self.head} was acknowledged")
        self.head = self.history.base["head"] = found.head
        self._repeat(found)
        return len(found.records)

    def _compare(self, found: Found, state: State) -> str | None:
        if found.records != state["records"]:
            return difference(found.records, state["records"])
        if found.head == state["head"]:
            return None
        if not self.history.lossy:
            return f"the head is {found.head}, {state['head']} was due; {found.crashed}"
        if not found.announced(state["head"] + 1, found.head):
            return f"seqs {state['head'] + 1} to {found.head} are lost, told is {found.crashed}"
        return None

    def _repeat(self, found: Found) -> None:
        """The last append under a key, again: what is stored is stored once."""
        if self._keyed is None:
            return
        key, drafts, first = self._keyed
        self._keyed = None
        known = first <= found.head and not found.announced(first, first)
        answer = self.client.append(self.name, drafts, idempotency_key=key)
        if answer.deduped != known or (known and answer.first_seq != first):
            raise Violation(f"{key} was sent again; it was at {first}: {known}, now {answer}")
        if not known:
            self._appended(self.history.base, self.head + 1, drafts)
            self.head += len(drafts)


class SharedTopic:
    """What several writers were told of one topic, whose appends share syncs."""

    def __init__(self, name: str, durability: str) -> None:
        self.name = name
        self.config = {"durability": durability}
        self.lossy = durability != "fsync"
        self.lock = threading.Lock()
        self.kept: dict[int, str] = {}
        self.head = 0
        self.acked: dict[int, list[str]] = {}
        self.maybe: list[list[str]] = []
        self.lost = 0

    def judge(self, found: Found) -> None:
        """What is there is what was kept, then whole batches up to a point."""
        records = {seq: data for seq, (data, _) in found.records.items()}
        before = {seq: data for seq, data in records.items() if seq <= self.head}
        if before != self.kept:
            raise Violation(difference(before, self.kept))
        seq = self.head + 1
        while seq in records:
            batch = self.acked.pop(seq, None)
            if batch is None:
                batch = next((one for one in self.maybe if one[0] == records[seq]), None)
                if batch is None:
                    raise Violation(f"seq {seq} is {records[seq]!r}, which nobody wrote there")
                self.maybe.remove(batch)
            there = [records.get(seq + row) for row in range(len(batch))]
            if there != batch:
                raise Violation(f"from seq {seq} on there is {there}, not {batch}")
            seq += len(batch)
        if any(later >= seq for later in records):
            raise Violation(f"seq {seq} is missing, and later ones are there")
        if self.acked and not self.lossy:
            raise Violation(f"acknowledged and gone: {sorted(self.acked)}, the end is {seq}")
        lost_to = max((first + len(rows) - 1 for first, rows in self.acked.items()), default=0)
        if found.head < max(seq - 1, lost_to):
            raise Violation(f"the head is {found.head}, {lost_to} was acknowledged")
        if found.head >= seq and not (self.lossy and found.announced(seq, found.head)):
            raise Violation(f"from {seq} to {found.head} nothing is there: {found.crashed}")
        self.lost += len(self.acked)
        self.kept, self.head, self.acked, self.maybe = records, found.head, {}, []


class SharedWriter(Actor):
    """One of the writers; the first of them judges for all."""

    def __init__(self, topic: SharedTopic, number: int, seed: int) -> None:
        super().__init__(f"{topic.name}-{number}", seed)
        self.topic = topic
        self._first = number == 0

    def step(self) -> None:
        topic = self.topic
        batch = self.texts(6)
        with topic.lock:
            topic.maybe.append(batch)
        answer = self.client.append(topic.name, batch, config=topic.config)
        assert answer.first_seq is not None
        with topic.lock:
            topic.maybe.remove(batch)
            if topic.acked.setdefault(answer.first_seq, batch) is not batch:
                raise Violation(f"{topic.name}: seq {answer.first_seq} was given twice")

    def check(self) -> int:
        if not self._first:
            return 0
        try:
            found = Found(self.client, self.topic.name)
        except TopicNotFound:
            if self.topic.acked or self.topic.head:
                raise Violation("the topic is gone") from None
            return 0
        self.topic.judge(found)
        return len(found.records)


class QueueActor(Actor):
    """Jobs of a queue: appended, claimed, given back, done."""

    def __init__(self, name: str, seed: int, *, leases_durable: bool) -> None:
        super().__init__(name, seed)
        self.durable = leases_durable
        self.history = History({"jobs": {}, "held": set(), "head": 0})
        self.head = 0
        self._created = False
        self._held: list[Any] = []

    def step(self) -> None:
        if not self._created:
            config = {"type": "queue", "durability": "fsync", "leases_durable": self.durable}
            self.client.put_topic(self.name, config)
            self._created = True
        kind = self.chance.random()
        if kind < 0.3:
            self._append()
        elif kind < 0.6 or not self._held:
            self._claim()
        else:
            self._end(done=kind < 0.9)

    def _append(self) -> None:
        texts, first = self.texts(8), self.head + 1

        def change(state: State) -> None:
            state["jobs"].update(enumerate(texts, first))
            state["head"] = first + len(texts) - 1

        self.history.begin(change)
        answer = self.client.append(self.name, texts)
        if answer.first_seq != first:
            raise Violation(f"{self.name}: the head is {self.head}, and the answer {answer}")
        self.head += len(texts)
        self.history.done()

    def _claim(self) -> None:
        jobs = self.client.claim(self.name, "worker", CLAIM, lease_ms=LEASE_MS).jobs
        seqs = {job.seq for job in jobs}
        # A claim without an answer holds jobs that nobody knows of; `check` takes that for all.
        self.history.begin(lambda state: state["held"].update(seqs))
        self.history.done()
        self._held += jobs

    def _end(self, *, done: bool) -> None:
        jobs = self._held[: self.chance.randint(1, 6)]
        seqs = {job.seq for job in jobs}

        def change(state: State) -> None:
            state["held"] -= seqs
            for seq in seqs if done else ():
                del state["jobs"][seq]

        self.history.begin(change)
        call = self.client.ack if done else self.client.nack
        answer = call(self.name, "worker", jobs)
        if answer.skipped:
            raise Violation(f"{self.name}: leases were live, and {answer.skipped} are skipped")
        self.history.done()
        del self._held[: len(jobs)]

    def check(self) -> int:
        try:
            found = Found(self.client, self.name)
        except TopicNotFound:
            if self._created:
                raise Violation("the queue is gone") from None
            return 0
        self._created = True
        jobs = {seq: data for seq, (data, _) in found.records.items()}

        def compare(state: State) -> str | None:
            if found.head != state["head"]:
                return f"the head is {found.head}, {state['head']} was due"
            return None if jobs == state["jobs"] else difference(jobs, state["jobs"])

        self.history.judge(compare)
        base = self.history.base
        self.head = found.head
        self._check_leases(base)
        return len(jobs)

    def _check_leases(self, base: State) -> None:
        """Another worker gets what nobody holds; the holder can go on where leases are durable."""
        other: list[Any] = []
        while more := self.client.claim(self.name, "other", CLAIM_MAX, lease_ms=LEASE_MS).jobs:
            other += more
        taken = {job.seq for job in other}
        held = base["held"] & base["jobs"].keys()
        if self.durable and taken & held:
            raise Violation(f"{sorted(taken & held)[:5]} were leased, and are given to another")
        free = base["jobs"].keys() - (held if self.durable else set())
        # What an unanswered claim took is leased to a worker that does not know.
        unknown = CLAIM if self.durable else 0
        if len(free - taken) > unknown:
            raise Violation(f"{sorted(free - taken)[:5]} cannot be claimed by anybody")
        for at in range(0, len(other), CLAIM_MAX):
            self.client.nack(self.name, "other", other[at : at + CLAIM_MAX])
        self._held = [job for job in self._held if job.seq in held] if self.durable else []
        base["held"] = {job.seq for job in self._held}
        if not self.durable or not free - taken:
            return
        self.client.nack(self.name, "worker", sorted(free - taken))


class ConfigActor(Actor):
    """Topics that come, change and go."""

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name, seed)
        self.history = History({})

    def step(self) -> None:
        topic = f"{self.name}-{self.chance.randrange(12)}"
        if self.chance.random() < 0.3:
            self.history.begin(lambda state: state.pop(topic, None))
            try:
                self.client.delete_topic(topic)
            except TopicNotFound:
                self.history.undone()
                return
        else:
            cap = self.chance.randrange(1, 1 << 40)
            self.history.begin(lambda state: state.update({topic: cap}))
            self.client.put_topic(topic, {"cap_bytes": cap, "durability": "disk"})
        self.history.done()

    def check(self) -> int:
        found = {
            summary.topic: self.client.topic(summary.topic).config["cap_bytes"]
            for summary in self.client.topics(f"{self.name}-")
        }
        self.history.judge(lambda state: None if state == found else difference(found, state))
        return len(found)
