"""What a shard of the log is handed: bytes, and somebody who hears what became of them."""

from __future__ import annotations

from typing import Protocol

from headrace.core.errors import HeadraceError


class Commit(Protocol):
    """Something staged: its bytes, and what to do when its class is met or it failed.

    Empty bytes make it a barrier: nothing is logged, everything staged before it is.
    """

    raw: bytes
    needs_sync: bool

    def settle(self, error: HeadraceError | None) -> None: ...
