"""What was acknowledged, and whether an engine that was stopped and started still has it.

Only this file judges a restart after process death.  It follows a `Traffic` by what was begun,
acknowledged and refused, and compares with everything that can be read afterwards: nothing
acknowledged is missing or changed, nothing is there that was not written, a batch is there whole or
not at all, seqs are dense, no deleted record is back, the head is exact, no key or producer stores
twice.  It does not judge power loss, which may take what a class does not promise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.storage.block import Record
from tests.harness.traffic import (
    APPEND,
    CAP_RECORDS,
    CAPPED,
    DELETE_BEFORE,
    DELETE_TAG,
    DROP,
    EPHEMERAL,
    Op,
    TopicDump,
    Traffic,
    origin_of,
)


class Stored(NamedTuple):
    """The fields of a record that never change."""

    ts: int
    data: bytes
    tag: str | None
    node: str | None
    meta: bytes | None
    append_first_seq: int


class Acked(NamedTuple):
    """What an append was answered; a producer's repeat without seqs if they are forgotten."""

    epoch: int
    first_seq: int | None
    last_seq: int | None
    ts: int
    deduped: bool = False


class Begun(NamedTuple):
    """An operation without a definite answer, with the seq it named if any."""

    op: Op
    before_seq: int


# The run and the number of an operation.
Name = tuple[int, int]


@dataclass
class _Topic:
    epoch: int = 0
    head: int = 0
    records: dict[int, Stored] = field(default_factory=dict)
    begun: dict[Name, Begun] = field(default_factory=dict)  # in the order of beginning


class Violation(AssertionError):
    """A promise was broken."""


