"""Headrace: a durable event log in one process.

General layout.  `core` holds what has no state of its own (errors, limits, settings, clocks, the
runtime seam), `storage` turns bytes into files that survive, `engine` gives them meaning, `wire`
and `server` put it on a port, `client` calls it from elsewhere, `cli` is the command line,
`testing` is what our own tests use and yours may.  Imports only ever go that way.  Everything a
program needs is re-exported here, and loaded when it is first used, so that `headrace --help` does
not wait for what it does not need.
"""

from __future__ import annotations

# The storage layer checks what it wrote and what it read with `assert`, in production too.
if not __debug__:
    raise SystemExit(
        "headrace: Python runs with -O (or PYTHONOPTIMIZE), which removes the checks that guard "
        "stored data; start it without"
    )

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.api.records import DeleteResult as DeleteResult
    from headrace.client import AsyncClient as AsyncClient
    from headrace.client import Client as Client
    from headrace.core.errors import HeadraceError as HeadraceError
    from headrace.core.runtime import Ticket as Ticket
    from headrace.core.settings import Settings as Settings
    from headrace.engine.appending.pending_append import Appended as Appended
    from headrace.engine.appending.producers import ProducerClaim as ProducerClaim
    from headrace.engine.engine import Engine as Engine
    from headrace.engine.reading.page import Page as Page
    from headrace.engine.reading.page import Tombstone as Tombstone
    from headrace.engine.removal.deleting import TagMatch as TagMatch
    from headrace.engine.topics.config import TopicConfig as TopicConfig
    from headrace.engine.topics.lifecycle import Deleted as Deleted
    from headrace.engine.topics.lifecycle import Put as Put
    from headrace.engine.topics.listing import TopicInfo as TopicInfo
    from headrace.storage.block import Batch as Batch
    from headrace.storage.block import Record as Record

__version__ = "0.1.0"

_HOMES = {
    "Appended": "engine.appending.pending_append",
    "AsyncClient": "client",
    "Batch": "storage.block",
    "Client": "client",
    "DeleteResult": "api.records",
    "Deleted": "engine.topics.lifecycle",
    "Engine": "engine.engine",
    "HeadraceError": "core.errors",
    "Page": "engine.reading.page",
    "ProducerClaim": "engine.appending.producers",
    "Put": "engine.topics.lifecycle",
    "Record": "storage.block",
    "Settings": "core.settings",
    "TagMatch": "engine.removal.deleting",
    "Ticket": "core.runtime",
    "Tombstone": "engine.reading.page",
    "TopicConfig": "engine.topics.config",
    "TopicInfo": "engine.topics.listing",
}

__all__ = [
    "Appended",
    "AsyncClient",
    "Batch",
    "Client",
    "DeleteResult",
    "Deleted",
    "Engine",
    "HeadraceError",
    "Page",
    "ProducerClaim",
    "Put",
    "Record",
    "Settings",
    "TagMatch",
    "Ticket",
    "Tombstone",
    "TopicConfig",
    "TopicInfo",
]

assert sorted(_HOMES) == sorted(__all__)


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    return getattr(import_module(f"headrace.{home}"), name)
