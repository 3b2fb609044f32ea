"""What routers and configs may hold in bytes (native §1.9d): refused at the door, not later."""

from __future__ import annotations

import pytest

from headrace.core.errors import InvalidRequest, Throttled
from headrace.engine.removal.deleting import TagMatch
from headrace.engine.routers.state import RouterOptions
from headrace.engine.topics.config import TopicConfig
from headrace.testing.simdisk import SimDisk
from tests.support.engines import Start

KIB = 1 << 10


def options(dest: str, filter: str | None = None) -> RouterOptions:
    match = None if filter is None else TagMatch(filter, prefix=False)
    return RouterOptions(source="from", dest=dest, filter=match)


def test_a_router_that_holds_too_much_is_refused(start: Start) -> None:
    engine = start(router_bytes_max=KIB)
    with pytest.raises(InvalidRequest, match="HEADRACE_ROUTER_BYTES_MAX") as refused:
        engine.routers.put("big", options("to", "x" * KIB))
    assert refused.value.detail == {"limit": "router_bytes_max", "max": KIB}
    assert engine.figures.router_bytes == 0
    assert engine.find("to") is None, "nothing was created"


def test_all_routers_together_are_bounded(start: Start) -> None:
    engine = start(router_bytes_max=KIB, routers_bytes_max=2 * KIB)
    for name in ("a", "b"):
        engine.routers.put(name, options(f"to-{name}", "x" * 900)).result()
    with pytest.raises(Throttled, match="HEADRACE_ROUTERS_BYTES_MAX"):
        engine.routers.put("c", options("to-c", "x" * 900))
    held = engine.figures.router_bytes
    engine.routers.put("b", options("to-b", "y")).result()  # smaller: what exists can be changed
    assert engine.figures.router_bytes == held - 899
    engine.routers.put("c", options("to-c", "x" * 900)).result()
    for name in ("a", "b", "c"):
        engine.routers.delete(name).result()
    assert engine.figures.router_bytes == 0


def test_a_config_that_holds_too_much_is_refused(start: Start) -> None:
    engine = start(topic_config_bytes_max=100)
    config = TopicConfig(type="queue", dead_letter="d" * 101)
    with pytest.raises(InvalidRequest, match="HEADRACE_TOPIC_CONFIG_BYTES_MAX"):
        engine.put_topic("jobs", config).result()
    with pytest.raises(InvalidRequest, match="HEADRACE_TOPIC_CONFIG_BYTES_MAX"):
        engine.append("jobs", [1], config=config).result()
    assert engine.find("jobs") is None
    engine.put_topic("jobs", TopicConfig(type="queue", dead_letter="d" * 100)).result()
    assert engine.figures.topic_config_bytes == 100


def test_all_configs_together_are_bounded(start: Start) -> None:
    engine = start(topic_configs_bytes_max=1_100)
    config = TopicConfig(type="queue", dead_letter="d" * 500)
    for name in ("a", "b"):
        engine.put_topic(name, config).result()
    with pytest.raises(Throttled, match="HEADRACE_TOPIC_CONFIGS_BYTES_MAX"):
        engine.put_topic("c", config).result()
    engine.put_topic("b", TopicConfig(type="queue")).result()
    engine.put_topic("c", config).result()
    engine.delete_topic("a").result()
    engine.delete_topic("c").result()
    assert engine.figures.topic_config_bytes == 0


def test_a_directory_with_larger_ones_opens(start: Start) -> None:
    """They are counted, and can be kept, made smaller and deleted, not made larger."""
    disk = SimDisk()
    before = start(disk)
    big = TopicConfig(type="queue", dead_letter="d" * 500)
    before.put_topic("jobs", big).result()
    before.routers.put("big", options("to", "x" * 2_000)).result()
    before.close()
    engine = start(
        disk,
        router_bytes_max=KIB,
        routers_bytes_max=KIB,
        topic_config_bytes_max=100,
        topic_configs_bytes_max=KIB,
    )
    assert engine.figures.router_bytes > 2_000
    assert engine.figures.topic_config_bytes == 500
    assert not engine.put_topic("jobs", big).result().created, "as it is"
    engine.put_topic("jobs", TopicConfig(type="queue", dead_letter="d")).result()
    with pytest.raises(InvalidRequest):
        engine.put_topic("jobs", big).result()
    engine.routers.put("big", options("to", "x")).result()
    assert engine.figures.router_bytes < 100
