"""Watches over more topics than are followed one by one: with four topics, not with a thousand."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from headrace.wire.native import watch as native_watch
from headrace.wire.native import watch_session, watch_stream
from tests.support.live_readers import Event, Live, Watcher


@pytest.fixture(autouse=True)
def three_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (native_watch, watch_session, watch_stream):
        monkeypatch.setattr(module, "FOLLOWED_TOPICS_MAX", 3)


def fill(live: Live, count: int, *values: int) -> list[str]:
    names = [f"t{number:02}" for number in range(count)]
    for name in names:
        live.append(name, *(values or (1,)))
    return names


def read(events: list[Event]) -> dict[str, list[int]]:
    """The seqs of each topic, in the order in which they came."""
    found: dict[str, list[int]] = defaultdict(list)
    for event in events:
        if event.event == "record":
            found[event.data["topic"]] += event.seqs
    return dict(found)


def held(live: Live) -> int:
    return live.metrics.sources.holders.bytes_of("watch_session")


def events_so_far(watcher: Watcher) -> list[Event]:
    """What came until now; nothing more is done for it."""
    blocks = watcher.outlet.take().decode().split("\n\n")
    return [Event(block) for block in blocks if block.startswith("id")]


def resume(live: Live, session: Any, last: str) -> Watcher:
    return live.open(session, **({"last_event_id": last} if last else {}))


def again(live: Live, session: Any, watcher: Watcher, last: str = "") -> Watcher:
    watcher.outlet.hang_up()
    return resume(live, session, last)
