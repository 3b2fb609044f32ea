"""Very many topics with one record each: what they cost in memory, and how soon they are back."""

from __future__ import annotations

import time

from bench.measure import SINGLE, Measured, die, opened, resident_mb, settings_of, step
from headrace.engine.engine import Engine
from headrace.storage.block import Batch

TOPICS = 100_000
STAGED = 1_000  # topics created in one turn


def run(directory: str, quick: bool) -> dict[str, Measured]:
    topics = 1_000 if quick else TOPICS
    log, sealed = f"{directory}/log", f"{directory}/sealed"
    filled = step("case_topics:fill", directory=log, topics=topics, checkpoint=False)
    step("case_topics:fill_and_die", directory=log, topics=topics, checkpoint=False)
    step("case_topics:fill_and_die", directory=sealed, topics=topics, checkpoint=True)
    from_log = step("case_topics:reopen", directory=log, topics=topics)
    from_snapshot = step("case_topics:reopen", directory=sealed, topics=topics)
    return {
        "topics_resident": filled["resident"],
        "topics_create_cpu": filled["cpu"],
        "topics_ready_log": from_log["seconds"],
        "topics_ready_snapshot": from_snapshot["seconds"],
        "topics_resident_after": max(from_log["resident"], from_snapshot["resident"]),
        "topics_bytes_each": filled["each"],
    }


def fill(directory: str, topics: int, checkpoint: bool, end: bool = False) -> dict[str, float]:
    place = directory if end else f"{directory}-living"
    engine = Engine.open(place, settings_of(place))
    before, started = resident_mb(), time.process_time()
    for first in range(0, topics, STAGED):
        names = range(first, min(first + STAGED, topics))
        tickets = [engine.append(f"orders-{n:06d}", SINGLE) for n in names]
        tickets[-1].result()
        assert all(ticket.done for ticket in tickets)
    cpu = time.process_time() - started
    if checkpoint:
        engine.checkpoint().result()
    resident = resident_mb()
    if end:
        die()
    engine.abandon()
    return {
        "resident": resident,
        "cpu": cpu / topics * 1e6,
        "each": (resident - before) * 1e6 / topics,
    }


def fill_and_die(directory: str, topics: int, checkpoint: bool) -> None:
    fill(directory, topics, checkpoint, end=True)


def reopen(directory: str, topics: int) -> dict[str, float]:
    started = time.monotonic()
    with opened(directory) as engine:
        seconds = time.monotonic() - started
        assert len(engine.topics()) == topics, len(engine.topics())
        assert engine.append("orders-000000", Batch([b"{}"])).result().first_seq == 2
        return {"seconds": seconds, "resident": resident_mb()}
