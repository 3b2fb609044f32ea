"""What a reader sees, and when: never less than was acknowledged, never ahead of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.core.runtime import StepRuntime, Ticket
from headrace.engine.appending.pending_append import Appended
from headrace.engine.engine import Engine
from tests.support.seqs import seqs_read

Start = Callable[..., Engine]
CLASSES = ("ephemeral", "memory", "disk", "fsync")


def runtime_of(engine: Engine) -> StepRuntime:
    assert isinstance(engine.runtime, StepRuntime)
    return engine.runtime


@pytest.mark.parametrize("durability", CLASSES)
def test_a_cursor_does_not_run_ahead_of_what_is_visible(start: Start, durability: str) -> None:
    """A page that ends at the head must not skip what is on its way."""
    engine = start()
    engine.append("t", [1], config={"durability": durability}).result()
    ticket = engine.append("t", [2, 3])
    cursor = engine.read("t").result().next_from_seq
    assert cursor == engine.topic("t").head_seq
    ticket.result()
    assert seqs_read(engine, from_seq=cursor) == list(range(cursor + 1, 4))


@pytest.mark.parametrize("durability", CLASSES)
def test_what_is_acknowledged_can_be_read_at_once(start: Start, durability: str) -> None:
    """In the very call that tells the writer."""
    engine = start()
    engine.put_topic("t", {"durability": durability}).result()
    seen: list[tuple[int, int, list[int]]] = []

    def acknowledged(ticket: Ticket[Appended]) -> None:
        info = engine.topic("t")
        seen.append((ticket.result().last_seq, info.head_seq, seqs_read(engine)))

    for n in range(3):
        engine.append("t", [n]).when_done(acknowledged)
    runtime_of(engine).run()
    assert [last for last, _, _ in seen] == [1, 2, 3]
    for last, head, read in seen:
        assert head == last and read == list(range(1, last + 1))


def test_no_append_overtakes_an_earlier_one_of_its_topic(start: Start) -> None:
    """One that waits for a sync, and one after it that would not have to.

    Seqs of `t` run out while more are reserved but not yet durable, so that an append waits; then
    they become durable while it is still waiting.
    """
    engine = start()
    for name, durability in (("t", "disk"), ("neighbour", "disk"), ("synced", "fsync")):
        engine.put_topic(name, {"durability": durability}).result()
    topic, (shard,) = engine.state.topic("t"), engine.state.shards
    runtime_of(engine).run()
    order: list[str] = []
    asking = engine.append("t", [0] * (topic.reservation.valid_to - 1))
    engine.append("synced", [0])
    engine.flush()
    while not shard.syncs.running:  # one that will make durable what the first append asked for
        assert runtime_of(engine).step()
    assert asking.done and shard.durable < topic.reservation.mark
    waiting = engine.append("t", [1, 2])
    waiting.when_done(lambda _: order.append("first"))
    engine.append("neighbour", [0])
    engine.flush()  # Written at once for the sake of the neighbour, but after that sync began.
    while shard.durable < topic.reservation.mark:
        assert runtime_of(engine).step()
    assert not waiting.done
    engine.append("t", [3]).when_done(lambda _: order.append("second"))
    runtime_of(engine).run()
    assert order == ["first", "second"]
