"""What an engine may look like after a crash, given what it was asked and what it had answered.

Only this file knows the promises of the durability classes.  It hears every call and every answer,
and keeps for each topic the list of changes in the order they were staged.  The law it checks: the
state that comes back is the state after some *prefix* of those changes, the prefix holds everything
that was promised, and seqs that may have been given out beyond it are announced and never reused.
From that follow the points of the oracle one by one: nothing acknowledged is missing, nothing that
was not written appears, batches are whole, deletes stay, heads and floors never go back.

It reads no files and drives nothing; `driver.py` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations, compress
from typing import NamedTuple

from headrace.engine.topic_config import EPHEMERAL, FSYNC, TopicConfig
from headrace.testing.events import (
    Answer,
    Answered,
    Event,
    Failed,
    Invoked,
    Loss,
    Quiet,
    Seen,
    TopicView,
    Violation,
)
from headrace.testing.model import (
    AppendCall,
    Call,
    CheckpointCall,
    DeleteCall,
    DropCall,
    PutCall,
    Refused,
    Stored,
    TopicModel,
)
from headrace.testing.verdict import mismatch

# Refusals that the history of the topic alone decides, so that the model must agree with them.
NEEDS_CAUSE = frozenset({"producer_gap", "producer_fenced", "invalid_request"})


NEVER = 1 << 62
LATE_MAX = 3  # deletes in flight that are considered one by one
REASONS_MAX = 4  # of one violation that are told


@dataclass(eq=False)
class Step:
    """One staged change of one topic."""

    index: int
    synced: bool  # its class promises that a power loss does not undo it
    logged: bool = True  # False: of a class that is never stored
    acked: bool = False
    settled_at: int = NEVER  # the index of the last change that was staged before its answer
    append: AppendCall | None = None
    now_ms: int = 0
    volatile: bool = False
    first_seq: int = 0
    seqs: list[int] = field(default_factory=list)  # of a delete
    config: TopicConfig | None = None
    expired_to: int = 0  # time took the records up to here

    def apply(self, topic: TopicModel) -> None:
        if self.append is not None:
            call = self.append
            stored = topic.append(
                call.records, self.now_ms, call.key, call.producer, volatile=self.volatile
            )
            assert stored.first == self.first_seq, (stored, self.first_seq)
        elif self.config is not None:
            topic.reconfigure(self.config)
        elif self.expired_to:
            topic.evict(self.expired_to)
        else:
            topic.delete(self.seqs)


@dataclass(eq=False)
class Instance:
    """One life of a topic, from its creation to its deletion."""

    name: str
    created: Step
    base: TopicModel
    visible: TopicModel  # what has been answered so far
    staged: TopicModel  # what would be, if everything in flight succeeded
    epoch: int = 0
    dropped: Step | None = None
    steps: list[Step] = field(default_factory=list)

    def restage(self) -> None:
        self.staged = self.base.copy()
        for step in self.steps:
            step.apply(self.staged)


class _Pending(NamedTuple):
    """A call in flight: what it will do."""

    call: Call
    instance: Instance | None
    step: Step | None
    stored: Stored | None  # a duplicate of this
    refusal: str | None
    creates: bool
    upto: int  # changes with a smaller index are before it


class Fit(NamedTuple):
    """The prefixes of an instance's changes that explain what was seen."""

    instance: Instance
    shortest: int
    longest: int


