"""Routers in a snapshot: its parts about them, and which of these have changed.

Only this file knows how `extra` of a snapshot holds routers (docs/formats/snapshot.md).
`ROUTERS_PER_PART` routers are a part, so that a snapshot writes little more than what changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from headrace.engine.routers.forwarding import Forwarder
from headrace.engine.routers.selection import key_of
from headrace.engine.state import EngineState

if TYPE_CHECKING:
    from headrace.engine.routers.directory import RouterDirectory

ROUTERS_PER_PART = 256
PART = "routers:"
HOPS = "router-hops"
KEYS = "router-keys:"
NEXT_ID = "router-next"
# Deleted routers whose keys a destination still remembers, at most.
KEY_SETS_MAX = 64

KeyRows = list[tuple[str, int, int, list[tuple[bytes, bytes]]]]


class RouterParts:
    """The parts about routers that the next snapshot has to write."""

    def __init__(self, state: EngineState, routers: RouterDirectory) -> None:
        self._state = state
        self._routers = routers
        self.stored: set[str] = set()  # parts that a snapshot may have

    @property
    def _forwarder(self) -> Forwarder:
        return self._routers.forwarder

    def capture(self) -> dict[str, bytes]:
        """Return the parts that changed, by name; empty: gone.  Forwarding is held meanwhile."""
        routers, forwarder = self._routers, self._forwarder
        encode = msgspec.msgpack.encode
        parts: dict[str, bytes] = {}
        changed = {router_id // ROUTERS_PER_PART for router_id in forwarder.changed}
        forwarder.changed = set()
        for number in changed:
            ids = range(number * ROUTERS_PER_PART, (number + 1) * ROUTERS_PER_PART)
            here = [routers.by_id[i] for i in ids if i in routers.by_id]
            # A router that is being created is left out; one that is being deleted is kept.
            states = [r.state() for r in here if r.live or routers.by_name.get(r.name) is not r]
            parts[f"{PART}{number}"] = encode(states) if states else b""
        for dest_id in forwarder.keys_changed:
            parts[f"{KEYS}{dest_id}"] = self._encode_keys(dest_id)
        forwarder.keys_changed = set()
        if parts:
            for topic_id, hops in forwarder.hops.items():
                hops.drop_to(min(r.cursor for r in forwarder.sources[topic_id].routers))
            runs = {topic_id: hops.flat() for topic_id, hops in forwarder.hops.items() if hops}
            parts[HOPS] = encode(runs) if runs else b""
            parts[NEXT_ID] = encode(routers.next_id)
        absent = {name for name, part in parts.items() if not part}
        parts = {n: p for n, p in parts.items() if p or n in self.stored}
        self.stored = (self.stored | parts.keys()) - absent
        return parts

    def _encode_keys(self, dest_id: int) -> bytes:
        dest = self._state.by_id.get(dest_id)
        sets = self._forwarder.keys.get(dest_id, {})
        if dest is not None:
            sets = {key: keys for key, keys in sets.items() if keys.drop_to(dest.base)}
            there = {key_of(router) for router in self._state.routed.get(dest.name, ())}
            for key in [key for key in sets if key not in there][:-KEY_SETS_MAX]:
                del sets[key]
            self._forwarder.keys[dest_id] = sets
        rows: KeyRows = [(*key, keys.encode()) for key, keys in sets.items()]
        return msgspec.msgpack.encode(rows) if rows and dest is not None else b""

    def give_back(self, parts: dict[str, bytes]) -> None:
        """Have these parts written by the next snapshot: this one was not written."""
        self.stored_before(parts.keys())

    def stored_before(self, names: Iterable[str]) -> None:
        """Note that a snapshot may have these parts, which may be out of date."""
        self.stored.update(names)
        for name in names:
            if name.startswith(PART):
                self._forwarder.changed.add(int(name[len(PART) :]) * ROUTERS_PER_PART)
            elif name.startswith(KEYS):
                self._forwarder.keys_changed.add(int(name[len(KEYS) :]))
