"""Whether what readers see of a topic is what a crash may have left of it.

Only this file compares.  It is given one state that the topic may have been in, and says in words
what does not fit; it does not know which states are allowed.
"""

from __future__ import annotations

from collections.abc import Set

from headrace.engine.topics.config import EPHEMERAL, FSYNC
from tests.harness.events import Loss, TopicView
from tests.harness.model import Rec, TopicModel, inside, merged, ranges_of


def mismatch(
    topic: TopicModel,
    view: TopicView,
    loss: Loss,
    now_ms: int,
    acked_head: int,
    shed: Set[int] = frozenset(),
) -> str | None:
    """Why the view is not what is left of `topic`, or None.

    `shed` are seqs of records that were lost from it already.
    """
    # What needs no copy comes first: most states that the topic may have been in end here.
    durability = topic.config.durability
    may_skip = loss == "power" and durability != FSYNC
    may_skip = may_skip or (loss == "kill" and durability == EPHEMERAL)
    if view.head < max(topic.head, acked_head if loss != "none" else 0):
        return f"head {view.head}, {max(topic.head, acked_head)} was acknowledged"
    if view.head > topic.head and not may_skip:
        return f"head {view.head}, {topic.head} was due"
    if view.archived != topic.archived:
        return f"archived to {view.archived}, {topic.archived} was due"
    left = topic
    if loss != "none" or topic.config.ttl_ms:
        left = topic.copy()
    left.expire(now_ms)
    lost: set[int] = set()
    if loss != "none":
        lost = left.gone_after(view.records)
        left.lose(lost)
    # What a class that is never stored had lost to a cap goes with its records.
    if view.overtaken != left.overtaken and not (loss != "none" and left.volatile):
        return f"overtaken to {view.overtaken}, {left.overtaken} was due"
    if view.records != left.live:
        return _first_difference(view.records, left.live)
    seen = (view.earliest, view.live, view.bytes, view.config)
    due = (min(left.live, default=view.head + 1), left.count, left.bytes, left.config)
    if seen != due:
        return f"earliest, count, bytes are {seen[:3]}, {due[:3]} were due" + (
            f"; config {view.config} instead of {left.config}" * (view.config != left.config)
        )
    return _announcements(left, view, lost | shed)


def _announcements(left: TopicModel, view: TopicView, lost: Set[int]) -> str | None:
    """Why what readers are told is not what they must be told, or None."""
    beyond = [(left.head + 1, view.head)] if view.head > left.head else []
    if view.evicted > left.evict_floor and view.evicted not in left.volatile:
        return f"announced as evicted up to {view.evicted}, {left.evict_floor} was due"
    if view.evicted < left.evict_floor:
        # The floor of a class that is never stored goes with its records, as a crash range.
        gone = left.volatile - left.silent
        instead = {seq for seq in gone if view.evicted < seq <= left.evict_floor}
        if not instead or not inside(ranges_of(instead), view.crashed):
            return f"announced as evicted up to {view.evicted}, {left.evict_floor} was due"
    must = [*left.gaps, *beyond, *ranges_of(lost)]
    must = [(max(a, view.evicted + 1), b) for a, b in must if b > view.evicted]
    if not inside(must, view.crashed):
        return f"announced as lost {view.crashed}, {merged(must)} was due"
    may = [*left.gaps, *beyond, *ranges_of(left.volatile)]
    if not inside(view.crashed, may):
        return f"announced as lost {view.crashed}, at most {merged(may)} is"
    return None


def _first_difference(seen: dict[int, Rec], due: dict[int, Rec]) -> str:
    missing = sorted(due.keys() - seen.keys())
    extra = sorted(seen.keys() - due.keys())
    if missing:
        return f"seqs {ranges_of(missing)} are missing, extra {ranges_of(extra)}"
    if extra:
        return f"seqs {ranges_of(extra)} should not be there"
    seq = min(s for s in due if seen[s] != due[s])
    return f"seq {seq} is {seen[seq]}, {due[seq]} was due"
