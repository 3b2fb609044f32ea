"""Rules E: creating, configuring, deleting and recreating topics; epochs."""

from __future__ import annotations

import msgspec
import pytest

from headrace.core.errors import (
    Internal,
    InvalidRequest,
    Throttled,
    TopicExistsIncompatible,
    TopicNotEmpty,
    TopicNotFound,
)
from headrace.engine.engine import Engine
from headrace.engine.topics.config import TopicConfig, decode_config, make_config
from headrace.engine.topics.topic import Topic
from tests.support.engines import Start
from tests.support.expected_answers import TOPIC_DEFAULTS
from tests.support.sim_disks import SyncFailures

DEFAULTS = {
    **TOPIC_DEFAULTS,
    "retain_until_archived": False,
    "retain_bytes_max": 0,
    "cold_reads": "",
}
CUSTOM = {
    "type": "queue",
    "ttl_ms": 7,
    "cap_records": 8,
    "cap_bytes": 9,
    "discard": "reject",
    "durable": True,
    "durability": "fsync",
    "priority": -5,
    "auto_priority": False,
    "auto_create": False,
    "idempotency_window_ms": 11,
    "dedupe_node": False,
    "lease_ms": 1_000,
    "claim_jitter_ms": 12,
    "max_deliveries": 13,
    "dead_letter": "graveyard",
    "leases_durable": True,
    "retain_until_archived": True,
    "retain_bytes_max": 14,
    "cold_reads": "",
}


def names(engine: Engine) -> list[str]:
    return [info.topic for info in engine.topics()]


def test_a_fresh_topic(engine: Engine) -> None:
    put = engine.put_topic("t").result()
    assert put.created and put.topic == "t"
    state = engine.topic("t")
    assert (state.head_seq, state.earliest_seq, state.next_seq, state.count, state.bytes) == (
        0, 1, 1, 0, 0,
    )  # fmt: skip
    page = engine.read("t").result()
    assert (page.records, page.next_from_seq, page.caught_up, page.tombstone) == ([], 0, True, None)


# Creation


def test_e1_the_first_write_creates(engine: Engine) -> None:
    assert engine.append("t", [1]).result().created
    assert not engine.append("t", [2]).result().created


def test_e1_unless_told_not_to(engine: Engine) -> None:
    for how in ({"create": False}, {"config": {"auto_create": False}}):
        refused = engine.append("t", [1], **how)  # type: ignore[arg-type]
        assert isinstance(refused.error, TopicNotFound)
        assert refused.error.detail == {"topic": "t"}
    assert names(engine) == []
    assert engine.append("t", [1], create=True, config={"auto_create": False}).result().created


def test_e1_reads_and_deletes_never_create(engine: Engine) -> None:
    with pytest.raises(TopicNotFound):
        engine.topic("t")
    assert isinstance(engine.read("t").error, TopicNotFound)
    assert isinstance(engine.wait("t", 0).error, TopicNotFound)
    assert isinstance(engine.delete("t", before_seq=1).error, TopicNotFound)
    assert engine.delete_topic("t").result().deleted is False
    assert names(engine) == []


def test_e2_an_inline_config_counts_only_for_the_creating_write(
    engine: Engine, again: Start
) -> None:
    engine.append("t", [1], config={"cap_records": 2}).result()
    engine.append("t", [2, 3], config={"cap_records": 99, "type": "queue"}).result()
    engine = again(engine)
    assert engine.topic("t").config == TopicConfig(cap_records=2)
    assert engine.topic("t").count == 2


def test_e3_put_replaces_the_whole_config(engine: Engine, again: Start) -> None:
    engine.put_topic("t", {"durability": "fsync", "ttl_ms": 5_000}).result()
    put = engine.put_topic("t", {"cap_records": 7}).result()
    assert not put.created
    assert put.config == TopicConfig(cap_records=7) and put.config.durability == "disk"
    engine = again(engine)
    assert engine.topic("t").config == TopicConfig(cap_records=7)


def test_e3_an_identical_put_changes_nothing(engine: Engine) -> None:
    engine.put_topic("t", {"ttl_ms": 5}).result()
    batches = engine.state.shards[0].batches_total
    assert engine.put_topic("t", {"ttl_ms": 5}).result().created is False
    assert engine.state.shards[0].batches_total == batches


