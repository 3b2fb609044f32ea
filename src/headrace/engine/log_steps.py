"""Waiting for the log: tickets that are answered when an entry, or all that was staged, is stored.

For steps (`core/steps.py`) that go on when the log is as far.  A ticket is answered within the call
that settles the entry, so that what follows has its place in the order of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.core.errors import HeadraceError
from headrace.core.runtime import Ticket
from headrace.engine.state import EngineState
from headrace.engine.topics.topic import Topic
from headrace.storage.wal.commit import ControlCommit
from headrace.storage.wal.frame import Control
from headrace.storage.wal.shard import WalShard


def logged(
    state: EngineState, topic: Topic, kind: int, control: Control, *, needs_sync: bool
) -> Ticket[None]:
    """Stage a control entry of a topic; return a ticket that is answered when its class is met."""
    ticket: Ticket[None] = Ticket(state.runtime)

    def done(error: HeadraceError | None) -> None:
        if error is not None:
            ticket.fail(error)
        else:
            ticket.resolve(None)

    state.log(topic, kind, control, needs_sync=needs_sync, done=done)
    return ticket


def all_settled(state: EngineState) -> Ticket[None]:
    """Return a ticket that is answered when everything staged so far, in any shard, is on disk."""
    return _all_shards(state, state.shards, WalShard.stage)


def all_durable(state: EngineState) -> Ticket[None]:
    """Return a ticket that is answered when everything written so far, to any shard, is on disk."""
    return _all_shards(state, state.shards, WalShard.when_durable)


def durable(state: EngineState, shard: WalShard) -> Ticket[None]:
    """Return a ticket that is answered when everything written so far to a shard is on disk."""
    return _all_shards(state, [shard], WalShard.when_durable)


def _all_shards(
    state: EngineState, shards: Sequence[WalShard], wait: Callable[[WalShard, ControlCommit], None]
) -> Ticket[None]:
    """Wait in each of these shards; the ticket fails, once all have answered, if one has failed."""
    ticket: Ticket[None] = Ticket(state.runtime)
    waiting = len(shards)
    failures: list[HeadraceError] = []

    def settled(error: HeadraceError | None) -> None:
        nonlocal waiting
        waiting -= 1
        failures.extend([error] if error is not None else [])
        if waiting:
            return
        if failures:
            ticket.fail(failures[0])
        else:
            ticket.resolve(None)

    for shard in shards:
        wait(shard, ControlCommit(b"", True, settled))
    return ticket
