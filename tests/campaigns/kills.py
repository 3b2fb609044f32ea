"""Kills: a real server under the load of all dialects at once, killed again and again.

A unit is one server on one directory that is killed about twenty times: at any moment, when a
file comes or goes, at an exact system call, while it recovers.  After each restart all that any
client was told is looked for.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from headrace.core.limits import KIB
from headrace.testing.process import ServerProcess
from tests.campaigns.campaign import Campaign, Outcome, Work
from tests.harness.kill_area import Area
from tests.harness.kill_loads import AREAS
from tests.harness.kill_story import KillStory
from tests.support.server_lives import Site
from tests.support.warm_processes import WarmPopen

KILLS = (14, 22)  # of one unit, before the last life, which has a few more


def settings_of(seed: int) -> dict[str, str | int]:
    """So small that log files, checkpoints, merges and evictions happen all the time."""
    chance = random.Random(f"{seed} settings")
    return {
        "wal_file_bytes": chance.choice((64, 256)) * KIB,
        "wal_batch_bytes_max": chance.choice((16, 64)) * KIB,
        "checkpoint_wal_bytes": chance.choice((32, 64, 256)) * KIB,
        "wal_shards": chance.randint(1, 3),
        "sync_interval_ms": chance.choice((5, 50, 1_000)),
        "read_cache_bytes": chance.choice((64, 1_024)) * KIB,
        "tag_index_bytes_max": 64 * KIB,
        "ds_durability": chance.choice(("fsync", "disk", "memory")),
        "s2_durability": chance.choice(("fsync", "disk", "memory")),
    }


async def story(
    directory: Path, seed: int, kills: int, areas: tuple[type[Area], ...] = AREAS
) -> Counter[str]:
    """Kill a server so many times; what was done and judged."""
    with Site(directory, **settings_of(seed)) as site:
        made = [area(site, seed) for area in areas]
        told = KillStory(site, directory, made, seed)
        await told.run(kills)
        counts = Counter({"kills": site.kills, "lives": site.life}) + told.killer.counts
    for area in made:
        counts["records judged"] += area.judged
        counts[f"records judged of {area.name}"] = area.judged
    return counts


class Kills(Campaign):
    name = "kills"
    about = "A server under the load of all dialects, killed again and again."
    goals = {"kills": 2_000}  # noqa: RUF012 - as of the base class

    def unit(self, work: Work) -> Outcome:
        """One directory; the number is its seed."""
        ServerProcess.popen = WarmPopen
        kills = random.Random(f"{work.number} how often").randint(*KILLS)
        data = work.directory / "data"
        try:
            return Outcome(asyncio.run(story(data, work.number, kills)))
        except BaseException as error:
            if data.exists():
                kept = tempfile.mkdtemp(prefix=f"kills-unit-{work.number}-")
                shutil.copytree(data, kept, dirs_exist_ok=True)
                error.args = (f"{error} (the directory is kept in {kept})",)
            raise