class Ledger:
    """The expected contents of one data directory over many runs.

    `timed`: answers tell the time of an append, and reads the first seq of the append that a record
    came with; over HTTP they do not.
    """

    def __init__(self, seed: int, *, timed: bool = True) -> None:
        self.seed = seed
        self._timed = timed
        self.acked_records = 0
        self.unsettled_kept = 0  # appends that had no answer and turned out to be stored
        self.unsettled_lost = 0
        self._topics: dict[str, _Topic] = {}
        self._traffic: dict[int, Traffic] = {}
        # Appends under a key or a producer, by (run, number): their first seq, 0 when not stored.
        self._guarded: dict[Name, int] = {}

    def op(self, run: int, number: int) -> Op:
        if run not in self._traffic:
            self._traffic[run] = Traffic(self.seed, run)
        return self._traffic[run][number]

    def _topic(self, name: str) -> _Topic:
        return self._topics.setdefault(name, _Topic())

    # What the traffic says

    def began(self, op: Op, before_seq: int = 0) -> None:
        if op.kind in (APPEND, DELETE_BEFORE, DELETE_TAG, DROP):
            self._topic(op.topic).begun[op.name] = Begun(op, before_seq)

    def refused(self, op: Op, *, unknown: bool) -> None:
        """The operation failed; for good, unless its outcome is unknown."""
        if not unknown and op.topic:
            self._topic(op.topic).begun.pop(op.name, None)

    def appended(self, op: Op, answer: Acked) -> None:
        topic = self._topic(op.topic)
        topic.begun.pop(op.name, None)
        self._check(not answer.deduped, op, f"answered as stored before: {answer}")
        first, last = answer.first_seq, answer.last_seq
        assert first is not None and last is not None, answer
        self._check(last - first + 1 == op.rows, op, f"gave {answer}")
        self._store(topic, op, answer, first)

    def _store(self, topic: _Topic, op: Op, answer: Acked, first: int) -> None:
        if topic.epoch and answer.epoch != topic.epoch:
            self._check(not topic.records, op, "a new topic took the place of a live one")
            self._check(answer.epoch > topic.epoch, op, "an epoch went backwards")
            topic.head = 0
        topic.epoch = answer.epoch
        self._check(first == topic.head + 1, op, f"seqs skip: {topic.head}, {answer}")
        topic.head = first + op.rows - 1
        self.acked_records += op.rows
        for seq, stored in self._rows_of(op, first, answer.ts):
            topic.records[seq] = stored
        if op.key is not None or op.claim is not None:
            self._guarded[op.name] = first

    def deleted(self, op: Op, count: int) -> None:
        topic = self._topic(op.topic)
        begun = topic.begun.pop(op.name)
        gone = _named_by(begun, topic)
        self._check(count == len(gone), op, f"deleted {count} records, {len(gone)} matched")
        for seq in gone:
            del topic.records[seq]

    def dropped(self, op: Op, there: bool) -> None:
        topic = self._topic(op.topic)
        topic.begun.pop(op.name, None)
        self._check(there or not topic.head, op, "said that there was no such topic")
        topic.records.clear()
        topic.head = 0

    def to_retry(self, pick: Callable[[list[Name]], list[Name]]) -> list[Name]:
        """Appends under a key or a producer to send once more, in order.

        All that are not stored, and those that `pick` takes of the others.  Of producers only the
        newest epoch, because older ones are refused.  An append that no restart has settled yet
        counts too: it may be in the log, and then it has fenced off what came before it.
        """
        unsettled = [name for topic in self._topics.values() for name in topic.begun]
        claims = (run for run, n in [*self._guarded, *unsettled] if self.op(run, n).claim)
        epoch = max(claims, default=0)
        stored: list[Name] = []
        lost: list[Name] = []
        for (run, number), first in self._guarded.items():
            if self.op(run, number).claim is None or run == epoch:
                (stored if first else lost).append((run, number))
        return sorted(lost + pick(stored))

    def retrying(self, run: int, number: int) -> None:
        """An append under a key or a producer is about to be sent once more."""
        if not self._guarded[run, number]:
            self.began(self.op(run, number))

    def retried(self, run: int, number: int, answer: Acked) -> None:
        """The answer to that."""
        op = self.op(run, number)
        first = self._guarded[run, number]
        if first:
            self._check(answer.deduped, op, f"was stored at {first} and is stored again: {answer}")
            forgotten = op.key is None and answer.first_seq is None
            right = answer.first_seq == first or forgotten
            self._check(right, op, f"was at {first}, answered {answer}")
        else:
            self.appended(op, answer)

    def _check(self, right: bool, op: Op, wrong: str) -> None:
        if not right:
            raise Violation(f"seed {self.seed}, {op}: {wrong}")

    # What a restart shows

    def compare(self, found: Mapping[str, TopicDump], *, live: bool = False) -> None:
        """Raise `Violation` unless `found` is what may be there; from then on it is what must be.

        `live`: the process still runs, so that ephemeral records are there, and nothing else is
        but what was acknowledged.
        """
        seen: set[tuple[int, int, int]] = set()
        for name in self._topics.keys() | found.keys():
            topic = self._topic(name)
            dump = found.get(name)
            try:
                if dump is None:
                    _absent(topic, live)
                elif name == EPHEMERAL and not live:
                    _forgotten(topic, dump)
                else:
                    self._compare(topic, dump, seen, live)
            except Violation as error:
                raise Violation(f"seed {self.seed}, topic {name}: {error}") from None

    def _compare(
        self, topic: _Topic, dump: TopicDump, seen: set[tuple[int, int, int]], live: bool
    ) -> None:
        records = {record.seq: self._stored(record) for record in dump.records}
        _expect(len(records) == len(dump.records), "a seq twice in one reading")
        _consistent(dump)
        for seq, stored in records.items():
            try:
                origin = origin_of(stored.data)
            except ValueError as error:
                raise Violation(f"seq {seq} holds {stored.data!r}: {error}") from None
            _expect(origin not in seen, f"{origin} is stored twice")
            seen.add(origin)
        if dump.epoch != topic.epoch:
            # A topic that was dropped and made anew without an answer.
            _expect(dump.epoch > topic.epoch, "an epoch went backwards")
            drops = any(begun.op.kind == DROP for begun in topic.begun.values())
            _expect(drops or not topic.records, "another topic took its place")
            topic.records, topic.head, topic.epoch = {}, 0, dump.epoch
        begun = {} if live else topic.begun
        extra = self._unsettled(begun, topic.head, dump, records)
        old = {seq: stored for seq, stored in records.items() if seq not in extra}
        _old_records(topic, begun, dump, old)
        topic.records, topic.head = records, dump.head
        if not live:
            topic.begun = {}

    def _unsettled(
        self,
        begun: Mapping[Name, Begun],
        head: int,
        dump: TopicDump,
        records: Mapping[int, Stored],
    ) -> set[int]:
        """Seqs above the acknowledged head: appends that were begun, in order, each whole."""
        extra: set[int] = set()
        for op in [one.op for one in begun.values() if one.op.kind == APPEND]:
            kept = head < dump.head
            if op.key is not None or op.claim is not None:
                self._guarded[op.name] = head + 1 if kept else 0
            if not kept:
                self.unsettled_lost += 1
                continue
            self.unsettled_kept += 1
            there = (seq for seq in range(head + 1, head + op.rows + 1) if seq in records)
            ts = next((records[seq].ts for seq in there), 0)
            for seq, stored in self._rows_of(op, head + 1, ts):
                extra.add(seq)
                evicted = dump.name == CAPPED and seq < dump.earliest
                same = records.get(seq) == stored
                _expect(same or evicted, f"seq {seq} of {op} is {records.get(seq)}")
            head += op.rows
        _expect(head == dump.head, f"the head is {dump.head}, {head} was expected")
        return extra

    def _rows_of(self, op: Op, first_seq: int, ts: int) -> Iterator[tuple[int, Stored]]:
        batch = op.batch()
        assert batch.nodes is None or isinstance(batch.nodes, str)
        place = first_seq if self._timed else 0
        for row, data in enumerate(batch.data):
            tag = batch.tags[row] if batch.tags is not None else None
            meta = batch.metas[row] if batch.metas is not None else None
            yield (
                first_seq + row,
                Stored(ts if self._timed else 0, data, tag, batch.nodes, meta, place),
            )

    def _stored(self, record: Record) -> Stored:
        ts, place = (record.ts, record.append_first_seq) if self._timed else (0, 0)
        return Stored(ts, record.data, record.tag, record.node, record.meta, place)

    def head_of(self, name: str) -> int:
        """The last seq that is known to be given."""
        return self._topic(name).head

    @property
    def records(self) -> int:
        """How many must be there."""
        return sum(len(topic.records) for topic in self._topics.values())


