"""The hub: listeners of names, and options that are one object."""

from __future__ import annotations

from headrace.engine.engine import Engine
from headrace.engine.live.hub import LiveHub
from headrace.engine.topics.topic import Topic


def test_names_are_heard_of_by_prefix(engine: Engine, hub: LiveHub) -> None:
    heard: dict[str, list[str]] = {"": [], "a": [], "a:b": []}

    def listener(prefix: str) -> None:
        def created(topic: Topic) -> None:
            heard[prefix].append(topic.name)

        hub.follow_names(prefix, created)

    for prefix in heard:
        listener(prefix)
    for name in ("a", "a:b", "a:bc", "b", "ab"):
        engine.append(name, [1]).result()
    assert heard == {
        "": ["a", "a:b", "a:bc", "b", "ab"],
        "a": ["a", "a:b", "a:bc", "ab"],
        "a:b": ["a:b", "a:bc"],
    }


def test_names_may_be_left(engine: Engine, hub: LiveHub) -> None:
    heard: list[Topic] = []
    hub.follow_names("a", heard.append)
    hub.leave_names("a", heard.append)
    engine.append("a", [1]).result()
    assert heard == []
    assert not hub._by_prefix


def test_options_that_nobody_uses_are_forgotten(hub: LiveHub) -> None:
    assert hub.page_options(1, 2, ("n",), True) is hub.page_options(1, 2, ("n",), True)
    assert len(hub._options) == 0
    kept = hub.page_options(1, 2, ())
    assert kept is not hub.page_options(1, 3, ())
    assert len(hub._options) == 1
