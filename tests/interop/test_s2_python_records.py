"""The Python SDK of S2 appends to and reads from a real server (s2 §6 to §8, §10, §12 to §15)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.s2_sdk import Account, new_basin_name

COMPRESSIONS = ("none", "zstd", "gzip")
KEY = bytes(range(1, 33))


@pytest.fixture(params=COMPRESSIONS)
def packed(account: Account, request: pytest.FixtureRequest) -> Account:
    """The same server for a client that compresses so."""
    return Account(account.url, compression=account.sdk.Compression(request.param))


def some_records(sdk: Any, count: int, seed: int = 5) -> list[Any]:
    """Records of many sizes, whose bytes are no text."""
    chance = random.Random(seed)
    return [
        sdk.Record(
            chance.randbytes(chance.choice((0, 1, 128, 3000))),
            [(b"n", str(number).encode()), (b"n", b"\xff\0")][: number % 3],
        )
        for number in range(count)
    ]


def contents(records: Sequence[Any]) -> list[Any]:
    return [(record.body, list(record.headers)) for record in records]


def test_append_and_read(packed: Account) -> None:
    """§6, §7, §8: bodies and headers come back byte by byte, with each compression."""
    sdk = packed.sdk
    records = some_records(sdk, 60)

    async def story(stream: Any) -> None:
        tail = await stream.check_tail()
        assert (tail.seq_num, tail.timestamp) == (0, 0)
        first = await stream.append(sdk.AppendInput(records[:1]))
        assert (first.start.seq_num, first.end.seq_num, first.tail.seq_num) == (0, 1, 1)
        ack = await stream.append(sdk.AppendInput(records[1:]))
        assert (ack.start.seq_num, ack.end.seq_num) == (1, 60)
        assert await stream.check_tail() == ack.tail
        batch = await stream.read(start=sdk.SeqNum(0))
        assert contents(batch.records) == contents(records)
        assert [record.seq_num for record in batch.records] == list(range(60))
        stamps = [record.timestamp for record in batch.records]
        assert stamps == sorted(stamps) and stamps[-1] == ack.end.timestamp

    packed.tell_with_stream(story)


def test_reads_start_and_stop_where_they_are_told(account: Account) -> None:
    """§8: by seq_num, timestamp and offset from the tail; by count, bytes and time."""
    sdk = account.sdk
    base = int(time.time() * 1000) - 60_000

    async def story(stream: Any) -> None:
        given = [sdk.Record(f"r{n}".encode(), timestamp=base + 10 * n) for n in range(5)]
        await stream.append(sdk.AppendInput(given))

        async def bodies(start: Any, **options: Any) -> list[bytes]:
            batch = await stream.read(start=start, **options)
            return [record.body for record in batch.records]

        assert await bodies(sdk.SeqNum(3)) == [b"r3", b"r4"]
        assert await bodies(sdk.TailOffset(2)) == [b"r3", b"r4"]
        assert await bodies(sdk.Timestamp(base + 11)) == [b"r2", b"r3", b"r4"]
        assert await bodies(sdk.SeqNum(0), limit=sdk.ReadLimit(count=2)) == [b"r0", b"r1"]
        assert await bodies(sdk.SeqNum(0), limit=sdk.ReadLimit(bytes=25)) == [b"r0", b"r1"]
        assert await bodies(sdk.SeqNum(0), limit=sdk.ReadLimit(bytes=9)) == []
        until = await bodies(sdk.Timestamp(base), until_timestamp=base + 20)
        assert until == [b"r0", b"r1"]
        for beyond in (sdk.SeqNum(6), sdk.SeqNum(5), sdk.Timestamp(base + 41)):
            with pytest.raises(sdk.ReadUnwrittenError) as caught:
                await stream.read(start=beyond)
            assert (caught.value.tail.seq_num, caught.value.tail.timestamp) == (5, base + 40)
        with pytest.raises(sdk.ReadUnwrittenError):
            await stream.read(start=sdk.SeqNum(100), clamp_to_tail=True)
        assert await bodies(sdk.SeqNum(100), clamp_to_tail=True, wait=1) == []

    account.tell_with_stream(story)


def test_a_unary_read_waits_for_the_next_record(account: Account) -> None:
    """§8: and answers with it."""
    sdk = account.sdk

    async def story(stream: Any) -> None:
        waiting = asyncio.create_task(stream.read(start=sdk.SeqNum(0), wait=4))
        await stream.check_tail()
        await stream.append(sdk.AppendInput([sdk.Record(b"now")]))
        assert [record.body for record in (await waiting).records] == [b"now"]

    account.tell_with_stream(story)


def test_conditions(account: Account) -> None:
    """§7, §12: match_seq_num and fencing tokens refuse with what holds."""
    sdk = account.sdk

    async def story(stream: Any) -> None:
        one = [sdk.Record(b"x")]
        await stream.append(sdk.AppendInput(one, match_seq_num=0, fencing_token=""))
        with pytest.raises(sdk.SeqNumMismatchError) as place:
            await stream.append(sdk.AppendInput(one, match_seq_num=0))
        assert place.value.expected_seq_num == 1
        await stream.append(sdk.AppendInput([sdk.CommandRecord.fence("writer-1")]))
        with pytest.raises(sdk.FencingTokenMismatchError) as fence:
            await stream.append(sdk.AppendInput(one, fencing_token="writer-0", match_seq_num=0))
        assert fence.value.expected_fencing_token == "writer-1"
        await stream.append(sdk.AppendInput(one, fencing_token="writer-1", match_seq_num=2))
        # Who names no token is not held to one.
        await stream.append(sdk.AppendInput(one))
        batch = await stream.read(start=sdk.SeqNum(0))
        assert [record.is_command_record() for record in batch.records] == [
            False,
            True,
            False,
            False,
        ]
        assert contents(batch.records)[1] == (b"writer-1", [(b"", b"fence")])
        plain = await stream.read(start=sdk.SeqNum(0), ignore_command_records=True)
        assert len(plain.records) == 3

    account.tell_with_stream(story)


def test_a_trim_takes_records_away_after_a_while(account: Account) -> None:
    """§14: reads from before begin at the first that is left."""
    sdk = account.sdk

    async def story(stream: Any) -> None:
        await stream.append(sdk.AppendInput([sdk.Record(b"%d" % n) for n in range(5)]))
        await stream.append(sdk.AppendInput([sdk.CommandRecord.trim(3)]))
        while True:
            batch = await stream.read(start=sdk.SeqNum(0))
            if batch.records[0].seq_num == 3:
                break
            assert batch.records[0].seq_num == 0
            await asyncio.sleep(0.1)
        assert [record.seq_num for record in batch.records] == [3, 4, 5]
        assert (await stream.check_tail()).seq_num == 6

    account.tell_with_stream(story)


def test_timestamps_by_mode(account: Account) -> None:
    """§13: required, taken, capped, or replaced; never backwards."""
    sdk = account.sdk
    modes = sdk.TimestampingMode

    def told(mode: Any, uncapped: bool, given: list[int | None]) -> list[int]:
        async def story(stream: Any) -> list[int]:
            records = [sdk.Record(b"", timestamp=stamp) for stamp in given]
            await stream.append(sdk.AppendInput(records))
            batch = await stream.read(start=sdk.SeqNum(0))
            return [record.timestamp for record in batch.records]

        timestamping = sdk.Timestamping(mode=mode, uncapped=uncapped)
        return account.tell_with_stream(story, stream=sdk.StreamConfig(timestamping=timestamping))

    before = int(time.time() * 1000)
    future = before + 10**9
    assert told(modes.CLIENT_REQUIRE, True, [7, 3, 9]) == [7, 7, 9]
    assert told(modes.CLIENT_REQUIRE, True, [future]) == [future]
    assert before <= told(modes.CLIENT_PREFER, False, [future])[0] < future
    assert told(modes.CLIENT_PREFER, False, [5, None])[1] >= before
    assert told(modes.ARRIVAL, False, [5])[0] >= before
    with pytest.raises(sdk.S2ServerError) as missing:
        told(modes.CLIENT_REQUIRE, False, [None])
    assert (missing.value.code, missing.value.status_code) == ("invalid", 422)


def test_an_append_session_acknowledges_in_order(packed: Account) -> None:
    """§7, §10: pipelined inputs, one ack for each, with each compression."""
    sdk = packed.sdk
    records = some_records(sdk, 400)

    async def story(stream: Any) -> None:
        async with stream.append_session() as session:
            tickets = [
                await session.submit(sdk.AppendInput(records[at : at + 4]))
                for at in range(0, 400, 4)
            ]
            acks = [await ticket for ticket in tickets]
        assert [ack.start.seq_num for ack in acks] == list(range(0, 400, 4))
        assert all(ack.tail.seq_num >= ack.end.seq_num for ack in acks)
        found: list[Any] = []
        async for batch in stream.read_session(start=sdk.SeqNum(0), limit=sdk.ReadLimit(count=390)):
            found += batch.records
        assert contents(found) == contents(records[:390])

    packed.tell_with_stream(story)


def test_a_refused_input_ends_its_session(account: Account) -> None:
    """§7: what came before is acknowledged, what comes behind is not stored."""
    sdk = account.sdk

    async def story(stream: Any) -> None:
        session = stream.append_session()
        tickets = [
            await session.submit(sdk.AppendInput([sdk.Record(b"x")], match_seq_num=place))
            for place in (0, 1, 7, 2)
        ]
        assert [(await ticket).end.seq_num for ticket in tickets[:2]] == [1, 2]
        for ticket in tickets[2:]:
            with pytest.raises(sdk.SeqNumMismatchError) as caught:
                await ticket
            assert caught.value.expected_seq_num == 2
        with pytest.raises(sdk.SeqNumMismatchError):
            await session.close()
        assert (await stream.check_tail()).seq_num == 2

    account.tell_with_stream(story)


def test_a_producer_and_a_follower_see_the_same(packed: Account) -> None:
    """§8: a live reader gets each record once and in order, and knows when it has caught up."""
    sdk = packed.sdk
    total = 1024

    async def story(stream: Any) -> None:
        async def follow() -> list[int]:
            found: list[int] = []
            async with stream.read_session(start=sdk.SeqNum(0), wait=60) as session:
                async for batch in session:
                    found += [int(dict(record.headers)[b"n"]) for record in batch.records]
                    if len(found) >= total:
                        await asyncio.wait_for(session.caught_up(), 20)
                        return found
            return found

        follower = asyncio.create_task(follow())
        async with stream.producer(batching=sdk.Batching(max_records=16)) as producer:
            tickets = [
                await producer.submit(sdk.Record(b"", [(b"n", str(number).encode())]))
                for number in range(total)
            ]
            assert [(await ticket).seq_num for ticket in tickets] == list(range(total))
        assert await follower == list(range(total))

    packed.tell_with_stream(story)


def test_a_read_session_says_when_it_has_caught_up(account: Account) -> None:
    """§8: with the batch that ends at the tail."""
    sdk = account.sdk

    async def story(stream: Any) -> None:
        await stream.append(sdk.AppendInput([sdk.Record(b"1"), sdk.Record(b"2")]))
        async with stream.read_session(start=sdk.TailOffset(2), wait=60) as session:
            caught_up = session.caught_up()
            assert not session.is_caught_up()
            found: list[int] = []
            while not session.is_caught_up():
                found += [record.seq_num for record in (await anext(session)).records]
            assert found == [0, 1] and (await caught_up).seq_num == 2

    account.tell_with_stream(story)


def test_a_session_that_follows_an_empty_stream_is_no_error(account: Account) -> None:
    """§8: it waits; one that may not follow is 416."""
    sdk = account.sdk

    async def story(stream: Any) -> None:
        follower = stream.read_session(start=sdk.SeqNum(0))
        first = asyncio.create_task(anext(follower))
        await stream.check_tail()
        await stream.append(sdk.AppendInput([sdk.Record(b"first")]))
        assert (await first).records[0].body == b"first"
        await follower.close()
        with pytest.raises(sdk.ReadUnwrittenError):
            async for _ in stream.read_session(start=sdk.SeqNum(9)):
                pass
        ended = [batch async for batch in stream.read_session(start=sdk.SeqNum(1), wait=0)]
        assert [batch.records for batch in ended if batch.records] == []

    account.tell_with_stream(story)


@pytest.mark.parametrize("cipher", ["aes-256-gcm", "aegis-256"])
def test_encrypted_streams(account: Account, cipher: str) -> None:
    """§15: with the key all is there, without it nothing is."""
    sdk, name = account.sdk, new_basin_name()
    if cipher == "aegis-256":
        pytest.importorskip("pyaegis", reason="needs what requirements/optional.txt builds")
    records = some_records(sdk, 20)

    async def story(client: Any) -> None:
        await client.create_basin(
            name, config=sdk.BasinConfig(stream_cipher=sdk.Encryption(cipher))
        )
        made = await client.basin(name).create_stream("secret")
        assert made.cipher is sdk.Encryption(cipher)
        stream = client.basin(name).stream("secret", encryption_key=KEY)
        await stream.append(sdk.AppendInput([*records, sdk.CommandRecord.fence("f")]))
        async with stream.append_session() as session:
            await (await session.submit(sdk.AppendInput(records)))
        batch = await stream.read(start=sdk.SeqNum(0))
        assert contents(batch.records)[:20] == contents(records)
        assert contents(batch.records)[20] == (b"f", [(b"", b"fence")])
        found = []
        async for part in stream.read_session(start=sdk.SeqNum(21), wait=0):
            found += part.records
        assert contents(found) == contents(records)
        bare = client.basin(name).stream("secret")
        assert (await bare.check_tail()).seq_num == 41
        with pytest.raises(sdk.S2ServerError, match=cipher) as missing:
            await bare.read(start=sdk.SeqNum(0))
        assert missing.value.code == "bad_header"
        other = client.basin(name).stream("secret", encryption_key=bytes(32))
        with pytest.raises(sdk.S2ServerError) as wrong:
            await other.read(start=sdk.SeqNum(0))
        assert (wrong.value.code, wrong.value.status_code) == ("decryption_failed", 400)

    account.tell(story)


def test_a_full_batch_and_a_large_record(packed: Account) -> None:
    """§3c: 1,000 records, and a record that has 1 MiB with what is metered."""
    sdk = packed.sdk
    large = sdk.Record(random.Random(2).randbytes(2**20 - 8))

    async def story(stream: Any) -> None:
        await stream.append(sdk.AppendInput([sdk.Record(b"%d" % n) for n in range(1000)]))
        await stream.append(sdk.AppendInput([large]))
        async with stream.append_session() as session:
            await (await session.submit(sdk.AppendInput([large])))
        batch = await stream.read(start=sdk.SeqNum(0))
        assert [record.body for record in batch.records] == [b"%d" % n for n in range(1000)]
        found = []
        async for part in stream.read_session(start=sdk.SeqNum(1000), wait=0):
            found += part.records
        assert contents(found) == contents([large, large])

    packed.tell_with_stream(story)


def test_many_streams_at_once(account: Account) -> None:
    """§1: sessions and calls share one connection, and do not wait for each other."""
    sdk, name = account.sdk, new_basin_name()

    async def story(client: Any) -> None:
        config = sdk.BasinConfig(create_stream_on_append=True)
        await client.create_basin(name, config=config)

        async def one(number: int) -> None:
            stream = client.basin(name).stream(f"s/{number}")
            async with stream.append_session() as session:
                for at in range(5):
                    ack = await (await session.submit(sdk.AppendInput([sdk.Record(b"%d" % at)])))
                    assert ack.end.seq_num == at + 1
            found: list[Any] = []
            async for part in stream.read_session(start=sdk.SeqNum(0), wait=0):
                found += part.records
            assert [record.body for record in found] == [b"%d" % at for at in range(5)]

        await asyncio.gather(*(one(number) for number in range(40)))
        infos = [info async for info in client.basin(name).list_all_streams(prefix="s/")]
        assert len(infos) == 40

    account.tell(story)


async def last_of(session: Any) -> None:
    """Read until the session ends."""
    async for _ in session:
        pass


def test_a_deleted_stream_ends_its_readers(account: Account) -> None:
    """§14: a follower is told, and does not wait for ever."""
    sdk, name = account.sdk, new_basin_name()
    once = Account(account.url, retry=sdk.Retry(max_attempts=1))

    async def story(client: Any) -> None:
        await client.create_basin(name)
        await client.basin(name).create_stream("gone")
        stream = client.basin(name).stream("gone")
        await stream.append(sdk.AppendInput([sdk.Record(b"x")]))
        session = stream.read_session(start=sdk.SeqNum(0))
        await anext(session)
        await client.basin(name).delete_stream("gone")
        with pytest.raises(sdk.S2ServerError):
            await last_of(session)

    once.tell(story)
