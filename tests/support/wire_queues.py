"""Calls to a queue over HTTP."""

from __future__ import annotations

import time
from typing import Any

from tests.support.speakers import Speaker

SECONDS_MAX = 10


def make(speak: Speaker, topic: str, jobs: int = 0, **config: object) -> str:
    """A queue with jobs 1, 2, …; its path."""
    speak.ok("PUT", f"/v0/topics/{topic}", {"type": "queue", **config})
    if jobs:
        speak.append(topic, *range(1, jobs + 1))
    return f"/v0/topics/{topic}"


def claim(speak: Speaker, path: str, most: int = 1, node: str = "w", **fields: object) -> Any:
    return speak.ok("POST", f"{path}/claim", {"node": node, "max": most, **fields})


def claimed_seqs(claimed: Any) -> list[int]:
    return [job["$seq"] for job in claimed["claimed"]]


def counts(speak: Speaker, topic: str) -> tuple[int, int, int]:
    queue = speak.state(topic)["queue"]
    return queue["ready"], queue["in_flight"], queue["dead_lettered"]


def until(speak: Speaker, topic: str, expected: tuple[int, int, int]) -> None:
    """Wait for these counts."""
    deadline = time.monotonic() + SECONDS_MAX
    while counts(speak, topic) != expected:
        assert time.monotonic() < deadline, (counts(speak, topic), expected)
        time.sleep(0.01)


def work(path: str, node: str = "w", query: str = "") -> str:
    return f"{path}/work?node={node}{query}"