class Oracle:
    """Hears events, judges views.

    `ordered`: one log holds everything in the order of the calls, so that the prefixes of all
    topics must end at one point.
    """

    def __init__(self, *, ordered: bool = True) -> None:
        self.ordered = ordered
        self._instances: dict[str, list[Instance]] = {}
        self._names: dict[str, Instance] = {}
        self._pending: dict[int, _Pending] = {}
        self._index = 0
        self._durable = 0  # changes with a smaller index are on disk whatever their class
        self._open: set[tuple[str, str | None]] = set()  # by topic name; see `is_open`

    # Hearing

    def feed(self, event: Event) -> None:
        if isinstance(event, Invoked):
            self._pending[event.op] = self._invoke(event.call, event.now_ms)
        elif isinstance(event, Answered):
            self._answer(self._pending.pop(event.op), event.result)
        elif isinstance(event, Failed):
            self._fail(self._pending.pop(event.op), event)
        else:
            assert isinstance(event, Quiet), event
            assert not any(p.step for p in self._pending.values()), "quiet with calls in flight"
            self._durable = self._index + 1

    def topic(self, name: str) -> TopicModel | None:
        """The visible state of a topic, for whoever decides what to do next."""
        instance = self._names.get(name)
        return instance.visible if instance is not None and instance.created.acked else None

    def expire(self, name: str, now_ms: int) -> None:
        """A call has just looked at this topic, and saw what time took from it."""
        instance = self._names.get(name)
        if instance is not None and instance.created.acked:
            self._expire(instance, now_ms)

    def _expire(self, instance: Instance, now_ms: int) -> None:
        before = instance.visible.evict_floor
        instance.visible.expire(now_ms)
        floor = instance.visible.evict_floor
        if floor > before:
            step = Step(self._next(), synced=False, acked=True, expired_to=floor)
            instance.steps.append(step)
            step.apply(instance.staged)

    def names(self) -> list[str]:
        return sorted(self._names)

    def _next(self) -> int:
        self._index += 1
        return self._index

    def _create(self, name: str, config: TopicConfig) -> Instance:
        created = Step(self._next(), synced=True)
        topic = TopicModel(config)
        instance = Instance(name, created, topic, topic.copy(), topic.copy())
        self._instances.setdefault(name, []).append(instance)
        self._names[name] = instance
        return instance

    def _invoke(self, call: Call, now_ms: int) -> _Pending:
        nothing = _Pending(call, None, None, None, None, False, self._index)
        if isinstance(call, CheckpointCall):
            return nothing._replace(upto=self._index + 1)
        instance = self._names.get(call.name)
        if isinstance(call, AppendCall):
            return self._invoke_append(call, instance, now_ms)
        if isinstance(call, PutCall):
            if instance is None:
                return nothing._replace(instance=self._create(call.name, call.config), creates=True)
            if instance.created.acked and call.config == instance.visible.config:
                return nothing
            step = Step(self._next(), synced=True, config=call.config)
        elif instance is None or not instance.created.acked:
            return nothing
        elif isinstance(call, DropCall):
            instance.dropped = Step(self._next(), synced=True)
            del self._names[call.name]
            return nothing._replace(instance=instance)
        else:
            step = self._delete_step(instance, call, now_ms)
        instance.steps.append(step)
        step.apply(instance.staged)
        return nothing._replace(instance=instance, step=step)

    def _delete_step(self, instance: Instance, call: DeleteCall, now_ms: int) -> Step:
        visible = instance.visible
        self._expire(instance, now_ms)
        synced = visible.config.durability == FSYNC
        seqs = visible.resolve(call.before_seq, call.match)
        logged = any(seq not in visible.volatile for seq in seqs)
        return Step(self._next(), synced=synced, seqs=seqs, logged=logged)

    def _invoke_append(self, call: AppendCall, instance: Instance | None, now_ms: int) -> _Pending:
        nothing = _Pending(call, instance, None, None, None, instance is None, self._index)
        if instance is None:
            if call.create is False:
                return nothing._replace(refusal="topic_not_found")
            instance = self._create(call.name, call.config or TopicConfig())
            nothing = nothing._replace(instance=instance)
        self._expire(instance, now_ms)
        try:
            stored = instance.staged.stored_before(call, now_ms)
        except Refused as refused:
            return nothing._replace(refusal=refused.code)
        if stored is not None:
            return nothing._replace(stored=stored)
        durability = instance.visible.config.durability
        step = Step(
            self._next(),
            synced=durability == FSYNC,
            logged=durability != EPHEMERAL,
            append=call,
            now_ms=now_ms,
            volatile=durability == EPHEMERAL,
            first_seq=instance.staged.head + 1,
        )
        instance.steps.append(step)
        step.apply(instance.staged)
        return nothing._replace(step=step)

    def _answer(self, pending: _Pending, answer: Answer) -> None:
        call, instance, step = pending.call, pending.instance, pending.step
        if isinstance(call, CheckpointCall):
            self._durable = max(self._durable, pending.upto)
            return
        if pending.refusal is not None:
            raise Violation(f"{call} was accepted, {pending.refusal} was due")
        if instance is None:
            return
        self._learn_epoch(instance, answer.epoch)
        instance.created.acked = True
        if isinstance(call, DropCall):
            assert instance.dropped is not None
            instance.dropped.acked = True
        elif pending.stored is not None:
            seen = (answer.deduped, answer.first_seq, answer.records)
            if seen != (True, pending.stored.first, pending.stored.records):
                raise Violation(f"{call} was stored at {pending.stored}, the answer is {answer}")
        elif step is not None:
            self._settle(instance, step, answer)

    def _learn_epoch(self, instance: Instance, epoch: int) -> None:
        if not epoch:
            return
        if instance.epoch and instance.epoch != epoch:
            raise Violation(f"{instance.name} had epoch {instance.epoch}, now it is {epoch}")
        instance.epoch = epoch

    def _settle(self, instance: Instance, step: Step, answer: Answer) -> None:
        step.acked = True
        step.settled_at = self._index
        if step.append is not None:
            for earlier in instance.steps:
                if earlier is step:
                    break
                if earlier.append is not None and not earlier.acked:
                    raise Violation(f"{step.append} was answered before {earlier.append}")
        before = instance.visible.count
        step.apply(instance.visible)
        if step.append is not None:
            due = Answer(
                instance.epoch, step.first_seq, len(step.append.records),
                instance.visible.head, False, instance.visible.last_ts,
            )  # fmt: skip
        elif step.config is None:
            due = Answer(0, 0, before - instance.visible.count, instance.visible.head)
        else:
            return
        if answer != due:
            raise Violation(f"the answer is {answer}, {due} was due")

    def _fail(self, pending: _Pending, failed: Failed) -> None:
        if failed.unknown:
            return  # in flight for ever: it may come back or not
        instance, step = pending.instance, pending.step
        unlike = failed.code != pending.refusal and failed.code in NEEDS_CAUSE
        if isinstance(pending.call, AppendCall) and (unlike or pending.stored is not None):
            raise Violation(f"{pending.call} failed with {failed.code}, it is in order")
        if instance is None:
            return
        if isinstance(pending.call, DropCall):
            instance.dropped = None
            self._names.setdefault(instance.name, instance)
        if step is not None:
            instance.steps.remove(step)
            instance.restage()
        if pending.creates:
            self._instances[instance.name].remove(instance)
            self._names.pop(instance.name, None)

    # Judging

    def check(self, views: Mapping[str, TopicView], loss: Loss, now_ms: int) -> list[Fit]:
        """Raise a `Violation` unless these views are allowed; say which prefixes explain them."""
        fits = []
        included, excluded = 0, self._index + 1
        for name in sorted({*self._instances, *views}):
            view = views.get(name)
            for instance, fit in self._judge(name, view, loss, now_ms):
                low, high = _cut(instance, fit)
                included, excluded = max(included, low), min(excluded, high)
                if fit is not None:
                    fits.append(fit)
        if self.ordered and loss in ("kill", "power") and included >= excluded:
            raise Violation(
                f"change {included} is there and {excluded}, which was logged before it, is not"
            )
        return fits

    def _judge(
        self, name: str, view: TopicView | None, loss: Loss, now_ms: int
    ) -> Iterator[tuple[Instance, Fit | None]]:
        fitting: Fit | None = None
        reasons = []
        for instance in self._instances.get(name, []):
            if view is not None and fitting is None:
                try:
                    fitting = self._fit(instance, view, loss, now_ms)
                    yield instance, fitting
                    continue
                except Violation as violation:
                    reasons.append(str(violation))
            dropped = instance.dropped
            if instance.created.acked and dropped is None:
                raise Violation(f"{name} is missing: {'; '.join(reasons) or 'no such topic'}")
            if loss == "none" and not (dropped is not None and dropped.acked):
                raise Violation(f"{name} should be there")
            yield instance, None
        if view is not None and fitting is None:
            raise Violation(f"{name} should not be there: {'; '.join(reasons) or 'never made'}")

    def _fit(self, instance: Instance, view: TopicView, loss: Loss, now_ms: int) -> Fit:
        if instance.dropped is not None and instance.dropped.acked:
            raise Violation("it was deleted")
        if instance.epoch and instance.epoch != view.epoch:
            raise Violation(f"epoch {view.epoch}, {instance.epoch} was due")
        least = 0
        for number, step in enumerate(instance.steps, 1):
            if self._promised(step, loss):
                least = number
        found, reasons = [], []
        for skipped in self._skippable(instance, loss):
            for length, topic, shed in _prefixes(instance, view, loss, least, skipped):
                reason = mismatch(topic, view, loss, now_ms, instance.visible.head, shed)
                if reason is None:
                    found.append(length)
                else:
                    reasons.append(f"after {length} of {len(instance.steps)} changes: {reason}")
        if not found:
            raise Violation("; ".join(reasons[-REASONS_MAX:]))
        return Fit(instance, min(found), max(found))

    def _skippable(self, instance: Instance, loss: Loss) -> Iterator[set[Step]]:
        """Sets of changes that may be missing though later ones are there.

        A delete that had to look into files is logged after the look, behind what came meanwhile.
        """
        yield set()
        if not self.ordered and loss != "none":
            late = [s for s in instance.steps if s.seqs and not self._promised(s, loss)]
            for count in range(1, min(len(late), LATE_MAX) + 1):
                yield from (set(some) for some in combinations(late, count))

    def _promised(self, step: Step, loss: Loss) -> bool:
        if loss == "none":
            return True
        if not step.acked or not step.logged:
            return False
        return loss != "power" or step.synced or step.index < self._durable

    def is_open(self, call: AppendCall) -> bool:
        """Whether this append may be taken for a retry or not, as the engine likes.

        Keys and producers of records that are never stored may outlive them or not.
        """
        producer = call.producer.id if call.producer is not None else None
        return not self._open.isdisjoint({(call.name, call.key), (call.name, producer)})

    def _leave_open(self, instance: Instance, topic: TopicModel) -> None:
        for step in instance.steps:
            if not step.volatile or step.append is None:
                continue
            if step.append.key is not None:
                self._open.add((instance.name, step.append.key))
                topic.keys.pop(step.append.key, None)
            if step.append.producer is not None:
                self._open.add((instance.name, step.append.producer.id))
                topic.producers.pop(step.append.producer.id, None)

    def after(self, views: Mapping[str, TopicView], fits: list[Fit], loss: Loss) -> Oracle:
        """The oracle of the engine that came up: what was seen is what has to stay."""
        later = Oracle(ordered=self.ordered)
        for fit in fits:
            view = views[fit.instance.name]
            topic = fit.instance.base.copy()
            for step in fit.instance.steps[: fit.shortest]:
                step.apply(topic)
            topic.live = dict(view.records)
            topic.head = view.head
            topic.gaps = list(view.crashed)
            topic.evict_floor = view.evicted
            topic.bytes = view.bytes
            topic.config = view.config
            if loss != "none":
                later._leave_open(fit.instance, topic)
                topic.volatile = set()
                topic.reclassed = False
            created = Step(later._next(), synced=True, acked=True)
            instance = Instance(view.name, created, topic, topic.copy(), topic.copy(), view.epoch)
            later._instances[view.name] = [instance]
            later._names[view.name] = instance
        later._open |= self._open
        later._durable = later._index + 1
        return later


