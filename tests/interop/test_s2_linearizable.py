"""Clients of S2 that write, read and look at the tail at once see one order (s2 §7, §12).

Eight clients of the Python SDK, each with a connection of its own.  What they saw, and conditions
that were met and refused, are judged by the history checker of the harness.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from tests.harness.linearizability import History, chain
from tests.support.killed_on_request import KilledOnRequest
from tests.support.s2_sdk import Account, new_basin_name
from tests.support.servers import Servers

CLIENTS = 8
KILLS = 4


class Witness:
    """What all clients saw of one stream, and what they tell each other."""

    def __init__(self) -> None:
        self.history = History()
        self.known_tail = 0
        self.known_token = ""

    def saw_tail(self, began: int, tail: int) -> None:
        self.history.saw_tail(began, tail)
        self.known_tail = max(self.known_tail, tail)


class Client:
    """One client: a place up to which it has read, and chances."""

    def __init__(self, sdk: Any, stream: Any, witness: Witness, number: int) -> None:
        self.sdk, self.stream, self.witness, self.number = sdk, stream, witness, number
        self.chance = random.Random(number)
        self.place, self.hash, self.count = 0, 0, 0
        # What a call raises while the server is killed and started again.
        self.lost = (sdk.S2Error, OSError)

    async def act(self) -> None:
        what = self.chance.choice((self.append, self.append, self.read, self.look, self.fence))
        await what()

    def _body(self) -> bytes:
        self.count += 1
        return f"{self.number}-{self.count}".encode()

    async def append(self) -> None:
        bodies = [self._body() for _ in range(self.chance.randint(1, 3))]
        records = [self.sdk.Record(body) for body in bodies]
        conditions: dict[str, Any] = {}
        if self.chance.random() < 0.4:
            conditions["match_seq_num"] = self.witness.known_tail
        if self.chance.random() < 0.4:
            conditions["fencing_token"] = self.witness.known_token
        await self.put(records, bodies, conditions)

    async def fence(self) -> None:
        body = self._body()
        conditions = {"fencing_token": self.witness.known_token}
        command = self.sdk.CommandRecord.fence(body.decode())
        if await self.put([command], [body], conditions, fences=True):
            self.witness.known_token = body.decode()

    async def put(
        self,
        records: list[Any],
        bodies: list[bytes],
        conditions: dict[str, Any],
        *,
        fences: bool = False,
    ) -> bool:
        witness, sdk, history = self.witness, self.sdk, self.witness.history
        after, token = conditions.get("match_seq_num"), conditions.get("fencing_token")
        given: dict[str, Any] = {
            "after": after,
            "token": None if token is None else token.encode(),
            "fences": fences,
        }
        began = history.now()
        try:
            ack = await self.stream.append(sdk.AppendInput(records, **conditions))
        except sdk.SeqNumMismatchError as error:
            history.refused(began, after=after, tail=error.expected_seq_num)
            witness.known_tail = max(witness.known_tail, error.expected_seq_num)
            return False
        except sdk.FencingTokenMismatchError as error:
            told = error.expected_fencing_token
            history.fenced_off(began, given=token.encode(), told=told.encode())
            witness.known_token = told
            return False
        except self.lost:  # whether it was stored, the log will show
            history.lost_sight(began, bodies, **given)
            return False
        history.appended(began, bodies, ack.start.seq_num + 1, **given)
        witness.saw_tail(began, ack.tail.seq_num)
        return True

    async def look(self) -> None:
        began = self.witness.history.now()
        try:
            tail = await self.stream.check_tail()
        except self.lost:
            return
        self.witness.saw_tail(began, tail.seq_num)

    def _same_place(self, tail: int) -> int:
        """The tail, where there is nothing behind what was read."""
        assert tail == self.place
        return tail

    async def read(self) -> None:
        """Read on from where this client is to the tail: as if all were read from the start."""
        witness, sdk = self.witness, self.sdk
        began = witness.history.now()
        try:
            while True:
                batch = await self.stream.read(start=sdk.SeqNum(self.place))
                self.hash = chain(self.hash, [record.body for record in batch.records])
                self.place += len(batch.records)
                if batch.tail is not None and batch.tail.seq_num == self.place:
                    break
        except sdk.ReadUnwrittenError as error:
            self.place = self._same_place(error.tail.seq_num)
        except self.lost:
            return
        witness.history.read(began, self.place, self.hash)


async def all_of(sdk: Any, stream: Any) -> list[bytes]:
    found: list[bytes] = []
    async for batch in stream.read_session(start=sdk.SeqNum(0), wait=0):
        found += [record.body for record in batch.records]
    return found


def test_eight_clients_see_one_order(account: Account) -> None:
    """§7: appends, conditions, tails and reads of eight clients."""
    told_of_clients(account, operations=60)


@pytest.mark.slow
def test_eight_clients_see_one_order_for_long(account: Account) -> None:
    """§7: the same, for 1,000 operations of each."""
    told_of_clients(account, operations=1_000)


@pytest.mark.slow
def test_eight_clients_see_one_order_across_kills(servers: Servers, tmp_path: Path) -> None:
    """§7: what was acknowledged or seen before a kill is there behind it."""
    site = KilledOnRequest(servers, tmp_path / "data", {})
    told_of_clients(Account(site.server.url), operations=1_000, site=site)
    assert site.kills == KILLS


def told_of_clients(account: Account, operations: int, site: KilledOnRequest | None = None) -> None:
    sdk, basin = account.sdk, new_basin_name()
    account.options["retry"] = sdk.Retry(max_attempts=1)
    witness = Witness()

    async def one(number: int, done: list[int]) -> None:
        async with account.client() as client:
            stream = client.basin(basin).stream("log")
            actor = Client(sdk, stream, witness, number)
            for _ in range(operations):
                await actor.act()
                done[0] += 1

    async def kill(done: list[int]) -> None:
        """Kill the server when a part of all operations is done, and again."""
        total = operations * CLIENTS
        for at in range(1, KILLS + 1):
            while done[0] < total * at / (KILLS + 2):
                await asyncio.sleep(0.01)
            assert site is not None
            await asyncio.to_thread(site.restart)

    async def story() -> None:
        async with account.client() as client:
            await client.create_basin(basin)
            await client.basin(basin).create_stream("log")
            done = [0]
            parts = [one(number, done) for number in range(CLIENTS)]
            await asyncio.gather(*parts, *([kill(done)] if site is not None else []))
        async with account.client() as client:
            # Alone, so that a condition is met for certain.
            last = Client(sdk, client.basin(basin).stream("log"), witness, CLIENTS)
            await last.look()
            conditions = {"match_seq_num": witness.known_tail}
            assert await last.put([sdk.Record(b"last")], [b"last"], conditions)
        async with account.client() as client:
            witness.history.check(await all_of(sdk, client.basin(basin).stream("log")))

    asyncio.run(asyncio.wait_for(story(), 280))
    appends = witness.history.appends
    assert len(appends) > operations and witness.history.fenced
    assert any(one.after is not None for one in appends)
    assert any(one.token is not None for one in appends)
