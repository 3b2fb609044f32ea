"""What engines with streams do before they are crashed, and the model of what is there then.

Only this file knows the workloads and the model; `stream_history_sweep.py` crashes and judges.
Every operation is one commit: after a crash it is there whole or not at all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, NamedTuple

from headrace.core.runtime import Ticket
from headrace.engine.appending.admission import Append
from headrace.engine.appending.pending_append import Appended, PendingAppend
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.engine import Engine
from headrace.engine.streams.spec import StreamSpec, StreamWrite
from headrace.storage.block import KIND_BYTES, KIND_JSON, Batch
from headrace.storage.files.merge_policy import MergePolicy
from tests.harness.engine_driver import SMALL, Driver, Setup
from tests.harness.events import Violation
from tests.harness.model import config_of
from tests.harness.scene import Stage

MEDIA = {KIND_BYTES: "application/octet-stream", KIND_JSON: "application/json"}
CONFIG = config_of(durability="fsync")
IN_FLIGHT_MAX = 3  # more would make too many states that are all right


@dataclass(frozen=True)
class Stream:
    """A stream as it has to be; records of one append are a tuple."""

    kind: int
    appends: tuple[tuple[bytes, ...], ...] = ()
    closed: bool = False
    closed_by: tuple[str, int, int] | None = None
    deleted: bool = False
    source: str = ""
    sequence: str | None = None
    producers: tuple[tuple[str, int, int], ...] = ()  # the last of each, by name

    @property
    def records(self) -> tuple[bytes, ...]:
        return tuple(record for append in self.appends for record in append)


Model = dict[str, Stream]
AnyTicket = Ticket[Any]


class Impossible(Exception):
    """An operation that cannot follow these others."""


class Create(NamedTuple):
    """Make a stream, perhaps with first records, perhaps a fork."""

    name: str
    kind: int
    records: tuple[bytes, ...] = ()
    closed: bool = False
    source: str = ""
    appends: int = 0  # of the source, that are inherited whole
    cut: int = 0  # messages or bytes of the next append that are inherited, too

    def apply(self, model: Model) -> None:
        if self.name in model:
            raise Impossible
        inherited: tuple[tuple[bytes, ...], ...] = ()
        if self.source:
            source = model.get(self.source)
            if source is None or source.deleted or len(source.appends) < self.appends:
                raise Impossible
            inherited = source.appends[: self.appends]
            if self.cut:
                inherited += (self._part(source.appends[self.appends]),)
        appends = inherited + ((self.records,) if self.records else ())
        model[self.name] = Stream(self.kind, appends, self.closed, source=self.source)

    def _part(self, append: tuple[bytes, ...]) -> tuple[bytes, ...]:
        return append[: self.cut] if self.kind == KIND_JSON else (append[0][: self.cut],)

    def run(self, engine: Engine, model: Model) -> AnyTicket:
        fork_at = None
        if self.source:
            before = model[self.source].appends[: self.appends]
            seq = sum(len(append) for append in before)
            fork_at = engine.streams.position(topic_of(self.source), seq)
        spec = StreamSpec(
            dialect="ds",
            content_type=MEDIA[self.kind],
            kind=self.kind,
            closed=self.closed,
            source=topic_of(self.source) if self.source else None,
            fork_at=fork_at,
            sub_offset=self.cut,
            config=CONFIG,
        )
        records = batch_of(self.kind, self.records) if self.records else None
        return engine.streams.create(topic_of(self.name), spec, records)


class Write(NamedTuple):
    """Append, close, or both; with a producer's number or a sequence, or without."""

    name: str
    records: tuple[bytes, ...] = ()
    closes: bool = False
    producer: tuple[str, int, int] | None = None
    sequence: str | None = None

    def apply(self, model: Model) -> None:
        stream = model.get(self.name)
        if stream is None or stream.deleted or stream.closed:
            raise Impossible
        known = {who: (epoch, number) for who, epoch, number in stream.producers}
        if self.producer is not None:
            who, epoch, number = self.producer
            if number and known.get(who) != (epoch, number - 1):
                raise Impossible
            known[who] = (epoch, number)
        model[self.name] = replace(
            stream,
            appends=stream.appends + ((self.records,) if self.records else ()),
            closed=self.closes,
            closed_by=self.producer if self.closes else None,
            sequence=self.sequence or stream.sequence,
            producers=tuple((who, *known[who]) for who in sorted(known)),
        )

    def run(self, engine: Engine, model: Model) -> AnyTicket:
        kind = model[self.name].kind
        write = StreamWrite(MEDIA[kind], self.sequence, self.closes)
        claim = ProducerClaim(*self.producer) if self.producer is not None else None
        if not self.records:
            return engine.streams.close(topic_of(self.name), write, claim)
        asked = Append(create=False, producer=claim, stream=write)
        return append(engine, self.name, batch_of(kind, self.records), asked)


