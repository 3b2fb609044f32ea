"""Crashes of an engine with streams: at every disk call, in every way, and what must hold then.

Only this file judges streams after a crash.  What was acknowledged is there: a stream with its
first records, an append with its producer's number, a close with who closed it, a fork with what
it inherits, a deletion with what it collects.  What was under way is there whole or not at all.  A
producer that repeats itself is answered as if nothing had happened, and a second start changes
nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from headrace.core.clock import ManualClock
from headrace.core.errors import StreamClosed, StreamDeleted
from headrace.engine.appending.admission import Append
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.streams.removal import SWEEP_MS
from headrace.engine.streams.spec import StreamWrite
from headrace.storage.block import KIND_JSON
from headrace.testing.diskmodel import Dice
from headrace.testing.simdisk import SimDisk
from tests.harness.crash_points import Point, Sweeper, crash_by_dice, hash_of, run_sweeper
from tests.harness.engine_driver import Driver
from tests.harness.events import Violation
from tests.harness.scene import Stage
from tests.harness.stream_histories import (
    MEDIA,
    Model,
    Play,
    Stream,
    append,
    batch_of,
    possible_models,
    topic_of,
)
from tests.harness.stream_histories import WORKLOADS as WORKLOADS

SECOND_ONE_IN = 3  # states whose recovery, or what followed it, is crashed in turn
PAGES_MAX = 1_000


class StreamExplorer(Sweeper):
    """Looks at states of streams."""

    module = "stream_history_sweep"

    def perform(self) -> SimDisk:
        self.kind = WORKLOADS[self.workload]
        self.play = Play(Stage(self.kind.setup, self.seed))
        self.kind.run(self.play)
        return self.play.stage.disk

    def judge(self, point: Point, image: SimDisk) -> None:
        events = list(self.disk.marks_until(point.position))
        driver = self._opened(image, point.position)
        found = self._known(look(driver), events)
        went_on = self._go_on(driver, found)
        dice = Dice(self.seed, point.position, point.seed, hash_of(point.mode))
        if dice.coin():
            driver.engine.checkpoint().result()
        driver.abandon()
        killed = self._opened(image.image(image.position, "all", 0, power_loss=False), 7)
        again = look(killed)
        killed.abandon()
        if again != without_producers(went_on):
            raise Violation(f"was {went_on}, and is {again} after a kill")
        if dice.below(SECOND_ONE_IN) == 0:
            self.report.second += 1
            crashed = self._opened(crash_by_dice(image, dice).image(image), 11)
            self._only_more(look(crashed), [found, *possible_models(events)], went_on)
            crashed.abandon()

    def _opened(self, disk: SimDisk, seed: int) -> Driver:
        clock = ManualClock(self.play.stage.clock.wall_ms() + 1_000)
        driver = Driver(disk, self.kind.setup, clock, seed)
        driver.recover()
        driver.finish()
        clock.advance(SWEEP_MS)  # what a crash left behind is collected by a sweep
        driver.finish()
        return driver

    def _known(self, found: Model, events: list[object]) -> Model:
        """The model that this is, with its producers."""
        models = list(possible_models(events))
        for model in models:
            if without_producers(model) == found:
                return model
        raise Violation(f"found {found}, but it can only be {models[-1]}, or less")

    def _go_on(self, driver: Driver, model: Model) -> Model:
        """Producers repeat their last, and every stream that is open takes one more."""
        later: Model = dict(model)
        for name, stream in model.items():
            if stream.deleted:
                _refused(driver, name, stream, StreamDeleted)
                continue
            for producer in stream.producers:
                _repeated(driver, name, stream, producer)
            if stream.closed:
                _refused(driver, name, stream, StreamClosed)
                continue
            before = driver.engine.streams.info(topic_of(name)).tail
            one_more = _text(stream, b"after the crash")
            asked = Append(create=False, stream=StreamWrite(MEDIA[stream.kind]))
            append(driver.engine, name, batch_of(stream.kind, (one_more,)), asked).result()
            after = driver.engine.streams.info(topic_of(name)).tail
            if after <= before:
                raise Violation(f"{name}: the offset went from {before} to {after}")
            later[name] = replace(stream, appends=(*stream.appends, (one_more,)))
        if without_producers(later) != look(driver):
            raise Violation(f"{look(driver)} is not {later}")
        return later

    def _only_more(self, found: Model, before: list[Model], after: Model) -> None:
        """Crashed on the way from one to the other: each stream is as it was, or as it became.

        What had not been acknowledged may be lost by the second crash only.
        """
        became = without_producers(after)
        for model in map(without_producers, before):
            if found.keys() == model.keys() and all(
                stream in (model[name], became.get(name)) for name, stream in found.items()
            ):
                return
        raise Violation(f"after a second crash found {found}, not {became}, or less")


def look(driver: Driver) -> Model:
    """Every stream, as far as it can be seen."""
    found: Model = {}
    for topic in list(driver.engine.state.by_name.values()):
        state = topic.stream
        if state is None:
            continue
        records = () if state.deleted else _records(driver, topic.name)
        found[topic.name.removeprefix("ds:")] = Stream(
            kind=state.kind,
            appends=(records,),
            closed=state.closed,
            closed_by=state.closed_by,
            deleted=state.deleted,
            source=state.source.removeprefix("ds:"),
            sequence=state.sequence,
        )
    return found


def _records(driver: Driver, name: str) -> tuple[bytes, ...]:
    records: list[bytes] = []
    cursor = 0
    for _ in range(PAGES_MAX):
        page = driver.read(name, cursor)
        if page.tombstone is not None:
            raise Violation(f"{name}: {page.tombstone}")
        records += [record.data for record in page.records]
        if page.next_from_seq >= page.head_seq:
            if len(records) != page.head_seq:
                raise Violation(f"{name}: {len(records)} records up to seq {page.head_seq}")
            return tuple(records)
        cursor = page.next_from_seq
    raise Violation(f"{name}: no end")


def without_producers(model: Model) -> Model:
    """As `look` would see it."""
    return {
        name: replace(stream, appends=(() if stream.deleted else stream.records,), producers=())
        for name, stream in model.items()
    }


def _text(stream: Stream, text: bytes) -> bytes:
    return b'"%b"' % text if stream.kind == KIND_JSON else text


def _repeated(driver: Driver, name: str, stream: Stream, producer: tuple[str, int, int]) -> None:
    """The last append of a producer comes again: it is known, and nothing is written."""
    asked = Append(
        create=False, producer=ProducerClaim(*producer), stream=StreamWrite(MEDIA[stream.kind])
    )
    ticket = append(driver.engine, name, batch_of(stream.kind, (_text(stream, b"twice"),)), asked)
    driver.finish()
    if stream.closed and producer != stream.closed_by:
        if not isinstance(ticket.error, StreamClosed):
            raise Violation(f"{name} is closed, and {producer} got {ticket.error!r}")
    elif ticket.error is not None or not ticket.result().deduped:
        raise Violation(f"{name}: {producer} came again, and was taken for new: {ticket.error!r}")


def _refused(driver: Driver, name: str, stream: Stream, error: type[Exception]) -> None:
    asked = Append(create=False, stream=StreamWrite(MEDIA[stream.kind]))
    ticket = append(driver.engine, name, batch_of(stream.kind, (_text(stream, b"no"),)), asked)
    driver.finish()
    if not isinstance(ticket.error, error):
        raise Violation(f"{name} has to refuse with {error.__name__}, not {ticket.error!r}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Look at the states the command line names; 1 if any is wrong."""
    return run_sweeper(StreamExplorer, WORKLOADS, arguments, __doc__)


if __name__ == "__main__":
    sys.exit(main())
