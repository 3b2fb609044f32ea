"""Recovery inside an asyncio program: the loop stays free, and a stop in the middle is clean."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import Engine, Settings
from headrace.core.errors import DataDirLocked, NotReady, ShuttingDown, WalCorrupt
from headrace.engine.recovery.log_replay import LogReplay

MIB = 1 << 20


def settings_of(directory: Path) -> Settings:
    return Settings(data_dir=str(directory), wal_file_bytes=MIB, wal_batch_bytes_max=64 << 10)


def fill(directory: Path, batches: int = 200) -> None:
    engine = Engine.open(directory, settings_of(directory))
    engine.put_topic("capped", {"cap_records": 5}).result()
    for n in range(batches):
        engine.append("t", [b"%d" % n * 2_000]).result()
        engine.append("capped", [n]).result()
    engine.abandon()


class Gate:
    """Holds the replay at its first entry until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.thread = ""
        apply = LogReplay.apply

        def held(replay: LogReplay, kind: int, entry: bytes) -> None:
            self.thread = threading.current_thread().name
            self.reached.set()
            assert self.opened.wait(20)
            apply(replay, kind, entry)

        monkeypatch.setattr(LogReplay, "apply", held)

    async def wait(self) -> None:
        while not self.reached.is_set():
            await asyncio.sleep(0.001)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.opened.set()


def test_the_loop_is_free_while_the_log_is_replayed(tmp_path: Path, gate: Gate) -> None:
    fill(tmp_path)

    async def main() -> None:
        engine = Engine.prepare_async(tmp_path, settings_of(tmp_path))
        with pytest.raises(DataDirLocked):
            Engine.prepare_async(tmp_path, settings_of(tmp_path))
        assert engine.progress == 0.0
        recovering = asyncio.create_task(engine.recover_async())
        await gate.wait()
        for refused in (
            engine.append("t", [b"x"]),
            engine.read("t"),
            engine.put_topic("new"),
            engine.delete("t", before_seq=2),
            engine.delete_topic("t"),
            engine.wait("t", 0),
            engine.synced("t"),
            engine.checkpoint(),
        ):
            with pytest.raises(NotReady):
                await refused
        for call in (lambda: engine.topic("t"), engine.topics, engine.list_topics):
            with pytest.raises(NotReady):
                call()
        assert not recovering.done() and engine.progress < 1.0
        gate.opened.set()
        recovered = await recovering
        assert gate.thread == "headrace-recover"
        assert engine.progress == 1.0 and recovered.topics == 2
        assert engine.topic("t").count == 200 and engine.topic("capped").count == 5
        assert engine.state.totals.records == 205
        appended = await engine.append("t", [b"x"])
        assert appended.first_seq == 201
        engine.close()

    asyncio.run(main())
    assert gc.isenabled()
    with Engine.open(tmp_path, settings_of(tmp_path)) as engine:
        assert engine.topic("t").head_seq == 201
        assert engine.recovered is not None and engine.recovered.clean


@pytest.mark.parametrize("how", ["close", "abandon", "cancel"])
def test_a_stop_during_recovery_leaves_everything_as_it_was(
    tmp_path: Path, gate: Gate, how: str
) -> None:
    fill(tmp_path)

    async def main() -> None:
        engine = Engine.prepare_async(tmp_path, settings_of(tmp_path))
        recovering = asyncio.create_task(engine.recover_async())
        await gate.wait()
        threading.Timer(0.05, gate.opened.set).start()
        if how == "cancel":
            recovering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await recovering
        else:
            engine.close() if how == "close" else engine.abandon()
            with pytest.raises(ShuttingDown):
                await recovering

    asyncio.run(main())
    assert gc.isenabled()
    assert not [t for t in threading.enumerate() if t.name.startswith("headrace-")]
    with Engine.open(tmp_path, settings_of(tmp_path)) as engine:
        assert engine.topic("t").head_seq == 200


def test_what_recovery_refuses_is_raised_and_the_directory_is_free(tmp_path: Path) -> None:
    fill(tmp_path)
    first = sorted((tmp_path / "wal").iterdir())[0]
    with open(first, "r+b") as file:
        file.seek(2 * 4096 + 60)  # the entry that creates a topic
        file.write(b"damage")

    async def main() -> None:
        for _ in range(2):
            engine = Engine.prepare_async(tmp_path, settings_of(tmp_path))
            with pytest.raises(WalCorrupt):
                await engine.recover_async()

    asyncio.run(main())