class Delete(NamedTuple):
    """Delete a stream: softly while it has forks, and with it a source that waited for it."""

    name: str

    def apply(self, model: Model) -> None:
        stream = model.get(self.name)
        if stream is None or stream.deleted:
            raise Impossible
        model[self.name] = replace(stream, deleted=True)
        collect(model, self.name)

    def run(self, engine: Engine, model: Model) -> AnyTicket:
        return engine.streams.delete(topic_of(self.name))


Operation = Create | Write | Delete


def collect(model: Model, name: str) -> None:
    """Take away a deleted stream that no fork needs, and then what it was forked from."""
    stream = model.get(name)
    if stream is None or not stream.deleted or any(s.source == name for s in model.values()):
        return
    del model[name]
    collect(model, stream.source)


def topic_of(name: str) -> str:
    return f"ds:{name}"


def append(engine: Engine, name: str, batch: Batch, asked: Append) -> Ticket[Appended]:
    pending = PendingAppend(engine.runtime, topic_of(name), batch, asked)
    engine.append_all([pending], lambda _done: None, ends_turn=True)
    return pending


def batch_of(kind: int, records: tuple[bytes, ...]) -> Batch:
    return Batch(list(records), kind)


class Asked(NamedTuple):
    """An operation is on its way."""

    number: int
    operation: Operation


class Told(NamedTuple):
    """An operation was acknowledged."""

    number: int


def possible_models(events: list[object]) -> Iterator[Model]:
    """Every state that may be there: all that was acknowledged, and any of what was under way."""
    asked = {event.number: event.operation for event in events if isinstance(event, Asked)}
    told = {event.number for event in events if isinstance(event, Told)}
    unsure = [number for number in asked if number not in told]
    for count in range(len(unsure) + 1):
        for chosen in combinations(unsure, count):
            with contextlib.suppress(Impossible):
                yield made_by(
                    operation for n, operation in asked.items() if n in told.union(chosen)
                )


def made_by(operations: Iterable[Operation]) -> Model:
    model: Model = {}
    for operation in operations:
        operation.apply(model)
    return model


@dataclass
class Play:
    """One run of a workload; the model is what was asked so far."""

    stage: Stage
    model: Model = field(default_factory=dict)
    numbers: int = 0
    serial: int = 0
    tickets: list[AnyTicket] = field(default_factory=list)
    driver: Driver = field(init=False)

    def __post_init__(self) -> None:
        self.driver = self.stage.open()

    def do(self, operation: Operation, *, wait: bool = False) -> None:
        """Ask for it; its answer comes now, or among those of the next few."""
        needs_all = isinstance(operation, Create | Delete)
        if needs_all or len(self.tickets) >= IN_FLIGHT_MAX:
            self.settle()
        if needs_all:
            self.driver.finish()  # what a deletion collects goes after its answer
        self.numbers += 1
        number = self.numbers
        self.stage.disk.mark(Asked(number, operation))
        ticket = operation.run(self.driver.engine, self.model)
        operation.apply(self.model)
        ticket.when_done(lambda done: self._told(number, done))
        self.tickets.append(ticket)
        if wait:
            self.settle()
        else:
            self.stage.pace(self.driver)
            self.tickets = [ticket for ticket in self.tickets if not ticket.done]

    def _told(self, number: int, done: AnyTicket) -> None:
        if done.error is not None:
            raise Violation(f"operation {number} failed: {done.error!r}")
        self.stage.disk.mark(Told(number))

    def settle(self) -> None:
        for ticket in self.tickets:
            ticket.result()
        self.tickets.clear()

    def texts(self, kind: int, count: int = 1, size: int = 30) -> tuple[bytes, ...]:
        """Records like no others; of bytes, an append is one."""
        made = []
        for _ in range(count if kind == KIND_JSON else 1):
            self.serial += 1
            text = b"%d-" % self.serial + b"x" * self.stage.dice.below(size)
            made.append(b'"%b"' % text if kind == KIND_JSON else text)
        return tuple(made)

    def append(self, name: str, **more: object) -> None:
        kind = self.model[name].kind
        records = self.texts(kind, 1 + self.stage.dice.below(3))
        self.do(Write(name, records, **more))  # type: ignore[arg-type]

    def checkpoint(self) -> None:
        self.driver.engine.checkpoint()
        self.driver.steps(self.stage.dice.below(9))