def test_e3_tightened_limits_apply_at_once(engine: Engine) -> None:
    engine.append("t", [1, 2, 3, 4]).result()
    engine.put_topic("t", {"cap_records": 1}).result()
    assert (engine.topic("t").count, engine.topic("t").earliest_seq) == (1, 4)


def test_e4_the_type_cannot_change(engine: Engine) -> None:
    engine.put_topic("t", {"type": "queue", "lease_ms": 500}).result()
    refused = engine.put_topic("t", {"lease_ms": 900})
    assert isinstance(refused.error, TopicExistsIncompatible) and refused.error.fix
    assert refused.error.detail == {
        "topic": "t", "existing_type": "queue", "requested_type": "log",
    }  # fmt: skip
    assert engine.topic("t").config.lease_ms == 500


def test_e5_concurrent_creates_yield_one_topic(engine: Engine, again: Start) -> None:
    tickets = [engine.put_topic("t", {"ttl_ms": 5}) for _ in range(16)]
    engine.runtime.run()  # type: ignore[attr-defined]
    assert sum(t.result().created for t in tickets) == 1
    assert len({t.result().epoch for t in tickets}) == 1
    engine = again(engine)
    assert names(engine) == ["t"] and len(engine.state.by_id) == 1


def test_e5_concurrent_first_writes_yield_one_topic(engine: Engine, again: Start) -> None:
    tickets = [engine.append("t", [n]) for n in range(16)]
    engine.runtime.run()  # type: ignore[attr-defined]
    assert [t.result().created for t in tickets] == [True] + [False] * 15
    engine = again(engine)
    assert engine.topic("t").head_seq == 16


# Deletion


@pytest.mark.parametrize("durability", ["ephemeral", "disk", "fsync"])
def test_e6_recreated_topics_start_at_one(engine: Engine, again: Start, durability: str) -> None:
    engine.append("t", [1, 2, 3], config={"durability": durability}).result()
    epoch = engine.topic("t").epoch
    assert engine.delete_topic("t").result().deleted
    assert names(engine) == []
    engine = again(engine)
    assert names(engine) == []
    assert engine.append("t", [b"new"], config={"durability": "disk"}).result().first_seq == 1
    engine = again(engine)
    assert [r.data for r in engine.read("t").result().records] == [b"new"]
    assert engine.topic("t").epoch > epoch


def test_e6_a_cursor_beyond_the_new_head_is_told(engine: Engine) -> None:
    engine.append("t", [1] * 5).result()
    engine.delete_topic("t").result()
    engine.append("t", [b"a", b"b"]).result()
    page = engine.read("t", 5).result()
    stone = page.tombstone
    assert stone is not None
    assert (stone.gap_from, stone.gap_to, stone.reason) == (1, 2, "recreated")
    assert [r.data for r in page.records] == [b"a", b"b"] and page.caught_up


def test_e7_a_cursor_of_another_epoch_is_told_wherever_it_is(engine: Engine, again: Start) -> None:
    engine.append("t", [1] * 5).result()
    epoch = engine.topic("t").epoch
    assert engine.read("t", 2, epoch=epoch).result().tombstone is None
    engine.delete_topic("t").result()
    engine.append("t", [1] * 5).result()
    engine = again(engine)
    page = engine.read("t", 2, epoch=epoch).result()
    assert page.tombstone is not None and page.tombstone.reason == "recreated"
    assert page.count == 5 and page.epoch != epoch
    assert engine.read("t", 2, epoch=page.epoch).result().tombstone is None


def test_e8_ids_are_never_used_again(engine: Engine, again: Start) -> None:
    seen = set()
    for _ in range(4):
        engine.append("t", [1]).result()
        topic_id = engine.state.topic("t").id
        assert topic_id not in seen
        seen.add(topic_id)
        engine.delete_topic("t").result()
        engine = again(engine)


def test_if_empty_refuses_a_topic_with_records(engine: Engine) -> None:
    engine.append("t", [1, 2]).result()
    refused = engine.delete_topic("t", if_empty=True)
    assert isinstance(refused.error, TopicNotEmpty)
    assert refused.error.detail == {"topic": "t", "count": 2}
    assert engine.topic("t").count == 2
    engine.delete("t", before_seq=3).result()
    assert engine.delete_topic("t", if_empty=True).result().deleted


