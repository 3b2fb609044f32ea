"""The engine over real files: with threads, inside an asyncio loop, and as it is closed."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from headrace import Batch, Engine, ProducerClaim, Settings
from headrace.core.clock import ManualClock
from headrace.core.errors import DataDirLocked, TopicNotFound
from headrace.testing.simdisk import SimDisk
from tests.support.engines import Start
from tests.support.seqs import seqs_of_page

MIB = 1 << 20


def small(directory: Path, **settings: int | str) -> Settings:
    chosen = {"wal_file_bytes": MIB, "wal_batch_bytes_max": 64 << 10, **settings}
    return Settings(data_dir=str(directory), **chosen)  # type: ignore[arg-type]


def opened(directory: Path, **settings: int | str) -> Engine:
    return Engine.open(directory, small(directory, **settings))


def data(engine: Engine, name: str = "t") -> list[bytes]:
    return [record.data for record in engine.read(name, limit=10_000).result().records]


# Threads


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_a_synchronous_program(tmp_path: Path, durability: str) -> None:
    with opened(tmp_path / "new") as engine:
        engine.put_topic("t", {"durability": durability}).result()
        first = engine.append("t", [b"1", b"2"], idempotency_key="k").result()
        assert (first.first_seq, first.sync_ns > 0) == (1, durability == "fsync")
        engine.append("t", Batch([b"3"], tags=["x"])).result()
        engine.append("t", [b"4"], producer=ProducerClaim("p", 0, 0)).result()
        engine.delete("t", match="x").result()
        assert data(engine) == [b"1", b"2", b"4"]
        waiting = engine.wait("t", 4)
        assert not waiting.done
        engine.append("t", [b"5"]).result()
        assert waiting.done
    with opened(tmp_path / "new") as engine:
        assert data(engine) == [b"1", b"2", b"4", b"5"]
        assert engine.append("t", [b"x"], idempotency_key="k").result().deduped
        assert engine.recovered is not None and engine.recovered.clean


def test_many_appends_share_syncs(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        engine.put_topic("t", {"durability": "fsync"}).result()
        shard = engine.state.shards[0]
        before = shard.syncs_total
        tickets = [engine.append("t", [b"%d" % n]) for n in range(500)]
        assert [ticket.result().first_seq for ticket in tickets] == list(range(1, 501))
        assert shard.syncs_total - before < 50
        assert len(data(engine)) == 500


def test_checkpoints_and_cold_reads_with_real_threads(tmp_path: Path) -> None:
    settings = {"cold_url": str(tmp_path / "cold"), "hot_retain_segments": 1}
    settings |= {"segment_max_events": 10, "read_cache_bytes": 0}
    with opened(tmp_path / "hot", **settings) as engine:
        for part in range(6):
            engine.append("t", [b"%d-%d" % (part, n) for n in range(50)]).result()
            engine.checkpoint().result()
        expected = [b"%d-%d" % (part, n) for part in range(6) for n in range(50)]
        assert data(engine) == expected
        engine.state.forget_blocks(engine.state.topic("t"))
        assert data(engine) == expected
    with opened(tmp_path / "hot", **settings) as engine:
        assert data(engine) == expected


def deleted_files_held_open(directory: Path) -> list[str]:
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    targets = [os.readlink(link) for link in links if os.path.lexists(link)]
    return [t for t in targets if t.startswith(str(directory)) and t.endswith("(deleted)")]


def test_replaced_files_give_their_room_back(tmp_path: Path) -> None:
    """Merged, relocated and rotated files are closed, so that the disk gets the space."""
    settings = {"cold_url": str(tmp_path / "cold"), "hot_retain_segments": 1}
    settings |= {"segment_max_events": 10, "wal_file_bytes": 128 << 10}
    with opened(tmp_path / "hot", **settings) as engine:
        for part in range(24):
            engine.append(f"t{part % 3}", [b"x" * 500] * 50).result()
            engine.append("small", [part]).result()
            engine.checkpoint().result()
        engine.delete("t0", before_seq=300).result()
        for _ in range(3):
            engine.append("small", [0]).result()
            engine.checkpoint().result()
        assert len(data(engine, "t1")) == 400
        assert deleted_files_held_open(tmp_path) == []


def test_a_closed_engine_keeps_no_file_open(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    engine.append("t", [1]).result()
    engine.checkpoint().result()
    assert len(data(engine)) == 1
    engine.close()
    held = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    targets = [os.readlink(link) for link in held if os.path.lexists(link)]
    assert [t for t in targets if t.startswith(str(tmp_path))] == []


def test_a_closed_engine_leaves_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    with opened(tmp_path) as engine:
        engine.append("t", [1]).result()
        engine.checkpoint().result()
        assert threading.active_count() > before
    assert threading.active_count() == before


def test_the_directory_is_locked_while_it_is_open(tmp_path: Path) -> None:
    with opened(tmp_path):
        with pytest.raises(DataDirLocked) as caught:
            opened(tmp_path)
        assert str(os.getpid()) in str(caught.value)
    opened(tmp_path).close()


def test_an_engine_that_was_abandoned_lost_nothing(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    for n in range(20):
        engine.append("t", [b"%d" % n]).result()
    engine.abandon()
    with opened(tmp_path) as engine:
        assert data(engine) == [b"%d" % n for n in range(20)]
        assert engine.topic("t").head_seq == 20


def test_the_same_calls_give_the_same_on_a_real_and_a_simulated_disk(
    tmp_path: Path, start: Start
) -> None:
    found = []
    for engine in (opened(tmp_path), start(SimDisk())):
        for n in range(30):
            engine.append("t", Batch([b"%d" % n] * 2, tags=["a", "b"], nodes="n")).result()
            if n % 10 == 9:
                engine.delete("t", match="b").result()
                engine.checkpoint().result()
        engine.put_topic("t", {"cap_records": 12}).result()
        page = engine.read("t").result()
        found.append((page.next_from_seq, page.tombstone, [r._replace(ts=0) for r in page.records]))
        engine.close()
    assert found[0] == found[1]


# An asyncio loop


def test_an_asyncio_program(tmp_path: Path) -> None:
    async def writer(engine: Engine, number: int) -> list[int]:
        return [(await engine.append("t", [{"w": number, "n": n}])).first_seq for n in range(10)]

    async def reader(engine: Engine, count: int) -> list[int]:
        seqs: list[int] = []
        cursor = 0
        while len(seqs) < count:
            await engine.wait("t", cursor)
            page = await engine.read("t", cursor)
            seqs += seqs_of_page(page)
            cursor = page.next_from_seq
        return seqs

    async def main() -> None:
        engine = await Engine.open_async(tmp_path, small(tmp_path))
        await engine.put_topic("t", {"durability": "fsync"})
        reading = asyncio.create_task(reader(engine, 160))
        given = await asyncio.gather(*(writer(engine, number) for number in range(16)))
        assert sorted(seq for seqs in given for seq in seqs) == list(range(1, 161))
        assert all(seqs == sorted(seqs) for seqs in given)
        assert await reading == list(range(1, 161))
        await engine.checkpoint()
        with pytest.raises(TopicNotFound):
            await engine.read("absent")
        engine.close()
        engine = await Engine.open_async(tmp_path, small(tmp_path))
        assert (await engine.read("t", last=5)).head_seq == 160
        engine.close()

    asyncio.run(main())


def test_closing_inside_a_loop_is_quiet(tmp_path: Path) -> None:
    """Timers and answers that were under way find nobody, and no exception goes astray."""

    async def main() -> list[object]:
        problems: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: problems.append(context))
        for way in ("close", "abandon"):
            engine = await Engine.open_async(tmp_path, small(tmp_path, sync_interval_ms=5))
            await engine.append("t", [1])
            tickets = [engine.append("t", [n]) for n in range(10)]
            engine.checkpoint()
            await asyncio.sleep(0)
            getattr(engine, way)()
            if way == "close":
                assert all(ticket.done for ticket in tickets)
            await asyncio.sleep(0.05)
        return problems

    assert asyncio.run(main()) == []


# Closing


def test_closing_answers_what_is_under_way(start: Start) -> None:
    engine = start()
    engine.put_topic("t", {"durability": "fsync"}).result()
    tickets = [engine.append("t", [n]) for n in range(5)]
    checkpoint = engine.checkpoint()
    engine.close()
    assert [ticket.result().first_seq for ticket in tickets] == [1, 2, 3, 4, 5]
    assert checkpoint.done
    reopened = start(engine.state.fs)
    assert reopened.topic("t").count == 5


def test_closing_twice_is_closing_once(start: Start) -> None:
    engine = start()
    engine.append("t", [1]).result()
    engine.close()
    position = engine.state.fs.position  # type: ignore[attr-defined]
    engine.close()
    engine.abandon()
    assert engine.state.fs.position == position  # type: ignore[attr-defined]


# Time


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000, 315_360_000_000, -315_360_000_000])
def test_wall_clock_jumps_change_nothing_but_a_counter(
    start: Start, clock: ManualClock, jump_ms: int
) -> None:
    engine = start()
    config = {"ttl_ms": 60_000, "idempotency_window_ms": 60_000}
    engine.append("t", [1], config=config, idempotency_key="k").result()
    clock.jump(jump_ms)
    for _ in range(5):
        clock.advance(10_000)
        engine.runtime.run()  # type: ignore[attr-defined]
    assert engine.topic("t").count == 1
    assert engine.append("t", [1], idempotency_key="k").result().deduped
    assert engine.append("t", [2]).result().ts == 1_700_000_050_000
