"""What the subscriptions of one WebSocket hold, in bytes.

Only this file counts it.  A connection is bounded like a watch session, and is counted with them.
Nodes that are left out are held once for all subscriptions of one command.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.core.bounds import ByteBound
from headrace.wire.native.live_json import View
from headrace.wire.native.watch_session import topic_bytes


class HeldBytes:
    """The bytes of one connection."""

    __slots__ = ("_bound", "_held", "_views")

    def __init__(self, bound: ByteBound) -> None:
        self._bound = bound
        self._held = 0
        self._views: dict[View, int] = {}  # how many subscriptions have them

    def check(self, names: Iterable[str], view: View) -> None:
        """Refuse subscriptions to more topics and patterns, if they hold too much."""
        more = sum(map(topic_bytes, names)) + view.bytes
        self._bound.check(self._held + more, instead_of=self._held)

    def add(self, name: str, view: View) -> None:
        """Count a subscription."""
        self.room(topic_bytes(name))
        if view not in self._views:
            self.room(view.bytes)
        self._views[view] = self._views.get(view, 0) + 1

    def remove(self, name: str, view: View) -> None:
        """Take back `add`."""
        self.room(-topic_bytes(name))
        self._views[view] -= 1
        if not self._views[view]:
            del self._views[view]
            self.room(-view.bytes)

    def room(self, size: int) -> bool:
        """Count bytes; return whether there is room for more."""
        self._held += size
        self._bound.add(size)
        return not self._bound.is_full

    def clear(self) -> None:
        """Hold nothing any more."""
        self._views.clear()
        self.room(-self._held)
