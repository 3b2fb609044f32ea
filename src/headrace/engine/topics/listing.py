"""What is said of a topic when its state is asked for, and pages of such states by name.

Only this file makes a `TopicInfo`.  Every answer is exact for its instant: caps and TTL are applied
first.  Asking counts as consuming a topic only where the caller says so (`touch`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from headrace.engine.removal import retention
from headrace.engine.scheduling.priority import priority_of
from headrace.engine.state import EngineState
from headrace.engine.streams.state import StreamState
from headrace.engine.topics.config import TopicConfig
from headrace.engine.topics.topic import Topic

NAMES_TURNED_DOWN_MAX = 10_000  # in one page


class TopicInfo(msgspec.Struct, frozen=True):
    """The state of one topic."""

    topic: str
    epoch: int
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int  # of a fork about
    config: TopicConfig
    last_write_ms: int  # 0: never
    last_read_ms: int = 0  # 0: never since the start
    effective_priority: int = 0
    archived_seq: int = 0  # records up to here are in an archive, too; 0: never told
    overtaken_seq: int = 0  # the last record that retention took before that; 0: none
    stream: StreamState | None = None  # None: the topic is no stream

    @property
    def next_seq(self) -> int:
        return self.head_seq + 1


class TopicPage(NamedTuple):
    """Some topics, and the name after which the next page begins; None: there are no more."""

    topics: list[TopicInfo]
    after: str | None


def info_of(state: EngineState, topic: Topic, *, touch: bool = False) -> TopicInfo:
    """The state of a topic, now; `touch`: it is being consumed."""
    now = state.clock.now_ms()
    if touch:
        topic.touch(now)
    retention.enforce(state, topic)
    return TopicInfo(
        topic.name,
        topic.epoch,
        topic.head,
        topic.earliest_seq,
        topic.count,
        topic.shown_bytes,
        topic.config,
        topic.last_write_ms,
        topic.last_read_ms,
        priority_of(topic, now),
        topic.archived_seq,
        topic.overtaken_seq,
        topic.stream,
    )


def page_of(
    state: EngineState,
    prefix: str,
    after: str,
    limit: int,
    allowed: Callable[[str], bool] | None,
    touch: bool,
) -> TopicPage:
    """At most `limit` topics in the byte order of their names, from beyond `after` on.

    A page can be short, or empty, although there are more, when `allowed` turns down very many
    names: what a page costs is bounded.
    """
    found: list[Topic] = []
    turned_down = 0
    more = False
    for name in state.topics.names_after(after, prefix):
        if len(found) >= limit or turned_down == NAMES_TURNED_DOWN_MAX:
            more = True
            break
        after = name
        if allowed is not None and not allowed(name):
            turned_down += 1
            continue
        topic = state.by_name[name]
        if topic.live and not (topic.stream and state.expiry.hides(topic)):
            found.append(topic)
    infos = [info_of(state, topic, touch=touch) for topic in found]
    return TopicPage(infos, after if more else None)