def test_if_empty_sees_what_is_in_flight(engine: Engine) -> None:
    engine.put_topic("t").result()
    ticket = engine.append("t", [1])
    assert isinstance(engine.delete_topic("t", if_empty=True).error, TopicNotEmpty)
    assert ticket.result().first_seq == 1


def test_a_delete_frees_files_and_memory(engine: Engine) -> None:
    disk = engine.state.fs
    engine.append("t", [b"x" * 100] * 10).result()
    engine.checkpoint().result()
    engine.delete_topic("t").result()
    assert engine.state.totals.bytes == 0 and engine.state.totals.resident_bytes == 0
    for _ in range(3):
        engine.append("other", [1]).result()
        engine.checkpoint().result()
    held = b"".join(d for path, d in disk.contents().items() if path.startswith("segments/"))
    assert b"x" * 100 not in held


def test_a_name_is_free_while_its_delete_is_in_flight(engine: Engine, again: Start) -> None:
    engine.append("t", [b"old"], config={"durability": "fsync"}).result()
    deleting = engine.delete_topic("t")
    created = engine.append("t", [b"new"])
    engine.runtime.run()  # type: ignore[attr-defined]
    assert deleting.result().deleted and created.result().first_seq == 1
    engine = again(engine)
    assert [r.data for r in engine.read("t").result().records] == [b"new"]


def test_a_waiting_reader_hears_of_the_delete(engine: Engine) -> None:
    engine.append("t", [1]).result()
    waiting = engine.wait("t", 1)
    assert not waiting.done
    engine.delete_topic("t").result()
    assert waiting.done and waiting.error is None
    assert isinstance(engine.read("t", 1).error, TopicNotFound)


def test_deletion_is_heard_at_once_and_after_the_answer(engine: Engine) -> None:
    heard: list[str] = []

    def failing(_topic: Topic) -> None:
        raise RuntimeError("a listener's own mistake")

    state = engine.state
    state.on_topic_created(failing)
    state.on_topic_created(lambda topic: heard.append(f"created {topic.name}"))
    state.on_topic_deleted(failing)
    state.on_topic_deleted(lambda topic: heard.append(f"deleted {topic.epoch}"))
    engine.append("t", [1]).result()
    first = engine.topic("t").epoch
    waiting = engine.wait("t", 1)
    ticket = engine.delete_topic("t")
    ticket.when_done(lambda _done: heard.append(f"answered, waiter {waiting.done}"))
    assert not waiting.done, "not before it is durable"
    ticket.result()
    assert waiting.done
    assert heard == ["created t", "answered, waiter True", f"deleted {first}"]
    assert engine.delete_topic("t").result().deleted is False
    assert len(heard) == 3
    engine.put_topic("t").result()
    assert heard[3:] == ["created t"]


def test_a_delete_that_the_log_refuses_is_not_heard(start: Start) -> None:
    failures = SyncFailures()
    engine = start(failures.fs)
    heard: list[str] = []
    engine.state.on_topic_deleted(lambda topic: heard.append(topic.name))
    engine.append("t", [1, 2]).result()
    waiting = engine.wait("t", 2)
    failures.on = True
    with pytest.raises(Internal):
        engine.delete_topic("t").result()
    assert not heard and not waiting.done
    assert [info.topic for info in engine.topics()] == ["t"]
    totals = engine.state.totals
    assert (totals.topics, totals.records, totals.by_class["disk"]) == (1, 2, 1)


def test_topics_are_listed_by_name(engine: Engine) -> None:
    for name in ("b", "a:2", "a:10", "é", "Z"):
        engine.put_topic(name).result()
    assert names(engine) == ["Z", "a:10", "a:2", "b", "é"]
    assert [info.topic for info in engine.topics("a:")] == ["a:10", "a:2"]


def test_the_topic_cap_admits_exactly_so_many(start: Start) -> None:
    engine = start(max_topics=3)
    tickets = [engine.put_topic(f"t{n}") for n in range(4)] + [engine.append("t9", [1])]
    engine.runtime.run()  # type: ignore[attr-defined]
    assert [t.error is None for t in tickets] == [True, True, True, False, False]
    error = tickets[3].error
    assert isinstance(error, Throttled)
    assert error.detail == {"limit": "max_topics", "max": 3}
    engine.append("t0", [1]).result()
    engine.put_topic("t1", {"ttl_ms": 9}).result()
    engine.delete_topic("t2").result()
    engine.put_topic("t9").result()
    assert names(engine) == ["t0", "t1", "t9"]


