"""A server with routers that crashes under load: every destination is what its source says."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.core.limits import KIB
from tests.harness.router_load import RouterLoad
from tests.support.server_lives import Site

# So small that files are changed and checkpoints made while there is something to forward.
SETTINGS = {"wal_file_bytes": 256 * KIB, "wal_batch_bytes_max": 64 * KIB}


async def story(directory: Path, seed: int, **load: int) -> RouterLoad:
    settings = SETTINGS | {
        "checkpoint_wal_bytes": (64, 512)[seed % 2] * KIB,
        "wal_shards": 1 + seed % 3,
    }
    with Site(directory, **settings) as site:
        routers = RouterLoad(site, seed, **load)
        try:
            await routers.run()
        except BaseException as error:
            error.add_note(f"seed {seed}, life {site.life}")
            raise
    return routers


@pytest.mark.timeout(240)
@pytest.mark.parametrize("crashes", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_every_destination_is_what_its_source_says(tmp_path: Path, crashes: int) -> None:
    routers = asyncio.run(story(tmp_path, 1, writers=8, crashes=crashes, writes=150, fans=40))
    assert routers.checked == crashes + 2
    assert routers.ryw > 50, "next to nobody read what he wrote"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_thousand_destinations(tmp_path: Path, sweep) -> None:  # type: ignore[no-untyped-def]
    asyncio.run(story(tmp_path, sweep.seed, writers=16, crashes=4, writes=200, fans=1_000))
