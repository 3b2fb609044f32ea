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
    HeadraceError,
    InvalidRequest,
    Throttled,
    TopicExistsIncompatible,
    TopicInUse,
    TopicNotEmpty,
    TopicNotFound,
)
from headrace.core.limits import fork_depth_max
from headrace.core.runtime import Ticket
from headrace.core.steps import Line, Steps, follow_at_once
from headrace.engine.forwarding_seam import Forwarding
from headrace.engine.removal import retention
from headrace.engine.state import EngineState
from headrace.engine.streams import rules
from headrace.engine.topics.config import TopicConfig
from headrace.engine.topics.config_checks import ConfigChecks
from headrace.engine.topics.names import check_name
from headrace.engine.topics.reconfiguring import RESERVE_AT_CREATE, reconfigure
from headrace.engine.topics.reconfiguring import Put as Put
from headrace.engine.topics.topic import Topic
from headrace.storage.block import Block
from headrace.storage.wal.frame import (
    ENTRY_TOPIC_CREATE,
    ENTRY_TOPIC_DELETE,
    TopicCreate,
    TopicDelete,
)

log = logging.getLogger("headrace.lifecycle")

Allowed = Callable[[str], bool]

# Deletes of topics that routers read from, waiting for their turn.
CLOSING_MAX = 10_000


class Deleted(NamedTuple):
    """Whether there was a topic to delete, and which routers went with it."""

    topic: str
    deleted: bool
    routers_removed: Sequence[str] = ()