def _expect(right: bool, wrong: str) -> None:
    if not right:
        raise Violation(wrong)


def _named_by(begun: Begun, topic: _Topic) -> set[int]:
    """The seqs a delete takes, of what is there."""
    op = begun.op
    if op.kind == DELETE_BEFORE:
        return {seq for seq in topic.records if seq < begun.before_seq}
    if op.match.endswith("*"):
        prefix = op.match[:-1]
        return {
            s for s, r in topic.records.items() if r.tag is not None and r.tag.startswith(prefix)
        }
    return {seq for seq, stored in topic.records.items() if stored.tag == op.match}


def _absent(topic: _Topic, live: bool) -> None:
    drops = any(begun.op.kind == DROP for begun in topic.begun.values())
    gone = not topic.head or (drops and not live)
    _expect(gone, f"the topic is gone with {len(topic.records)} records")
    topic.records, topic.head = {}, 0
    if not live:
        topic.begun = {}


def _forgotten(topic: _Topic, dump: TopicDump) -> None:
    """Class ephemeral after a restart: no records, and no seq given out twice."""
    _expect(not dump.records, f"{len(dump.records)} records of class ephemeral are back")
    _expect(dump.head >= topic.head, f"the head fell from {topic.head} to {dump.head}")
    announced = not dump.head or any(reason == "crash" for _, _, reason in dump.lost)
    _expect(announced, f"the loss of {dump.head} records is not announced: {dump.lost}")
    topic.records, topic.head, topic.begun, topic.epoch = {}, dump.head, {}, dump.epoch


def _consistent(dump: TopicDump) -> None:
    """What a topic says of itself is what reading it gives."""
    _expect(dump.count == len(dump.records), f"count {dump.count}, {len(dump.records)} read")
    size = sum(len(record.data) + len(record.meta or b"") for record in dump.records)
    _expect(dump.bytes == size, f"bytes {dump.bytes}, {size} read")
    seqs = [record.seq for record in dump.records]
    _expect(seqs == sorted(set(seqs)), "seqs are not ascending")
    stamps = [record.ts for record in dump.records]
    _expect(stamps == sorted(stamps), "ts goes backwards")
    first = seqs[0] if seqs else dump.head + 1
    _expect(dump.earliest == first, f"earliest is {dump.earliest}, {first} is the first read")
    for _, _, reason in dump.lost if dump.name != EPHEMERAL else ():
        _expect(reason == "cap" and dump.name == CAPPED, f"announces a loss: {dump.lost}")


def _old_records(
    topic: _Topic,
    begun: Mapping[Name, Begun],
    dump: TopicDump,
    records: Mapping[int, Stored],
) -> None:
    """Seqs up to the acknowledged head: all there, but for caps and deletes without an answer."""
    for seq, stored in records.items():
        expected = topic.records.get(seq)
        _expect(expected is not None, f"seq {seq} is back from the dead, or was never written")
        _expect(expected == stored, f"seq {seq} was {expected}, now {stored}")
    missing = topic.records.keys() - records.keys()
    if dump.name == CAPPED:
        floor = dump.head - CAP_RECORDS
        _expect(all(seq <= floor for seq in missing), f"missing {sorted(missing)[-5:]}")
        _expect(
            dump.count == min(dump.head, CAP_RECORDS), f"a cap of {CAP_RECORDS} gives {dump.count}"
        )
        return
    for one in begun.values():
        if one.op.kind not in (DELETE_BEFORE, DELETE_TAG):
            continue
        named = _named_by(one, topic)
        if named and named <= missing:
            missing -= named
            for seq in named:
                del topic.records[seq]
    _expect(not missing, f"acknowledged seqs {sorted(missing)[:5]} of {len(missing)} are missing")
