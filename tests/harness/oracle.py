"""What an engine may look like after a crash, given what it was asked and what it had answered.

Only this file knows the promises of the durability classes.  It hears every call and every answer,
and keeps for each topic the list of changes in the order they were staged.  The law it checks: the
state that comes back is the state after some *prefix* of those changes, the prefix holds everything
that was promised, and seqs that may have been given out beyond it are announced and never reused.
From that follow the points of the oracle one by one: nothing acknowledged is missing, nothing that
was not written appears, batches are whole, deletes stay, heads and floors never go back.

It reads no files and drives nothing; `engine_driver.py` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import NamedTuple

from headrace.engine.topics.config import EPHEMERAL, FSYNC, TopicConfig
from tests.harness.changes import NEVER, Fit, Instance, Step, cut, prefixes
from tests.harness.crash_verdict import mismatch
from tests.harness.events import (
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
from tests.harness.model import (
    AppendCall,
    ArchiveCall,
    Call,
    CheckpointCall,
    DeleteCall,
    DropCall,
    PutCall,
    Refused,
    Stored,
    TopicModel,
)

# Refusals that the history of the topic alone decides, so that the model must agree with them.
NEEDS_CAUSE = frozenset({"producer_gap", "producer_fenced", "invalid_request"})
LATE_MAX = 3  # deletes in flight that are considered one by one
REASONS_MAX = 2  # of one violation that are told, from each end


class _Pending(NamedTuple):
    """A call in flight: what it will do."""

    call: Call
    instance: Instance | None
    step: Step | None
    stored: Stored | None  # a duplicate of this
    refusal: str | None
    creates: bool
    upto: int  # changes with a smaller index are before it
    expired: Step | None = None  # what time took before it could be looked at


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
        elif isinstance(event, (Answered, Failed)):
            pending = self._pending.pop(event.op)
            if pending.expired is not None:
                pending.expired.acked = True
            if isinstance(event, Answered):
                self._answer(pending, event.result)
            else:
                self._fail(pending, event)
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
            step = self._expire(instance, now_ms)
            if step is not None:
                step.acked = True

    def _expire(self, instance: Instance, now_ms: int) -> Step | None:
        before = instance.visible.evict_floor
        instance.visible.expire(now_ms)
        floor = instance.visible.evict_floor
        if floor == before:
            return None
        step = Step(self._next(), synced=False, expired_to=floor)
        instance.steps.append(step)
        instance.moved_up(step)
        step.apply(instance.staged)
        return step

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
        elif isinstance(call, ArchiveCall):
            if call.to_seq <= instance.visible.archived:
                return nothing
            step = Step(self._next(), synced=True, archived=call.to_seq)
        else:
            nothing = nothing._replace(expired=self._expire(instance, now_ms))
            step = self._delete_step(instance, call)
        instance.steps.append(step)
        step.apply(instance.staged)
        return nothing._replace(instance=instance, step=step)

    def _delete_step(self, instance: Instance, call: DeleteCall) -> Step:
        visible = instance.visible
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
        nothing = nothing._replace(expired=self._expire(instance, now_ms))
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
        instance.moved_up(step)
        before = instance.visible.count
        step.apply(instance.visible)
        if step.append is not None:
            due = Answer(
                instance.epoch, step.first_seq, len(step.append.records),
                instance.visible.head, False, instance.visible.last_ts,
            )  # fmt: skip
        elif step.archived:
            due = Answer(instance.epoch, instance.visible.archived, 0, instance.visible.head)
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
                low, high = cut(instance, fit)
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
            for length, topic, shed in prefixes(instance, view, loss, least, skipped):
                reason = mismatch(topic, view, loss, now_ms, instance.visible.head, shed)
                if reason is None:
                    found.append(length)
                else:
                    reasons.append(f"after {length} of {len(instance.steps)} changes: {reason}")
        if not found:
            some = dict.fromkeys(reasons[:REASONS_MAX] + reasons[-REASONS_MAX:])
            raise Violation("; ".join(some))
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

    def _expired_at_start(self, instance: Instance, before: TopicModel, noted: list[int]) -> None:
        """What time took when the engine came up is noted in its log, and synced a little later.

        A power loss together with a clock that was set back may undo that.
        """
        expired = [seq for seq in before.live if seq <= instance.base.evict_floor]
        instance.base.live |= {seq: before.live[seq] for seq in expired}
        instance.base.bytes += sum(before.live[seq].size for seq in expired)
        floor, instance.base.evict_floor = instance.base.evict_floor, before.evict_floor
        instance.base.overtaken = before.overtaken
        floors = {n for n in noted if before.evict_floor < n < floor}
        for expired_to in (*sorted(floors), floor):
            step = Step(NEVER, synced=False, acked=True, expired_to=expired_to)
            instance.steps.append(step)

    def after(self, views: Mapping[str, TopicView], fits: list[Fit], loss: Loss) -> Oracle:
        """The oracle of the engine that came up: what was seen is what has to stay."""
        later = Oracle(ordered=self.ordered)
        for fit in fits:
            view = views[fit.instance.name]
            topic = fit.instance.base.copy()
            for step in fit.instance.steps[: fit.shortest]:
                step.apply(topic)
            before = topic.copy()
            topic.live = dict(view.records)
            topic.head = view.head
            topic.gaps = list(view.crashed)
            topic.evict_floor = view.evicted
            topic.bytes = view.bytes
            topic.config = view.config
            topic.archived, topic.overtaken = view.archived, view.overtaken
            if loss != "none":
                later._leave_open(fit.instance, topic)
                topic.volatile = set()
                topic.reclassed = False
            created = Step(later._next(), synced=True, acked=True)
            instance = Instance(view.name, created, topic, topic.copy(), topic.copy(), view.epoch)
            if topic.config.ttl_ms and view.evicted > before.evict_floor:
                noted = [step.expired_to for step in fit.instance.steps]
                later._expired_at_start(instance, before, noted)
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
