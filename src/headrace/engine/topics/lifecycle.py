"""Creating, configuring and deleting topics.

Only this file adds to or takes from the set of topics.  Each change is in the log and synced before
it counts; a change whose log write failed leaves everything as it was.  A name is free again as
soon as the delete is staged, and the topic that takes it has another id and epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from headrace.core.bounds import ByteBound
from headrace.core.errors import (
    ConfigError,
    HeadraceError,
    InvalidRequest,
    Throttled,
    TopicExistsIncompatible,
    TopicInUse,
    TopicNotEmpty,
    TopicNotFound,
)
from headrace.core.runtime import Ticket
from headrace.core.steps import Line, Steps, follow_at_once
from headrace.engine.forwarding_seam import Forwarding
from headrace.engine.removal import retention
from headrace.engine.state import EngineState
from headrace.engine.topics.config import TopicConfig
from headrace.engine.topics.names import check_name
from headrace.engine.topics.topic import Topic
from headrace.storage.wal.frame import (
    ENTRY_FLOOR,
    ENTRY_TOPIC_CONFIG,
    ENTRY_TOPIC_CREATE,
    ENTRY_TOPIC_DELETE,
    Floor,
    TopicCreate,
    TopicDelete,
)
from headrace.storage.wal.frame import TopicConfig as TopicConfigEntry

log = logging.getLogger("headrace.lifecycle")

Allowed = Callable[[str], bool]

# Deletes of topics that routers read from, waiting for their turn.
CLOSING_MAX = 10_000
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

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._bytes = ByteBound("topic config", state.settings, fix="use a shorter dead_letter")
        # One after the other: two sources that feed each other would wait for each other.
        self._closing = Line(
            state.runtime, follow_at_once, waiting_max=CLOSING_MAX, what="deletes of sources"
        )

    def check_creatable(self, name: str, config: TopicConfig, create: bool) -> None:
        """Whether an append may create this topic."""
        if not create:
            raise TopicNotFound.named(name)
        check_name(name)
        check_dead_letter(name, config)
        self._check_bytes(config, None)
        self._check_cold_reads(config)
        self.check_topics_max()

    def new_for_append(self, name: str, config: TopicConfig) -> Topic:
        """The topic that an append will create; nothing has changed yet."""
        return self._new(name, config)

    def begin_for_append(self, topic: Topic, count: int) -> None:
        """Create it; the append is acknowledged after the creation, in log order."""
        self._begin(topic, count + RESERVE_AT_CREATE, None)

    def put(self, name: str, config: TopicConfig) -> Ticket[Put]:
        """Create a topic, or replace the config of the one that is there."""
        state = self._state
        state.refuse_unready()
        for needed in (name, config.dead_letter):
            if needed is not None:
                state.loading.refuse(needed)
        ticket: Ticket[Put] = Ticket(state.runtime)
        check_dead_letter(name, config)
        topic = state.find(name)
        self._check_bytes(config, None if topic is None else topic.config)
        if topic is None or not topic.config.cold_reads:
            self._check_cold_reads(config)
        if topic is None:
            self._begin(self._new(name, config), RESERVE_AT_CREATE, ticket)
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

    def delete(
        self, name: str, *, if_empty: bool = False, allowed: Allowed | None = None
    ) -> Ticket[Deleted]:
        """Delete a topic with all its records; absent is not an error.

        A topic that routers read from goes when they have copied what it holds.  `allowed`: the
        names that the caller may use; a topic of routers with others is not deleted.
        """
        state = self._state
        state.refuse_unready()
        state.loading.refuse(name)
        ticket: Ticket[Deleted] = Ticket(state.runtime)
        topic = state.find(name)
        if topic is None or not topic.live:
            ticket.resolve(Deleted(name, False))
            return ticket
        self._refuse_delete(topic, if_empty, allowed)
        if state.forwarding is None or not state.forwarding.is_source(topic):
            return self._delete(topic, ticket)

        def refuse() -> None:
            self._refuse_delete(topic, if_empty, allowed)

        steps = self._delete_source(topic, state.forwarding, refuse)
        return follow_at_once(state.runtime, steps, ticket)

    def _delete_source(
        self, topic: Topic, forwarding: Forwarding, refuse: Callable[[], None]
    ) -> Steps[Deleted]:
        """Delete a topic once routers have copied its records; writers wait for the end of that."""
        yield from forwarding.copy_open(topic)
        deleted: Deleted = yield self._closing.run(self._close(topic, forwarding, refuse))
        return deleted

    def _close(
        self, topic: Topic, forwarding: Forwarding, refuse: Callable[[], None]
    ) -> Steps[Deleted]:
        if not topic.live or self._state.by_name.get(topic.name) is not topic:
            return Deleted(topic.name, False)  # another delete was faster
        topic.close_to_writers()
        try:
            yield from forwarding.copy_closed(topic)
            refuse()
            deleted: Deleted = yield self._delete(topic, Ticket(self._state.runtime))
        except Exception:
            topic.open_to_writers()
            raise
        return deleted

    def _refuse_delete(self, topic: Topic, if_empty: bool, allowed: Allowed | None) -> None:
        state = self._state
        state.refuse_writes(state.shard_of(topic.id), frees=True)
        retention.enforce(state, topic)
        count = topic.count + topic.staged_count
        if if_empty and count:
            raise TopicNotEmpty(
                f"{topic.name!r} holds {count} records",
                fix="delete them first, or delete without if_empty",
                detail={"topic": topic.name, "count": count},
            )
        forwarding = state.forwarding
        if allowed is None or forwarding is None:
            return
        foreign = forwarding.count_foreign(topic, allowed)
        if foreign:
            others = "another router uses" if foreign == 1 else f"{foreign} other routers use"
            raise TopicInUse(
                f"{others} {topic.name!r}",
                fix="delete its records instead, or use a key that may delete those routers, too",
                detail={"topic": topic.name, "routers": foreign},
            )

    def _delete(self, topic: Topic, ticket: Ticket[Deleted]) -> Ticket[Deleted]:
        state, name = self._state, topic.name
        state.topics.release_name(topic)
        forwarding = state.forwarding
        removed = forwarding.detach(topic) if forwarding is not None else []

        def done(error: HeadraceError | None) -> None:
            # When the log failed, the topic is back as if nothing had happened, unless its name
            # was taken meanwhile.
            back = error is not None and state.topics.take_name_back(topic)
            if not back:
                state.forget(topic)
            if forwarding is not None:
                (forwarding.attach if back else forwarding.detached)(topic)
            if error is not None:
                ticket.fail(error)
            else:
                state.room.freed()
                ticket.resolve(Deleted(name, True, removed))
            if not back:
                state.tell_deleted(topic)

        state.log(topic, ENTRY_TOPIC_DELETE, TopicDelete(topic.epoch), needs_sync=True, done=done)
        return ticket

    def _new(self, name: str, config: TopicConfig) -> Topic:
        """A topic of the next id, or a refusal."""
        state = self._state
        check_name(name)
        self.check_topics_max()
        topic_id = state.topics.next_id
        state.refuse_writes(state.shard_of(topic_id))
        epoch, now = state.topics.epoch_of(topic_id), state.clock.now_ms()
        topic = Topic(topic_id, name, epoch, config, state.totals, now)
        topic.begin_sync()
        return topic

    def _begin(self, topic: Topic, reserved_to: int, ticket: Ticket[Put] | None) -> None:
        """Add a new topic, and log its creation."""
        state, config = self._state, topic.config
        state.topics.add(topic)

        def done(error: HeadraceError | None) -> None:
            topic.end_sync()
            if error is not None:
                state.topics.release_name(topic)
                state.topics.remove(topic)
                if ticket is not None:
                    ticket.fail(error)
                return
            topic.go_live(reserved_to)
            state.totals.add(topic)
            if ticket is not None:
                ticket.resolve(Put(topic.name, topic.epoch, config, True))
            state.tell_created(topic)

        entry = TopicCreate(topic.name, topic.epoch, config.encode(), reserved_to, topic.created_ms)
        state.log(topic, ENTRY_TOPIC_CREATE, entry, needs_sync=True, done=done)

    def _check_bytes(self, config: TopicConfig, before: TopicConfig | None) -> None:
        """Refuse names that hold too much, unless they are the ones there are."""
        size, held = config.name_bytes, 0 if before is None else before.name_bytes
        if size and config != before:
            self._bytes.count(self._state.totals.config_bytes)
            self._bytes.check(size, instead_of=held)

    def _check_cold_reads(self, config: TopicConfig) -> None:
        if config.cold_reads and self._state.archive is None:
            raise ConfigError(
                "this server cannot read a lake: the package deltalake is not there",
                fix="pip install 'headrace[cold]' where `headrace serve` runs, and restart it",
                detail={"field": "cold_reads"},
            )

    def check_topics_max(self, more: int = 1) -> None:
        """Refuse topics beyond what is allowed."""
        topics, topics_max = len(self._state.by_name), self._state.settings.max_topics
        if topics_max and more and topics + more > topics_max:
            raise Throttled(
                f"{topics} topics exist, the most allowed",
                fix="delete topics, or raise HEADRACE_MAX_TOPICS",
                detail={"limit": "max_topics", "max": topics_max},
            )

    def _reconfigure(self, topic: Topic, config: TopicConfig, ticket: Ticket[Put]) -> None:
        state = self._state
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
            state.update_overtaken(topic)
            topic.reservation.raise_to(reserved_to)
            topic.mark_changed()
            retention.enforce(state, topic)
            ticket.resolve(Put(topic.name, topic.epoch, config, False))

        archived_to = max(topic.archived_seq, topic.archiving_to)
        entry = TopicConfigEntry(config.encode(), reserved_to, topic.staged, archived_to)
        state.log(topic, ENTRY_TOPIC_CONFIG, entry, needs_sync=True, done=done)


def check_dead_letter(name: str, config: TopicConfig) -> None:
    """A dead letter topic needs a valid name, and cannot be the queue itself."""
    if config.dead_letter is None:
        return
    check_name(config.dead_letter)
    if config.type == "queue" and config.dead_letter == name:
        raise InvalidRequest(
            f"{name!r} is its own dead letter topic", fix="name another topic for dead letters"
        )
