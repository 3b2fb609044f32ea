"""One life of a topic as a list of changes, and every state that a crash may cut it back to.

Only this file knows in which order changes count.  A change is applied to a `TopicModel`; which of
them were promised is the oracle's to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import compress
from typing import NamedTuple

from headrace.engine.topics.config import TopicConfig
from tests.harness.events import Loss, TopicView
from tests.harness.model import AppendCall, TopicModel

NEVER = 1 << 62


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
    archived: int = 0  # records up to here are kept elsewhere, too

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
        elif self.archived:
            topic.archive(self.archived)
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

    def moved_up(self, step: Step) -> None:
        """An answered change took effect before those still in flight, whenever they were asked.

        Only what is not logged, or what time does, overtakes.
        """
        self.steps.remove(step)
        pending = (n for n, other in enumerate(self.steps) if not other.acked)
        self.steps.insert(next(pending, len(self.steps)), step)

    def restage(self) -> None:
        self.staged = self.base.copy()
        for step in self.steps:
            step.apply(self.staged)


class Fit(NamedTuple):
    """The prefixes of an instance's changes that explain what was seen."""

    instance: Instance
    shortest: int
    longest: int


def prefixes(
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
                topic.lose(shed)
        if length >= least:
            yield from ((length, topic, shed) for topic, shed in topics)
        if length >= sure and loss != "none":
            topic = topics[0][0].copy()
            shed = topic.gone_after(view.records)
            topic.lose(shed)
            topics += [(topic, shed)] if shed else []


def cut(instance: Instance, fit: Fit | None) -> tuple[int, int]:
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
