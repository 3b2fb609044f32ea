"""A topic is ordinary exactly while nothing about it can refuse an append."""

from __future__ import annotations

import pytest

from headrace.engine.topics.config import TopicConfig, make_config
from headrace.engine.topics.topic import Topic


@pytest.mark.parametrize(
    ("config", "ordinary"),
    [
        ({}, True),
        ({"durability": "fsync"}, True),
        ({"type": "queue"}, True),
        ({"durability": "ephemeral"}, False),
        ({"ttl_ms": 5}, False),
        ({"cap_records": 5}, False),
        ({"cap_bytes": 5}, False),
    ],
)
def test_its_config_decides(config: dict[str, object], ordinary: bool) -> None:
    topic = Topic(1, "t", 1, TopicConfig())
    assert topic.ordinary
    topic.set_config(make_config(config))
    assert topic.ordinary is ordinary
    topic.set_config(TopicConfig())
    assert topic.ordinary


def test_one_that_is_being_deleted_is_not() -> None:
    topic = Topic(1, "t", 1, TopicConfig())
    topic.close_to_writers()
    assert not topic.ordinary
    topic.set_config(make_config({"durability": "fsync"}))
    assert not topic.ordinary
    topic.open_to_writers()
    assert topic.ordinary
