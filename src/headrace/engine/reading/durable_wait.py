"""Waiting until what a reader can see of a topic is on disk, for readers that want to be sure.

Only this file says when visible records count as synced.  It writes nothing: it asks the topic's
shard of the log to sync sooner than it would by itself.
"""

from __future__ import annotations

from headrace.core.errors import HeadraceError, InvalidRequest
from headrace.core.runtime import Ticket
from headrace.engine.state import EngineState
from headrace.storage.wal.commit import ControlCommit


def synced(state: EngineState, name: str) -> Ticket[None]:
    """Done when every record of a topic that is visible now has been synced.

    Fails with what the shard refuses writes with when it cannot sync any more.
    """
    topic = state.topic(name)
    if topic.ephemeral:
        raise InvalidRequest(
            f"records of {name!r} are never on disk: its durability is ephemeral",
            fix="ask for eventual consistency, or give the topic another durability",
            detail={"topic": name},
        )
    ticket: Ticket[None] = Ticket(state.runtime)
    shard = state.shard_of(topic.id)

    def done(error: HeadraceError | None) -> None:
        if error is None:
            ticket.resolve(None)
        else:
            ticket.fail(shard.refusal() or error)

    if topic.needs_sync and not topic.changing:
        # Nothing of this class is visible before it is synced, and a change to it is synced too.
        refusal = shard.refusal() if shard.state == "wal_read_only" else None
        done(refusal)
    else:
        shard.when_durable(ControlCommit(b"", True, done))
    return ticket
