"""Which leases the log has to know: those of queues with `leases_durable`, once these are stored.

Only this file decides that, and what a call is refused for when the log takes nothing.
"""

from __future__ import annotations

from headrace.engine.queues.replay import lease_events
from headrace.engine.queues.state import QueueState
from headrace.engine.state import EngineState
from headrace.engine.topics.topic import Topic
from headrace.storage.wal.frame import ENTRY_QUEUE


def leases_are_logged(topic: Topic) -> bool:
    """Return whether an answer about leases has to wait for the log."""
    return topic.config.leases_durable and topic.is_logged


def refuse_unless_logged(state: EngineState, topic: Topic) -> None:
    """Raise if the log has to know of a change of leases, and takes nothing now."""
    if leases_are_logged(topic):
        state.refuse_writes(state.shard_of(topic.id))


def refuse_without_room(state: EngineState, topic: Topic) -> None:
    """Raise if the log has no room for a claim.  That it is broken does not keep jobs back."""
    shard = state.shard_of(topic.id)
    full = shard.pending_bytes >= shard.pending_bytes_max and topic.is_logged
    if state.closing or (full and not shard.troubled):
        state.refuse_writes(shard)


def log_from_now(state: EngineState, topic: Topic, queue: QueueState) -> None:
    """Tell the log what it has to know from here on: the config has changed."""
    durable = leases_are_logged(topic)
    if durable and (state.shard_of(topic.id).troubled or state.closing):
        return
    queue.durable = durable
    if durable:
        topic.mark_changed()
        for event in lease_events(queue):
            state.log(topic, ENTRY_QUEUE, event, needs_sync=topic.needs_sync)
