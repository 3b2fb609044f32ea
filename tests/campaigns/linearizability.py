"""Linearizability: what eight clients see of one log, over kills, is one order, in every dialect.

A unit is one history of one dialect: appends with and without conditions, reads from anywhere,
looks at the tail, on a server that is killed under them.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

from headrace.testing.process import ServerProcess
from tests.campaigns.campaign import Campaign, Outcome, Work
from tests.campaigns.kills import settings_of
from tests.harness.log_clients import DIALECTS
from tests.harness.log_crowd import Crowd, LogClient
from tests.support.server_lives import Site
from tests.support.warm_processes import WarmPopen

CLIENTS = 8
OPERATIONS = (450, 550)  # of each client
KILLS = (2, 6)


async def history(
    directory: Path, dialect: type[LogClient], seed: int, operations: int, kills: int
) -> Counter[str]:
    """One history, judged; what was done."""
    with Site(directory, **settings_of(seed)) as site:
        crowd = Crowd(site, dialect, seed, clients=CLIENTS, operations=operations, kills=kills)
        await crowd.run()
        told = crowd.history
        return Counter(
            {
                "histories": 1,
                f"histories of {dialect.dialect}": 1,
                "operations": crowd.done,
                f"operations of {dialect.dialect}": crowd.done,
                "kills": site.kills,
                "appends acknowledged": len(told.appends),
                "appends without an answer": len(told.unknown),
                "reads and tails": len(told.reads) + len(told.parts),
            }
        )


class Linearizability(Campaign):
    name = "linearizability"
    about = "Appends, reads and tails of eight clients under kills, in each dialect."
    goals = {"histories": 300, "operations": 1_000_000}  # noqa: RUF012 - as of the base class

    def unit(self, work: Work) -> Outcome:
        """One history; the number says of which dialect, and is the seed."""
        ServerProcess.popen = WarmPopen
        chance = random.Random(f"{work.number} history")
        dialect = DIALECTS[work.number % len(DIALECTS)]
        operations, kills = chance.randint(*OPERATIONS), chance.randint(*KILLS)
        data = work.directory / "data"
        return Outcome(asyncio.run(history(data, dialect, work.number, operations, kills)))
