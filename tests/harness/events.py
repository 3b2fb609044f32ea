"""What is heard of an engine under test: calls, answers, and how its topics look to a reader.

These are plain values, so that they can lie in a disk's trace as marks and be judged later.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from headrace.engine.topics.config import TopicConfig
from tests.harness.model import Call, Range, Rec

# How the engine went: not at all, closed, killed, or with the power.
Loss = Literal["none", "clean", "kill", "power"]


class Violation(Exception):
    """The engine did what it must never do."""


class Invoked(NamedTuple):
    """A call began."""

    op: int
    call: Call
    now_ms: int


class Answered(NamedTuple):
    """A call succeeded with this answer."""

    op: int
    result: Answer


class Failed(NamedTuple):
    """A call failed; `unknown` when it may yet have had an effect."""

    op: int
    code: str
    unknown: bool = False


class Quiet(NamedTuple):
    """Nothing was in flight for longer than the background sync may take."""


class Answer(NamedTuple):
    """The parts of an answer that are checked; the ones a call does not have are 0."""

    epoch: int = 0
    first_seq: int | None = 0  # None, as the records are: of a repeat whose seqs are forgotten
    records: int | None = 0
    head_seq: int = 0
    deduped: bool = False
    ts: int = 0


class TopicView(NamedTuple):
    """A topic as readers of a running engine see it."""

    name: str
    epoch: int
    head: int
    earliest: int
    live: int
    bytes: int
    config: TopicConfig
    records: dict[int, Rec]
    crashed: list[Range]  # announced with reason `crash`
    evicted: int  # the end of the prefix announced for any other reason
    archived: int = 0
    overtaken: int = 0


class Seen(NamedTuple):
    """An engine came up after a loss, and this is what it showed; from now on it has to stay."""

    views: dict[str, TopicView]
    loss: Loss
    now_ms: int


Event = Invoked | Answered | Failed | Quiet | Seen
