"""Forks: topics that begin with another one's records, and share its bytes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.core.errors import Internal, InvalidRequest
from headrace.core.limits import fork_depth_max
from headrace.engine.engine import Engine
from headrace.engine.live.hub import LiveHub
from headrace.engine.live.journal import PatternListener
from headrace.engine.topics.topic import Topic
from tests.support.engines import Start
from tests.support.forks import fork
from tests.support.sim_disks import SyncFailures

CLASSES = ("fsync", "disk", "memory")


def append(engine: Engine, name: str, values: Sequence[object], **options: object) -> None:
    engine.append(name, list(values), **options).result()  # type: ignore[arg-type]


def shape(engine: Engine, name: str) -> tuple[int, int, int, int, int]:
    info, topic = engine.topic(name), engine.state.topic(name)
    return info.head_seq, info.earliest_seq, info.count, topic.parent_id, topic.parent_to


# Creation


@pytest.mark.parametrize("durability", CLASSES)
@pytest.mark.parametrize("shards", [1, 4])
def test_a_fork_begins_behind_what_it_inherits(
    start: Start, kill: Start, durability: str, shards: int
) -> None:
    engine = start(wal_shards=shards)
    config = {"durability": durability}
    engine.put_topic("source", config).result()
    append(engine, "source", range(10))
    made = fork(engine, "source", 6, "fork", durability=durability)
    source = engine.state.topic("source")
    assert made.parent is source and list((source.forks or {}).values()) == [made]
    assert engine.state.shard_of(made.id) is engine.state.shard_of(source.id)
    expected = (6, 1, 6, source.id, 6)
    assert shape(engine, "fork") == expected
    engine = kill(engine)
    assert shape(engine, "fork") == expected
    append(engine, "fork", ["own"])
    assert shape(engine, "fork") == (7, 1, 7, source.id, 6)
    append(engine, "source", ["more"])
    assert shape(engine, "source") == (11, 1, 11, 0, 0)
    for _ in range(2):
        engine = kill(engine)
        fork_again, source_again = engine.state.topic("fork"), engine.state.topic("source")
        assert fork_again.parent is source_again
        assert shape(engine, "fork") == (7, 1, 7, source.id, 6)
        engine.checkpoint().result()


def test_chains_come_back_from_a_snapshot_and_from_the_log(start: Start, kill: Start) -> None:
    engine = start()
    append(engine, "a", range(4))
    fork(engine, "a", 4, "b")
    append(engine, "b", range(4))
    engine.checkpoint().result()
    fork(engine, "b", 6, "c")
    append(engine, "c", range(2))
    fork(engine, "c", 3, "d")
    for _ in range(3):
        a, b, c, d = (engine.state.topic(name) for name in "abcd")
        assert (b.parent, c.parent, d.parent) == (a, b, c)
        assert c.shares == ((a, 1, 4), (b, 5, 6))
        assert d.shares == ((a, 1, 3),)
        assert [topic.head for topic in (a, b, c, d)] == [4, 8, 8, 3]
        engine = kill(engine)
        engine.checkpoint().result()


class Heard(PatternListener):
    """What the journal tells of topics."""

    def __init__(self) -> None:
        self.published_from: list[tuple[str, int]] = []

    def published(self, topic: Topic, number: int, head: int) -> None:
        self.published_from.append((topic.name, head))


def test_to_readers_of_patterns_all_of_a_new_fork_is_new(engine: Engine) -> None:
    append(engine, "f-source", range(4))
    hub, heard = LiveHub(engine), Heard()
    hub.journal.hold()
    hub.journal.listen("f-", heard)
    fork(engine, "f-source", 0, "f-empty")
    fork(engine, "f-source", 3, "f-fork")
    append(engine, "f-fork", ["own"])
    engine.runtime.run()  # type: ignore[attr-defined]
    assert heard.published_from == [("f-fork", 0), ("f-fork", 3)]


def test_a_creation_that_fails_leaves_no_fork(start: Start) -> None:
    failures = SyncFailures()
    engine = start(failures.fs)
    append(engine, "source", range(4))
    failures.on = True
    with pytest.raises(Internal):
        fork(engine, "source", 3, "fork")
    assert engine.state.find("fork") is None and engine.state.topic("source").forks is None


def test_a_fork_is_no_queue(engine: Engine) -> None:
    append(engine, "source", range(4))
    with pytest.raises(InvalidRequest, match="jobs"):
        fork(engine, "source", 3, "fork", type="queue")


def test_a_chain_has_an_end(engine: Engine) -> None:
    append(engine, "f0", [1])
    for depth in range(fork_depth_max):
        fork(engine, f"f{depth}", 1, f"f{depth + 1}")
    with pytest.raises(InvalidRequest, match="copy its records"):
        fork(engine, f"f{fork_depth_max}", 1, "too-deep")
    assert engine.state.find("too-deep") is None
    assert engine.state.topic(f"f{fork_depth_max}").forks is None