# Config


def test_the_config_has_twenty_fields_and_these_defaults() -> None:
    assert msgspec.to_builtins(TopicConfig()) == DEFAULTS
    assert len(DEFAULTS) == 20
    assert msgspec.json.decode(TopicConfig().encode()) == DEFAULTS


def test_every_field_of_a_config_survives(engine: Engine, again: Start) -> None:
    engine.put_topic("t", CUSTOM).result()
    engine = again(engine)
    assert msgspec.to_builtins(engine.topic("t").config) == CUSTOM


def test_durable_is_an_alias() -> None:
    assert make_config({"durable": True}).durability == "fsync"
    assert make_config({"durable": False}).durability == "disk"
    assert make_config({"durable": True, "durability": "memory"}).durability == "memory"
    assert make_config({"durable": True, "durability": "memory"}).durable is False


def test_lease_and_jitter_are_clamped() -> None:
    low, high = make_config({"lease_ms": 1}), make_config({"lease_ms": 10**12})
    assert (low.lease_ms, high.lease_ms) == (100, 86_400_000)
    assert make_config({"claim_jitter_ms": 10**9}).claim_jitter_ms == 5_000


def test_unknown_fields_are_ignored_on_the_wire_and_refused_in_a_program() -> None:
    with pytest.raises(InvalidRequest, match="did you mean ttl_ms"):
        make_config({"tll_ms": 3})
    assert decode_config(b'{"nothing": [{}], "ttl_ms": 3}') == TopicConfig(ttl_ms=3)


BAD_CONFIGS = [
    {"type": "stream"},
    {"type": None},
    {"ttl_ms": -1},
    {"ttl_ms": 1.5},
    {"ttl_ms": "5"},
    {"ttl_ms": True},
    {"ttl_ms": None},
    {"ttl_ms": 1 << 64},
    {"cap_records": -1},
    {"cap_bytes": 1 << 70},
    {"discard": "new"},
    {"durable": 1},
    {"durability": "banana"},
    {"priority": "high"},
    {"priority": 1 << 31},
    {"priority": -(1 << 31) - 1},
    {"auto_priority": "yes"},
    {"idempotency_window_ms": -5},
    {"lease_ms": -1},
    {"max_deliveries": -1},
    {"dead_letter": 7},
    {"dead_letter": ""},
    {"leases_durable": None},
    {"retain_until_archived": 1},
    {"retain_bytes_max": -1},
    {"cold_reads": "s3"},
    {"cold_reads": None},
    {"cold_reads": "lake", "type": "queue"},
    {"cold_reads": "lake", "durability": "ephemeral"},
    [1],
    "config",
    5,
]


@pytest.mark.parametrize("config", BAD_CONFIGS, ids=repr)
def test_a_bad_config_is_refused_and_changes_nothing(engine: Engine, config: object) -> None:
    tickets = [
        engine.put_topic("t", config),  # type: ignore[arg-type]
        engine.append("t", [1], config=config),  # type: ignore[arg-type]
    ]
    for ticket in tickets:
        assert isinstance(ticket.error, InvalidRequest), ticket.error
        assert ticket.error.fix
    assert names(engine) == [] and not engine.state.by_id
    engine.append("t", [1]).result()


@pytest.mark.parametrize(
    "config", [c for c in BAD_CONFIGS if isinstance(c, dict) and "durable" not in c], ids=repr
)
def test_a_config_that_could_not_be_read_back_cannot_be_made(
    engine: Engine, config: dict[str, object]
) -> None:
    """Otherwise the directory could not be opened again."""
    with pytest.raises(InvalidRequest):
        engine.put_topic("t", TopicConfig(**config)).result()  # type: ignore[arg-type]
    assert names(engine) == []


def test_a_queue_is_not_its_own_dead_letter(engine: Engine) -> None:
    config = {"type": "queue", "dead_letter": "t"}
    assert isinstance(engine.put_topic("t", config).error, InvalidRequest)
    assert isinstance(engine.append("t", [1], config=config).error, InvalidRequest)
    assert names(engine) == []
    engine.put_topic("u", config).result()
