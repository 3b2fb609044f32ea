"""Forks without a dialect above them: how tests make them, and delete what has some."""

from __future__ import annotations

from headrace.engine.engine import Engine
from headrace.engine.streams.state import StreamState, encode_stream
from headrace.engine.topics.config import make_config
from headrace.engine.topics.topic import Topic
from headrace.storage.wal.frame import ENTRY_STATE, State

KEPT = encode_stream(StreamState("test", "", 0, deleted=True))


def fork(engine: Engine, source: str, to: int, name: str, **config: object) -> Topic:
    """Make a fork, and wait until it is there."""
    state = engine.state
    settings = make_config({"durability": "fsync", **config})
    engine._lifecycle.fork(name, settings, state.topic(source), to).result()
    return state.topic(name)


def delete(engine: Engine, name: str) -> None:
    """Delete a topic; where it has forks, keep it for them alone."""
    topic = engine.state.topic(name)
    if topic.forks is None:
        engine._lifecycle.delete(name).result()
    else:
        keep_for_forks(engine, topic)
    engine.runtime.drain()


def keep_for_forks(engine: Engine, topic: Topic) -> None:
    """Mark a topic as deleted but for its forks."""

    def done(error: BaseException | None) -> None:
        assert error is None, error
        topic.set_state(KEPT)
        topic.mark_changed()
        engine.streams._removal.collect(topic)

    engine.state.log(topic, ENTRY_STATE, State(KEPT), needs_sync=True, done=done)
    engine.flush()
    engine.runtime.drain()