class Chronicle:
    """The oracle over several lives of an engine on one disk."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle

    def feed(self, event: Event) -> None:
        if isinstance(event, Seen):
            fits = self.oracle.check(event.views, event.loss, event.now_ms)
            self.oracle = self.oracle.after(event.views, fits, event.loss)
        else:
            self.oracle.feed(event)


def _prefixes(
    instance: Instance, view: TopicView, loss: Loss, least: int, skipped: set[Step]
) -> Iterator[tuple[int, TopicModel, set[int]]]:
    """The topic after each prefix of at least so many changes.

    What a cap takes depends on what is there, and is logged behind the change that made it take.
    So from the first change on behind which nothing sure was logged, the records that no crash
    survives may have counted or not: both are given, the second with the seqs it shed.
    """
    last = max((s.index for s in instance.steps[:least] if s.logged), default=0)
    sure = next((n for n, s in enumerate(instance.steps) if s.settled_at >= last), least)
    topics = [(instance.base.copy(), set[int]())]
    for length in range(len(instance.steps) + 1):
        step = instance.steps[length - 1] if length else None
        for topic, shed in topics:
            if step is not None and step not in skipped:
                step.apply(topic)
            if shed:
                shed |= topic.gone_after(view.records)
                topic.delete(shed)
        if length >= least:
            yield from ((length, topic, shed) for topic, shed in topics)
        if length >= sure and loss != "none":
            topic = topics[0][0].copy()
            shed = topic.gone_after(view.records)
            topic.delete(shed)
            topics += [(topic, shed)] if shed else []


def _cut(instance: Instance, fit: Fit | None) -> tuple[int, int]:
    """The last change of this instance known to be in, and the first known not to be."""
    dropped = instance.dropped
    if fit is None:
        if dropped is not None:
            return dropped.index, NEVER
        return 0, instance.created.index
    # Where in the log the engine notes what time took is its own business.
    placed = [s.logged and not s.expired_to for s in instance.steps]
    indexes = [step.index for step in instance.steps]
    inside = list(compress(indexes[: fit.shortest], placed))
    outside = list(compress(indexes[fit.longest :], placed[fit.longest :]))
    if dropped is not None:
        outside.append(dropped.index)
    return max([instance.created.index, *inside]), min(outside, default=NEVER)
