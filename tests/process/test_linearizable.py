"""Appends, conditions, reads and tails of many clients are one order, in each dialect, over kills.

What `./run test --campaign linearizability` does for hours, once in a small form.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.campaigns.linearizability import history
from tests.harness.log_clients import DIALECTS
from tests.harness.log_crowd import LogClient

SEED = 7


@pytest.mark.timeout(240)
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.dialect)
@pytest.mark.parametrize(
    ("operations", "kills"), [(40, 1), pytest.param(500, 4, marks=pytest.mark.slow)]
)
def test_clients_see_one_order(
    tmp_path: Path, dialect: type[LogClient], operations: int, kills: int
) -> None:
    counts = asyncio.run(history(tmp_path / "data", dialect, SEED, operations, kills))
    assert counts["kills"] == kills + 1
    assert counts["appends acknowledged"] > operations
    assert counts["reads and tails"] > operations
