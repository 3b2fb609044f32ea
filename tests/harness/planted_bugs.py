"""Bugs that a test plants in the engine, to see whether a sweep finds them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.storage.wal.commit import Commit
from headrace.storage.wal.shard import WalShard

Break = Callable[[pytest.MonkeyPatch], None]


def acknowledged_early(patch: pytest.MonkeyPatch) -> None:
    """No commit waits for its sync."""
    stage = WalShard.stage

    def eager(
        self: WalShard, commit: Commit, *, flushes: bool = False, follows: bool = False
    ) -> None:
        commit.needs_sync = False
        stage(self, commit, flushes=flushes, follows=follows)

    patch.setattr(WalShard, "stage", eager)