class Lifecycle:
    """The set of topics."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._configs = ConfigChecks(state)
        # One after the other: two sources that feed each other would wait for each other.
        self._closing = Line(
            state.runtime, follow_at_once, waiting_max=CLOSING_MAX, what="deletes of sources"
        )

    def check_creatable(self, name: str, config: TopicConfig, create: bool) -> None:
        """Whether an append may create this topic."""
        if not create:
            raise TopicNotFound.named(name)
        check_name(name)
        self._configs.check_dead_letter(name, config)
        self._configs.check_bytes(config, None)
        self._configs.check_cold_reads(config)
        self.check_topics_max()

    def new_for_append(self, name: str, config: TopicConfig) -> Topic:
        """The topic that an append will create; nothing has changed yet."""
        return self._new(name, config)

    def new_fork(
        self, name: str, config: TopicConfig, parent: Topic, parent_to: int, state: bytes = b""
    ) -> Topic:
        """The same of a topic that begins with the records of `parent` up to `parent_to`.

        Its first own seq is the one behind; `begin_for_append` creates it.
        """
        assert parent.live and parent_to <= parent.head, (parent.name, parent_to)
        if config.type == "queue":
            raise InvalidRequest(
                f"{name!r} would be a queue, and jobs cannot be inherited",
                fix="fork it as a stream",
                detail={"topic": name},
            )
        depth = 1 + sum(1 for _ in parent.ancestors())
        if depth > fork_depth_max:
            raise InvalidRequest(
                f"{parent.name!r} is a fork of a fork, {depth - 1} times",
                fix="fork one of those it descends from, or copy its records to a new topic",
                detail={"limit": "fork_depth_max", "max": fork_depth_max},
            )
        topic = self._new(name, config, like=parent)
        topic.set_state(state)
        topic.inherit(parent.id, parent_to, parent.bequest(parent_to))
        return topic

    def begin_for_append(self, topic: Topic, count: int) -> None:
        """Create it; the append is acknowledged after the creation, in log order."""
        self._begin(topic, topic.head + count + RESERVE_AT_CREATE, None)

    def new_stream(self, name: str, config: TopicConfig, state: bytes) -> Topic:
        """The same of a stream that is no fork; `begin_stream` creates it."""
        topic = self._new(name, config)
        topic.set_state(state)
        return topic

    def begin_stream(self, topic: Topic, block: Block | None, ticket: Ticket[Put]) -> None:
        """Create a stream with its first records, all of it in one commit."""
        count = 0 if block is None else block.count
        if block is not None:
            topic.stage(block, True, 0)
        self._begin(topic, topic.head + count + RESERVE_AT_CREATE, ticket, block)

    def fork(
        self, name: str, config: TopicConfig, parent: Topic, parent_to: int, state: bytes = b""
    ) -> Ticket[Put]:
        """Create a fork, of a name that no topic has."""
        ticket: Ticket[Put] = Ticket(self._state.runtime)
        topic = self.new_fork(name, config, parent, parent_to, state)
        self._begin(topic, parent_to + RESERVE_AT_CREATE, ticket)
        return ticket

    def put(self, name: str, config: TopicConfig) -> Ticket[Put]:
        """Create a topic, or replace the config of the one that is there."""
        state = self._state
        state.refuse_unready()
        for needed in (name, config.dead_letter):
            if needed is not None:
                state.loading.refuse(needed)
        ticket: Ticket[Put] = Ticket(state.runtime)
        self._configs.check_dead_letter(name, config)
        topic = state.find(name)
        if topic is not None:
            rules.refuse_change(topic, "change of the config")
        self._configs.check_bytes(config, None if topic is None else topic.config)
        if topic is None or not topic.config.cold_reads:
            self._configs.check_cold_reads(config)
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
            reconfigure(state, topic, config, ticket)
        return ticket

    def change_stream(self, topic: Topic, config: TopicConfig, stream: bytes | None) -> Ticket[Put]:
        """Replace the config of a stream for its dialect, and its state in the same commit."""
        self._configs.check_bytes(config, topic.config)
        if not topic.config.cold_reads:
            self._configs.check_cold_reads(config)
        ticket: Ticket[Put] = Ticket(self._state.runtime)
        reconfigure(self._state, topic, config, ticket, stream)
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
        if topic is None or not topic.live or state.expiry.hides(topic):
            ticket.resolve(Deleted(name, False))
            return ticket
        rules.refuse_change(topic, "delete")
        return self._remove(topic, if_empty, allowed, ticket)

    def remove(self, topic: Topic, *, if_empty: bool = False) -> Ticket[Deleted]:
        """The same of a stream, for its dialect; one with forks is refused."""
        return self._remove(topic, if_empty, None, Ticket(self._state.runtime))

    def _remove(
        self, topic: Topic, if_empty: bool, allowed: Allowed | None, ticket: Ticket[Deleted]
    ) -> Ticket[Deleted]:
        state = self._state
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
        if topic.forks is not None:
            raise TopicInUse(
                f"{len(topic.forks)} forks of {topic.name!r} share its records",
                fix="delete the forks first",
                detail={"topic": topic.name, "forks": len(topic.forks)},
            )
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

    def _new(self, name: str, config: TopicConfig, like: Topic | None = None) -> Topic:
        """A topic of the next id, or a refusal; `like`: its log has to be that of this one.

        So the log has the creation of a fork behind all that it inherits.
        """
        state = self._state
        check_name(name)
        self.check_topics_max()
        topic_id = state.topics.next_id
        shard = state.shard_of(topic_id)
        while like is not None and shard is not state.shard_of(like.id):
            topic_id += 1
            shard = state.shard_of(topic_id)
        state.refuse_writes(shard)
        epoch, now = state.topics.epoch_of(topic_id), state.clock.now_ms()
        topic = Topic(topic_id, name, epoch, config, state.totals, now)
        topic.begin_sync()
        return topic

    def _begin(
        self,
        topic: Topic,
        reserved_to: int,
        ticket: Ticket[Put] | None,
        block: Block | None = None,
    ) -> None:
        """Add a new topic, and log its creation, with its first records if they are given."""
        state, config = self._state, topic.config
        state.topics.add(topic)

        def done(error: HeadraceError | None) -> None:
            topic.end_sync()
            if error is not None:
                if block is not None:
                    topic.unstage(block.first_seq, block, True, 0)
                state.topics.release_name(topic)
                state.topics.remove(topic)
                state.release_inherited(topic)
                if ticket is not None:
                    ticket.fail(error)
                return
            topic.go_live(reserved_to)
            state.totals.add(topic)
            if block is not None:
                topic.publish(block, True, True, 0, state.shard_of(topic.id))
            if ticket is not None:
                ticket.resolve(Put(topic.name, topic.epoch, config, True))
            state.tell_created(topic)

        entry = TopicCreate(
            topic.name,
            topic.epoch,
            config.encode(),
            reserved_to,
            topic.created_ms,
            topic.parent_id,
            topic.parent_to,
            topic.state,
            topic.bequest(topic.parent_to) if topic.parent_id else None,
        )
        behind = b"" if block is None else block.raw
        state.log(topic, ENTRY_TOPIC_CREATE, entry, needs_sync=True, done=done, behind=behind)

    def check_topics_max(self, more: int = 1) -> None:
        """Refuse topics beyond what is allowed."""
        topics, topics_max = len(self._state.by_name), self._state.settings.max_topics
        if topics_max and more and topics + more > topics_max:
            raise Throttled(
                f"{topics} topics exist, the most allowed",
                fix="delete topics, or raise HEADRACE_MAX_TOPICS",
                detail={"limit": "max_topics", "max": topics_max},
            )
