"""A server under the load of all dialects is killed: everything that was told is so afterwards.

What `./run test --campaign kills` does for hours, once in a small form.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.campaigns.kills import story
from tests.harness.kill_loads import AREAS, QueueLoad

SEED = 3
# Its jobs have leases that have to run out, so that a whole story takes a while.
QUICK = tuple(area for area in AREAS if area is not QueueLoad)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("kills", "areas"), [(2, QUICK), pytest.param(12, AREAS, marks=pytest.mark.slow)]
)
def test_everything_told_outlives_kills(tmp_path: Path, kills: int, areas: tuple) -> None:  # type: ignore[type-arg]
    counts = asyncio.run(story(tmp_path / "data", SEED, kills, areas))
    assert counts["kills"] >= kills
    for area in areas:
        assert counts[f"records judged of {area.name}"] > 0, area.name