# Workloads


def lives(play: Play) -> None:
    """Streams are created, written to by producers, closed, deleted and made again."""
    play.do(Create("a", KIND_BYTES))
    play.do(Create("j", KIND_JSON, play.texts(KIND_JSON, 3)))
    for number in range(4):
        play.append("a", producer=("p", 1, number))
        play.append("j", sequence=f"s{number}")
        play.append("j", producer=("q", 0, number))
        if number in (1, 3):
            play.checkpoint()
    play.do(Write("a", play.texts(KIND_BYTES), closes=True, producer=("p", 1, 4)))
    play.do(Write("j", closes=True))
    play.do(Delete("a"))
    play.do(Create("a", KIND_JSON, play.texts(KIND_JSON, 2), closed=True))
    play.do(Delete("j"))
    play.do(Create("j", KIND_BYTES))
    play.checkpoint()
    play.append("j", producer=("p", 0, 0))
    play.do(Write("j", closes=True, producer=("p", 0, 1)))
    play.settle()


def closes(play: Play) -> None:
    """Little else than closes, each acknowledged before anything else is asked for."""
    for name in "abc":
        play.do(Create(name, KIND_BYTES), wait=True)
        play.do(Write(name, play.texts(KIND_BYTES), producer=("p", 0, 0)), wait=True)
    play.do(Write("a", closes=True), wait=True)
    play.do(Write("b", closes=True, producer=("p", 0, 1)), wait=True)
    play.do(Write("c", play.texts(KIND_BYTES), closes=True), wait=True)


def forks(play: Play) -> None:
    """Forks of forks, with parts of appends; sources go before them, and are collected."""
    for name, kind in (("b", KIND_BYTES), ("j", KIND_JSON)):
        play.do(Create(name, kind))
        for _ in range(3):
            play.do(Write(name, play.texts(kind, 3)))
        play.do(Create(f"{name}1", kind, source=name, appends=2, cut=2))
        play.append(f"{name}1", producer=("p", 0, 0))
        play.append(name)
        play.checkpoint()
        play.do(Create(f"{name}2", kind, play.texts(kind), source=f"{name}1", appends=4))
        play.do(Delete(name))
        play.append(f"{name}2")
        play.do(Delete(f"{name}1"))
        play.checkpoint()
        play.do(Create(f"{name}3", kind, source=f"{name}2", appends=1))
        play.append(f"{name}3")
        play.do(Delete(f"{name}2"))
    play.do(Delete("b3"))
    play.do(Create("b", KIND_JSON, play.texts(KIND_JSON, 2)))
    play.append("b")
    play.do(Delete("j3"))
    play.checkpoint()
    play.do(Create("j", KIND_BYTES, play.texts(KIND_BYTES)))
    play.settle()


def restarts(play: Play) -> None:
    """The same over clean stops and kills: what a start mends is crashed as well."""
    play.do(Create("a", KIND_BYTES, play.texts(KIND_BYTES)))
    for life in range(3):
        for number in range(3):
            play.append("a", producer=("p", life, number))
        play.do(Create(f"f{life}", KIND_BYTES, source="a", appends=2 + life))
        play.append(f"f{life}")
        if life == 1:
            play.do(Delete("f0"))
            play.do(Delete("a"), wait=True)
            break
        play.settle()
        if life == 0:
            play.driver.engine.close()
        else:
            play.driver.abandon()
        play.stage.clock.advance(1_000)
        play.driver = play.stage.open()
    play.do(Delete("f1"))
    play.do(Create("a", KIND_BYTES))
    play.append("a")
    play.settle()


@dataclass(frozen=True)
class Kind:
    """A workload, and how its engine is opened."""

    run: Callable[[Play], None]
    setup: Setup


MERGING = Setup(policy=MergePolicy(fan_in=2, own_rows_min=1_000, own_bytes_min=1 << 20))
SHARDS = Setup(settings=replace(SMALL, wal_shards=2))
WORKLOADS = {
    "lives": Kind(lives, Setup()),
    "closes": Kind(closes, Setup()),
    "forks": Kind(forks, Setup()),
    "restarts": Kind(restarts, Setup()),
    "lives_shards": Kind(lives, SHARDS),
    "forks_shards": Kind(forks, SHARDS),
    "forks_merging": Kind(forks, MERGING),
}
