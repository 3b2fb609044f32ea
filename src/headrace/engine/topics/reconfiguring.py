"""Replacing the config of a topic that is there, with the state of a stream in the same commit.

Only this file logs a new config.  It is in the log and synced before it counts, and what the old
one took stays gone.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.core.errors import HeadraceError
from headrace.core.runtime import Ticket
from headrace.engine.removal import retention
from headrace.engine.state import EngineState
from headrace.engine.topics.config import TopicConfig
from headrace.engine.topics.topic import Topic
from headrace.storage.wal.frame import (
    ENTRY_FLOOR,
    ENTRY_STATE,
    ENTRY_TOPIC_CONFIG,
    Floor,
    State,
    encode_control,
)
from headrace.storage.wal.frame import TopicConfig as TopicConfigEntry

# Seqs that may be used before the first sync of a reservation.
RESERVE_AT_CREATE = 256


class Put(NamedTuple):
    """A topic as it is configured now, and whether this call created it."""

    topic: str
    epoch: int
    config: TopicConfig
    created: bool


def reconfigure(
    state: EngineState,
    topic: Topic,
    config: TopicConfig,
    ticket: Ticket[Put],
    stream: bytes | None = None,
) -> None:
    """Have a topic live by `config`; `stream`: what the topic keeps of a stream from then on."""
    state.refuse_writes(state.shard_of(topic.id))
    # What the old config took stays gone, whatever the new one would have kept.
    retention.enforce(state, topic)
    if topic.cap_floor or topic.ttl_floor:
        floor = Floor(topic.cap_floor, topic.ttl_floor, topic.overtaken_seq)
        state.log(topic, ENTRY_FLOOR, floor, needs_sync=False)
    reserved_to = max(topic.reservation.valid_to, topic.staged + RESERVE_AT_CREATE)
    topic.begin_config_change()

    def done(error: HeadraceError | None) -> None:
        topic.end_config_change()
        if error is not None:
            ticket.fail(error)
            return
        longer = config.idempotency_window_ms > topic.config.idempotency_window_ms
        if longer and topic.is_logged:
            state.keys.save_again(topic.id, config.idempotency_window_ms)
        state.totals.reconfigured(topic.config, config)
        topic.set_config(config)
        if stream is not None:
            topic.set_state(stream)
        state.update_overtaken(topic)
        topic.reservation.raise_to(reserved_to)
        topic.mark_changed()
        retention.enforce(state, topic)
        ticket.resolve(Put(topic.name, topic.epoch, config, False))

    archived_to = max(topic.archived_seq, topic.archiving_to)
    entry = TopicConfigEntry(config.encode(), reserved_to, topic.staged, archived_to)
    behind = (
        encode_control(ENTRY_STATE, topic.id, State(stream, b"")) if stream is not None else b""
    )
    state.log(topic, ENTRY_TOPIC_CONFIG, entry, needs_sync=True, done=done, behind=behind)
