"""Workers and a server that crash, over HTTP: each job is done, none by two at once, none lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.core.limits import KIB
from tests.harness.job_fleet import QUEUES, Fleet
from tests.support.server_lives import Site

# So small that files are changed and checkpoints made while workers work.
SETTINGS = {"wal_file_bytes": 256 * KIB, "wal_batch_bytes_max": 64 * KIB}


async def story(directory: Path, seed: int, *, workers: int, jobs: int, crashes: int) -> Fleet:
    settings = SETTINGS | {
        "checkpoint_wal_bytes": (64, 512)[seed % 2] * KIB,
        "wal_shards": 1 + seed % 3,
    }
    with Site(directory, **settings) as site:
        fleet = Fleet(site, seed, workers=workers, jobs=jobs // len(QUEUES), crashes=crashes)
        try:
            await fleet.run()
        except BaseException as error:
            error.add_note(f"seed {seed}, life {site.life}")
            raise
    return fleet


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("workers", "jobs", "crashes"),
    [(10, 800, 3), pytest.param(20, 2_000, 4, marks=pytest.mark.slow)],
)
def test_every_job_is_done_and_none_by_two_at_once(
    tmp_path: Path, workers: int, jobs: int, crashes: int
) -> None:
    fleet = asyncio.run(story(tmp_path, 1, workers=workers, jobs=jobs, crashes=crashes))
    lives: set[int] = set()
    for ledger in fleet.ledgers.values():
        grants = [grant for grants in ledger.grants.values() for grant in grants]
        assert any(grant.bound for grant in grants) and not all(grant.bound for grant in grants)
        assert any(grant.deliveries > 1 for grant in grants), "nothing came back"
        lives |= {grant.life for grant in grants}
    assert len(lives) >= 3, "lives without work"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_hundred_workers(tmp_path: Path, sweep) -> None:  # type: ignore[no-untyped-def]
    asyncio.run(story(tmp_path, sweep.seed, workers=100, jobs=8_000, crashes=5))
