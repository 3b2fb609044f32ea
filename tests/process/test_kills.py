"""A server under the load of all dialects is killed: everything that was told is so afterwards.

What `./run test --campaign kills` does for hours, once in a small form.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.campaigns.kills import settings_of, story
from tests.harness import ledger
from tests.harness.events import Violation
from tests.harness.kill_area import Area
from tests.harness.kill_loads import AREAS, QueueLoad
from tests.harness.kill_story import KillStory
from tests.support.server_lives import Site

SEED = 3
# Its jobs have leases that have to run out, so that a whole story takes a while.
QUICK = tuple(area for area in AREAS if area is not QueueLoad)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("kills", "areas"), [(2, QUICK), pytest.param(12, AREAS, marks=pytest.mark.slow)]
)
def test_everything_told_outlives_kills(
    tmp_path: Path, kills: int, areas: tuple[type[Area], ...]
) -> None:
    counts = asyncio.run(story(tmp_path / "data", SEED, kills, areas))
    assert counts["kills"] >= kills
    for area in areas:
        assert counts[f"records judged of {area.name}"] > 0, area.name


class ForgetfulSite(Site):
    """A server that forgets, when it is killed, all that was told since clients first came."""

    def __init__(self, directory: Path, **settings: str | int) -> None:
        super().__init__(directory, **settings)
        self._data, self._copy = directory, directory.with_name("copy")

    def open(self) -> None:
        if not self._copy.exists():
            process = self.server.process
            process.send_signal(signal.SIGSTOP)  # so that all files are of one moment
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            shutil.copytree(self._data, self._copy)
            process.send_signal(signal.SIGCONT)
        super().open()

    def kill(self) -> None:
        super().kill()
        shutil.rmtree(self._data)
        shutil.copytree(self._copy, self._data)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("area", AREAS, ids=lambda area: area.name)
def test_each_area_notices_what_is_lost(tmp_path: Path, area: type[Area]) -> None:
    async def lose(directory: Path) -> None:
        with ForgetfulSite(directory, **settings_of(SEED)) as site:
            await KillStory(site, directory, [area(site, SEED)], SEED).run(2)

    with pytest.raises((Violation, ledger.Violation)):
        asyncio.run(lose(tmp_path / "data"))
