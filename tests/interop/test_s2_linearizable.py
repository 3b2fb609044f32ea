"""Clients of S2 that write, read and look at the tail at once see one order (s2 §7, §12).

Eight clients of the Python SDK, each with a connection of its own.  What they saw is checked by the
history checker of the harness; conditions that were met and refused are checked against the log.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.harness.linearizability import History, Read, chain
from tests.support.killed_on_request import KilledOnRequest
from tests.support.s2_sdk import Account, new_basin_name
from tests.support.servers import Servers

CLIENTS = 8
KILLS = 4


class Witness:
    """What all clients saw of one stream."""

    def __init__(self) -> None:
        self.history = History()
        self.tails: list[tuple[int, int, int]] = []  # began, returned, the tail
        self.matched: list[tuple[int, int]] = []  # where an append was to be, and where it is
        self.fenced: list[tuple[int, str]] = []  # where an append is, and the token it gave
        self.told_tokens: list[str] = []
        self.known_tail = 0
        self.known_token = ""

    def saw_tail(self, began: int, tail: int) -> None:
        self.tails.append((began, self.history.now(), tail))
        self.known_tail = max(self.known_tail, tail)

    def check(self, log: Sequence[tuple[bytes, bool]]) -> None:
        """Compare with the stream as it is in the end: bodies, and whether each is a fence."""
        bodies = [body for body, _ in log]
        hashes = [0]
        for body in bodies:
            hashes.append(chain(hashes[-1], [body]))
        for began, returned, tail in self.tails:
            self.history.reads.append(Read(began, returned, tail, hashes[tail]))
        self.history.check(bodies)
        assert all(wanted == place for wanted, place in self.matched)
        for place, token in self.fenced:
            before = [body.decode() for body, fence in log[:place] if fence]
            assert (before[-1] if before else "") == token
        assert set(self.told_tokens) <= {body.decode() for body, fence in log if fence} | {""}


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
        await self._put(records, bodies, conditions)

    async def fence(self) -> None:
        body = self._body()
        conditions = {"fencing_token": self.witness.known_token}
        if await self._put([self.sdk.CommandRecord.fence(body.decode())], [body], conditions):
            self.witness.known_token = body.decode()

    async def _put(
        self, records: list[Any], bodies: list[bytes], conditions: dict[str, Any]
    ) -> bool:
        witness, sdk = self.witness, self.sdk
        began = witness.history.now()
        try:
            ack = await self.stream.append(sdk.AppendInput(records, **conditions))
        except sdk.SeqNumMismatchError as error:
            witness.saw_tail(began, error.expected_seq_num)
            return False
        except sdk.FencingTokenMismatchError as error:
            witness.told_tokens.append(error.expected_fencing_token)
            witness.known_token = error.expected_fencing_token
            return False
        except self.lost:  # whether it was stored, the log will show
            witness.history.lost_sight(began, bodies)
            return False
        place = ack.start.seq_num
        witness.history.appended(began, bodies, place + 1)
        witness.saw_tail(began, ack.tail.seq_num)
        if "match_seq_num" in conditions:
            witness.matched.append((conditions["match_seq_num"], place))
        if "fencing_token" in conditions:
            witness.fenced.append((place, conditions["fencing_token"]))
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


async def all_of(sdk: Any, stream: Any) -> list[tuple[bytes, bool]]:
    found: list[tuple[bytes, bool]] = []
    async for batch in stream.read_session(start=sdk.SeqNum(0), wait=0):
        found += [(record.body, record.is_command_record()) for record in batch.records]
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
            witness.check(await all_of(sdk, client.basin(basin).stream("log")))

    asyncio.run(asyncio.wait_for(story(), 280))
    assert len(witness.history.appends) > operations
    assert witness.matched and witness.fenced and witness.told_tokens
