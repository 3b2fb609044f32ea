"""Creating, configuring and deleting topics.

Only this file adds to or takes from the set of topics.  Each change is in the log and synced before
it counts; a change whose log write failed leaves everything as it was.  A name is free again as
soon as the delete is staged, and the topic that takes it has another id and epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from headrace.core.errors import (
    ConfigError,
    HeadraceError,
    InvalidRequest,
    Throttled,
    TopicExistsIncompatible,
    TopicNotEmpty,
    TopicNotFound,
)
from headrace.core.runtime import Ticket
from headrace.engine import retention
from headrace.engine.core_state import Core, check_name
from headrace.engine.topic import Topic
from headrace.engine.topic_config import TopicConfig
from headrace.storage.frame import (
    ENTRY_FLOOR,
    ENTRY_TOPIC_CONFIG,
    ENTRY_TOPIC_CREATE,
    ENTRY_TOPIC_DELETE,
    Floor,
    TopicCreate,
    TopicDelete,
)
from headrace.storage.frame import TopicConfig as TopicConfigEntry

log = logging.getLogger("headrace.lifecycle")

# Seqs that may be used before the first sync of a reservation.
RESERVE_AT_CREATE = 256


class Put(NamedTuple):
    """A topic as it is configured now, and whether this call created it."""

    topic: str
    epoch: int
    config: TopicConfig
    created: bool


class Deleted(NamedTuple):
    """Whether there was a topic to delete, and which routers went with it."""

    topic: str
    deleted: bool
    routers_removed: Sequence[str] = ()


class Lifecycle:
    """The set of topics."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def check_creatable(self, name: str, config: TopicConfig, create: bool) -> None:
        """Whether an append may create this topic."""
        if not create:
            raise TopicNotFound.named(name)
        check_name(name)
        check_dead_letter(name, config)
        self._check_cold_reads(config)
        self.check_topics_max()

    def create_for_append(self, name: str, config: TopicConfig, count: int) -> Topic:
        """The topic an append creates; it is acknowledged after the creation, in log order."""
        return self._create(name, config, count + RESERVE_AT_CREATE, None)

    def put(self, name: str, config: TopicConfig) -> Ticket[Put]:
        """Create a topic, or replace the config of the one that is there."""
        core = self._core
        core.refuse_unready()
        ticket: Ticket[Put] = Ticket(core.runtime)
        check_dead_letter(name, config)
        topic = core.find(name)
        if topic is None or not topic.config.cold_reads:
            self._check_cold_reads(config)
        if topic is None:
            self._create(name, config, RESERVE_AT_CREATE, ticket)
        elif topic.config.type != config.type:
            raise TopicExistsIncompatible(
                f"{name!r} is a {topic.config.type}, not a {config.type}",
                fix="delete it first, or use another name",
                detail={
                    "topic": name,
                    "existing_type": topic.config.type,
                    "requested_type": config.type,
                },
            )
        elif topic.config == config and topic.live:
            ticket.resolve(Put(name, topic.epoch, config, False))
        else:
            self._reconfigure(topic, config, ticket)
        return ticket

    def delete(self, name: str, *, if_empty: bool = False) -> Ticket[Deleted]:
        """Delete a topic with all its records; absent is not an error."""
        core = self._core
        core.refuse_unready()
        ticket: Ticket[Deleted] = Ticket(core.runtime)
        topic = core.find(name)
        if topic is None or not topic.live:
            ticket.resolve(Deleted(name, False))
            return ticket
        core.refuse_writes(core.shard_of(topic.id))
        retention.enforce(core, topic)
        count = topic.count + topic.staged_count
        if if_empty and count:
            raise TopicNotEmpty(
                f"{name!r} holds {count} records",
                fix="delete them first, or delete without if_empty",
                detail={"topic": name, "count": count},
            )
        self._release_name(topic)
        forwarding = core.forwarding
        removed = forwarding.detach(topic) if forwarding is not None else []

        def done(error: HeadraceError | None) -> None:
            # When the log failed, the topic is back as if nothing had happened, unless its name
            # was taken meanwhile.
            back = error is not None and core.by_name.setdefault(name, topic) is topic
            if back:
                core.names.add(name)
            else:
                self.forget(topic)
            if forwarding is not None:
                (forwarding.attach if back else forwarding.detached)(topic)
            if error is not None:
                ticket.fail(error)
            else:
                ticket.resolve(Deleted(name, True, removed))
            if not back:
                _tell(core.on_topic_deleted, topic)

        core.log(topic, ENTRY_TOPIC_DELETE, TopicDelete(topic.epoch), needs_sync=True, done=done)
        return ticket

    def forget(self, topic: Topic) -> None:
        """Take a deleted topic out of memory; its files go with the next checkpoint."""
        core = self._core
        core.by_id.pop(topic.id, None)
        core.dirty.pop(topic.id, None)
        core.removed.add(topic.id)
        core.overtaken.discard(topic.id)
        if core.ready:
            core.totals.remove(topic)
        core.total_bytes -= topic.bytes
        core.forget_blocks(topic)
        core.keys.forget_topic(topic.id)
        topic.live = False
        waiters, topic.waiters = topic.waiters, None
        for wake in waiters or ():
            wake()

    def _release_name(self, topic: Topic) -> None:
        core = self._core
        if core.by_name.get(topic.name) is topic:
            del core.by_name[topic.name]
            core.names.remove(topic.name)

    def _create(
        self, name: str, config: TopicConfig, reserved_to: int, ticket: Ticket[Put] | None
    ) -> Topic:
        core = self._core
        check_name(name)
        self.check_topics_max()
        topic_id = core.next_topic_id
        core.refuse_writes(core.shard_of(topic_id))
        core.next_topic_id += 1
        topic = Topic(topic_id, name, core.epoch_of(topic_id), config)
        topic.created_ms = core.clock.now_ms()
        topic.unsettled_syncs = 1
        core.by_name[name] = topic
        core.names.add(name)
        core.by_id[topic_id] = topic

        def done(error: HeadraceError | None) -> None:
            topic.unsettled_syncs -= 1
            if error is not None:
                core.by_id.pop(topic_id, None)
                self._release_name(topic)
                if ticket is not None:
                    ticket.fail(error)
                return
            topic.live = True
            topic.reserved = max(topic.reserved, reserved_to)
            core.mark(topic)
            core.totals.add(topic)
            if ticket is not None:
                ticket.resolve(Put(name, topic.epoch, config, True))
            _tell(core.on_topic_created, topic)

        entry = TopicCreate(name, topic.epoch, config.encode(), reserved_to, topic.created_ms)
        core.log(topic, ENTRY_TOPIC_CREATE, entry, needs_sync=True, done=done)
        return topic

    def _check_cold_reads(self, config: TopicConfig) -> None:
        if config.cold_reads and self._core.history is None:
            raise ConfigError(
                "this server cannot read a lake: the package deltalake is not there",
                fix="pip install 'headrace[cold]' where `headrace serve` runs, and restart it",
                detail={"field": "cold_reads"},
            )

    def check_topics_max(self, more: int = 1) -> None:
        """Refuse topics beyond what is allowed."""
        topics, topics_max = len(self._core.by_name), self._core.settings.max_topics
        if topics_max and more and topics + more > topics_max:
            raise Throttled(
                f"{topics} topics exist, the most allowed",
                fix="delete topics, or raise HEADRACE_MAX_TOPICS",
                detail={"limit": "max_topics", "max": topics_max},
            )

    def _reconfigure(self, topic: Topic, config: TopicConfig, ticket: Ticket[Put]) -> None:
        core = self._core
        core.refuse_writes(core.shard_of(topic.id))
        # What the old config took stays gone, whatever the new one would have kept.
        retention.enforce(core, topic)
        if topic.cap_floor or topic.ttl_floor:
            floor = Floor(topic.cap_floor, topic.ttl_floor, topic.overtaken_seq)
            core.log(topic, ENTRY_FLOOR, floor, needs_sync=False)
        reserved_to = max(topic.reserved, topic.staged + RESERVE_AT_CREATE)
        topic.unsettled_syncs += 1
        topic.changing += 1

        def done(error: HeadraceError | None) -> None:
            topic.unsettled_syncs -= 1
            topic.changing -= 1
            if error is not None:
                ticket.fail(error)
                return
            longer = config.idempotency_window_ms > topic.config.idempotency_window_ms
            if longer and core.is_logged(topic):
                core.keys.save_again(topic.id, config.idempotency_window_ms)
            core.totals.reconfigured(topic.config, config)
            topic.set_config(config)
            core.note_overtaken(topic)
            topic.reserved = max(topic.reserved, reserved_to)
            core.mark(topic)
            retention.enforce(core, topic)
            ticket.resolve(Put(topic.name, topic.epoch, config, False))

        archived_to = max(topic.archived_seq, topic.archiving_to)
        entry = TopicConfigEntry(config.encode(), reserved_to, topic.staged, archived_to)
        core.log(topic, ENTRY_TOPIC_CONFIG, entry, needs_sync=True, done=done)


def _tell(listeners: list[Callable[[Topic], None]], topic: Topic) -> None:
    """Let every listener hear, whatever the others do with it."""
    for listener in tuple(listeners):
        try:
            listener(topic)
        except Exception:
            log.exception("a listener failed about %r", topic.name)


def check_dead_letter(name: str, config: TopicConfig) -> None:
    """A dead letter topic needs a valid name, and cannot be the queue itself."""
    if config.dead_letter is None:
        return
    check_name(config.dead_letter)
    if config.type == "queue" and config.dead_letter == name:
        raise InvalidRequest(
            f"{name!r} is its own dead letter topic", fix="name another topic for dead letters"
        )
