"""Which topics a sync means: names, patterns, and what belongs to the server."""

from __future__ import annotations

import pytest

from headrace.core.errors import NotFound
from headrace.lake.tables.topic_choice import chosen_topics, fits
from tests.support.lakes import Bench


def test_every_log_is_chosen(unsealed: Bench) -> None:
    client = unsealed.client
    for name in ("every-a", "every-b.staged-1", "every-c", "other"):
        client.append(name, [1])
    client.put_topic("every-jobs", {"type": "queue"})
    chosen = chosen_topics(client, [])
    assert [name for name in chosen if name.startswith("every-")] == ["every-a", "every-c"]
    assert chosen_topics(client, ["every-*"]) == ["every-a", "every-c"]
    assert chosen_topics(client, ["every-c", "*-*"]) == ["every-c", "every-a"]
    # Whoever writes a name out means it.
    named = ["every-jobs", "every-jobs", "every-b.staged-1", "not-there"]
    assert chosen_topics(client, named) == ["every-jobs", "every-b.staged-1", "not-there"]
    with pytest.raises(NotFound, match=r"'nothing-\*'"):
        chosen_topics(client, ["every-*", "nothing-*"])


def test_topics_of_the_server_itself_are_not_meant_by_a_star(unsealed: Bench) -> None:
    client = unsealed.client
    client.put_pipeline(
        "counts",
        {
            "sources": [{"topic": "every-a", "alias": "a"}],
            "sql": "select tag, data from a",
            "dest": {"topic": "copies"},
        },
    )
    own = [one.topic for one in client.topics("_")]
    assert own, "pipelines are kept in topics"
    assert not set(own) & set(chosen_topics(client, []))
    assert chosen_topics(client, own) == own


def test_a_pattern_is_no_regular_expression() -> None:
    assert fits("a.b*", "a.bc")
    assert not fits("a.b*", "axbc")
    assert not fits("a*", "ba")
    assert fits("a*", "a\nb")
    assert fits("*eu*", "orders-eu-1")


def test_a_star_means_nothing_of_the_server() -> None:
    for pattern in ("*", "*pipelines*", "?*"):
        assert not fits(pattern, "_pipelines")
    assert fits("_pipe*", "_pipelines")
    assert not fits("orders*", "orders.staged-7")
