"""SDKs of S2 whose server is killed or stopped, and started again (s2 §7).

An input whose ack got lost is sent again, so that a record may be there twice; what was
acknowledged is where its ack says, and nothing is missing or out of order.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.killed_on_request import KilledOnRequest
from tests.support.node_programs import run_program
from tests.support.s2_sdk import Account, new_basin_name
from tests.support.servers import Servers

SECONDS_MAX = 120.0
ROUNDS = 3  # with a restart in each
INPUTS = 30  # of each


@pytest.mark.parametrize("kill", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_session_goes_on_behind_a_restart(servers: Servers, tmp_path: Path, kill: bool) -> None:
    """§7, §10d: acknowledged once means stored once; a follower reads on; settings stay."""
    site = KilledOnRequest(servers, tmp_path / "data", {})
    account = Account(site.server.url)
    sdk = account.sdk
    account.options["retry"] = sdk.Retry(
        max_attempts=100, min_base_delay=timedelta(milliseconds=50)
    )
    basin_name = new_basin_name()
    scope = sdk.AccessTokenScope(
        streams=sdk.PrefixMatch(""), ops=[sdk.Operation.READ, sdk.Operation.CHECK_TAIL]
    )

    async def story(client: Any) -> None:
        await client.create_basin(basin_name)
        basin = client.basin(basin_name)
        await basin.create_stream("events", config=sdk.StreamConfig(retention_policy=777))
        await client.issue_access_token("kept", scope=scope)
        stream = basin.stream("events")
        await stream.append(sdk.AppendInput([sdk.CommandRecord.fence("mine")]))
        found: list[bytes] = []
        total = ROUNDS * INPUTS

        async def follow() -> None:
            async for batch in stream.read_session(start=sdk.SeqNum(1)):
                found.extend(record.body for record in batch.records)
                if found and found[-1] == b"%d" % (total - 1):
                    return

        follower = asyncio.create_task(follow())
        places = []
        for first in range(0, total, INPUTS):
            async with stream.append_session() as session:
                tickets = []
                for number in range(first, first + INPUTS):
                    given = sdk.AppendInput([sdk.Record(b"%d" % number)], fencing_token="mine")
                    tickets.append(await session.submit(given))
                    if number == first + INPUTS // 2:
                        await tickets[0]
                        await asyncio.to_thread(site.restart, kill)
                places += [(await ticket).start.seq_num for ticket in tickets]
        await asyncio.wait_for(follower, SECONDS_MAX)
        assert [found[place - 1] for place in places] == [b"%d" % number for number in range(total)]
        next_number = 0
        for body in found:
            assert int(body) <= next_number
            next_number = max(next_number, int(body) + 1)
        assert next_number == total and (await stream.check_tail()).seq_num == len(found) + 1
        with pytest.raises(sdk.FencingTokenMismatchError) as fenced:
            await stream.append(sdk.AppendInput([sdk.Record(b"")], fencing_token="other"))
        assert fenced.value.expected_fencing_token == "mine"
        assert (await basin.get_stream_config("events")).retention_policy == 777
        assert [info.id for info in (await client.list_access_tokens()).items] == ["kept"]

    account.tell(story)
    assert site.kills == ROUNDS


@pytest.mark.slow
def test_the_typescript_session_goes_on_behind_a_kill(servers: Servers, tmp_path: Path) -> None:
    """§7: the same from the other SDK."""
    site = KilledOnRequest(servers, tmp_path / "data", {})
    work = tmp_path / "work"
    work.mkdir()
    with site.asked_at() as restarting:
        done = run_program(
            work,
            "s2_round_trips.mjs",
            "killed",
            site.server.url,
            seconds=SECONDS_MAX,
            INTEROP_TRANSPORT="s2s",
            INTEROP_RESTART_URL=restarting,
        )
    assert done.code == 0 and done.said.endswith("ok\n"), done.said
    assert site.kills == ROUNDS
