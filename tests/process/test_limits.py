"""A process out of disk, of file size or of descriptors: it refuses, reads on, and resumes."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from headrace.core.errors import Throttled
from headrace.core.thread_runtime import ThreadRuntime
from headrace.engine.engine import Engine
from headrace.testing.faultfs import Fault, FaultFilesystem, FaultPlan
from headrace.testing.simdisk import SimDisk
from tests.harness.traffic import small_settings

MOUNT = 'mount -t tmpfs -o size=8m none "$0" && exec "$@"'
RECORD_BYTES = 1_000
CLASSES = ("fsync", "disk", "memory")


def small_disk(directory: Path) -> list[str]:
    """A command that runs another with a file system of 8 MiB at `directory`."""
    return ["unshare", "-rm", "sh", "-c", MOUNT, str(directory)]


def can_mount(directory: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*small_disk(directory), "true"], capture_output=True).returncode == 0


class Writer:
    """Appends through a process that obeys, and counts what was acknowledged."""

    def __init__(self, worker, topic: str, durability: str) -> None:
        self._worker = worker
        self.topic = topic
        self._durability = durability
        self.acked = 0
        self.refusals: list[tuple[str, str]] = []

    def append(self, count: int) -> bool:
        line = self._worker.ask(f"append {self.topic} {count} {RECORD_BYTES} {self._durability}")
        if line[0] == "failed":
            self.refusals.append((line[2], line[3]))
            return False
        first, last, _ = line[2]
        # A refused append leaves no trace, in the seqs neither.
        assert (first, last) == (self.acked + 1, self.acked + count), line
        self.acked += count
        return True

    def check(self) -> None:
        """All that was acknowledged is there, and nothing else."""
        assert self._worker.ask(f"count {self.topic}") == ["done", "count", self.acked]


def fill_up(worker, writer: Writer) -> None:
    """Append until the disk stays full.

    A log file that is being prepared holds room which it gives back when it cannot be finished, so
    a first refusal may be a passing one.  Most of it is filled by large appends, the rest by small.
    """
    for count in (100, 10):
        for _ in range(1_000):
            accepted = False
            for _ in range(3):
                accepted = accepted or writer.append(count)
                assert worker.ask("drain")[0] == "done"
            if not accepted:
                break
        else:
            raise AssertionError("the disk never filled")


def ready(worker, directory: Path, **settings: int):
    worker.tell({"directory": str(directory), "ops": 0, "finish": "obey", "settings": settings})
    worker.last("loaded")
    return worker


def finish(worker, writers: list[Writer]) -> None:
    """Everything is there now, after a death, and after a clean stop."""
    for writer in writers:
        writer.check()
    assert worker.ask("reopen")[0] == "done"
    for writer in writers:
        writer.check()
        assert writer.append(1)
    worker.tell("close")
    worker.last("end")
    assert worker.end() == 0, worker.complaints()


@pytest.mark.parametrize("durability", CLASSES)
def test_a_full_disk_refuses_writes_until_there_is_room(
    durability: str, workers, tmp_path: Path
) -> None:
    if not can_mount(tmp_path):
        pytest.skip("no small file system can be mounted here (unshare -rm, mount -t tmpfs)")
    # Only the log fills the disk, so that nothing else makes room in between.
    never = {"checkpoint_wal_bytes": 1 << 30, "memory_budget_bytes": 1 << 30}
    worker = ready(workers.spawn(*small_disk(tmp_path)), tmp_path, **never)
    assert worker.ask(f"fill ballast {5 << 20}")[0] == "done"
    writer = Writer(worker, "a", durability)
    fill_up(worker, writer)
    assert writer.acked > 100
    # Still full: refused again, and everything can be read.
    assert not writer.append(10)
    assert worker.ask("checkpoint")[0] == "failed"
    writer.check()
    assert worker.ask("state")[2] == ["disk_full"]
    assert set(writer.refusals) == {("not_ready", "disk_full")}
    assert worker.ask("unlink ballast")[0] == "done"
    # The same process, without a restart.
    assert writer.append(10), writer.refusals
    assert worker.ask("state")[2] == ["ok"]
    for _ in range(20):
        assert writer.append(10), writer.refusals
    assert worker.ask("checkpoint")[0] == "done"
    finish(worker, [writer])


@pytest.mark.parametrize("replay_memory_bytes", [1 << 20, 1 << 30], ids=["sealing", "in memory"])
def test_a_start_on_a_full_disk(replay_memory_bytes: int, workers, tmp_path: Path) -> None:
    if not can_mount(tmp_path):
        pytest.skip("no small file system can be mounted here (unshare -rm, mount -t tmpfs)")
    settings = {
        "checkpoint_wal_bytes": 1 << 30,
        "memory_budget_bytes": 1 << 30,
        "replay_memory_bytes": replay_memory_bytes,
    }
    worker = ready(workers.spawn(*small_disk(tmp_path)), tmp_path, **settings)
    assert worker.ask(f"fill ballast {5 << 20}")[0] == "done"
    writer = Writer(worker, "a", "fsync")
    while writer.append(10):
        pass
    for _ in range(2):
        # L19: it serves what is there, and says why it takes nothing.
        answer = worker.ask("reopen")
        assert answer[0] == "done", answer
        writer.check()
        fill_up(worker, writer)
        assert writer.refusals[-1] == ("not_ready", "disk_full")
    assert worker.ask("unlink ballast")[0] == "done"
    assert writer.append(10), writer.refusals
    finish(worker, [writer])


@pytest.mark.parametrize("reopened", ["", "full", "deleted"])
def test_l20_deletes_on_a_full_disk(reopened: str, workers, tmp_path: Path) -> None:
    """On a real disk that is full to the brim: topics and records go, and appends go on."""
    if not can_mount(tmp_path):
        pytest.skip("no small file system can be mounted here (unshare -rm, mount -t tmpfs)")
    worker = ready(workers.spawn(*small_disk(tmp_path)), tmp_path)
    kept, gone = Writer(worker, "kept", "fsync"), Writer(worker, "gone", "disk")
    assert all(kept.append(10) for _ in range(50))
    for delete in ("drop gone", "trim gone 1000000"):
        fill_up(worker, gone)
        if reopened == "full":
            assert worker.ask("reopen")[0] == "done"
            fill_up(worker, gone)
        # What is left free besides the reserve is taken, too, by somebody else.
        worker.ask(f"fill ballast {8 << 20}")
        assert not gone.append(1)
        assert worker.ask(delete)[0] == "done"
        if reopened == "deleted":
            assert worker.ask("reopen")[0] == "done"
        assert worker.ask("drain")[0] == "done"
        kept.check()
        acked = gone.acked if delete.startswith("drop") else 0
        gone = Writer(worker, "gone", "disk") if acked else gone
        before = gone.acked
        while gone.acked - before < 1_000:
            assert gone.append(50), gone.refusals[-1]
            assert worker.ask("drain")[0] == "done"
        assert worker.ask("unlink ballast")[0] == "done"
    kept.check()
    assert worker.ask("reopen")[0] == "done"
    kept.check()


@pytest.mark.parametrize("durability", CLASSES)
def test_a_short_write_is_not_a_record(durability: str, workers, tmp_path: Path) -> None:
    worker = ready(workers.spawn(), tmp_path)
    writer = Writer(worker, "a", durability)
    assert writer.append(5)
    # A log file is longer than this: the write that crosses the line is cut short, then refused.
    assert worker.ask("limit size 40000")[0] == "done"
    outcomes = [writer.append(3) for _ in range(60)]
    assert False in outcomes and True in outcomes, outcomes
    assert set(writer.refusals) == {("not_ready", "disk_full")}
    writer.check()
    assert worker.ask("limit size off")[0] == "done"
    assert all(writer.append(3) for _ in range(40)), writer.refusals
    finish(worker, [writer])


@pytest.mark.parametrize("limit", ["3", "+0", "+1", "+2", "+4"])
def test_no_descriptors_left(limit: str, workers, tmp_path: Path) -> None:
    worker = ready(workers.spawn(), tmp_path)
    writers = [Writer(worker, durability, durability) for durability in CLASSES]
    assert all(writer.append(20) for writer in writers)
    assert worker.ask("checkpoint")[0] == "done"
    assert all(writer.append(2) for writer in writers)
    # At most so many in all, or so many more than are open now.
    assert worker.ask(f"limit files {limit}")[0] == "done"
    checkpoint = worker.ask("checkpoint")
    assert checkpoint[0] == "failed" or limit != "3", checkpoint
    # Log files are rotated meanwhile, which needs descriptors too.
    for _ in range(30):
        for writer in writers:
            writer.append(2)
            writer.check()
    refused = {refusal for writer in writers for refusal in writer.refusals}
    assert refused <= {("not_ready", "disk_full"), ("not_ready", "out_of_resources")}, refused
    assert worker.ask("limit files off")[0] == "done"
    assert all(writer.append(2) for writer in writers), writers[0].refusals
    assert worker.ask("checkpoint")[0] == "done"
    assert all(writer.append(2) for writer in writers)
    finish(worker, writers)


def test_a_throttled_program_gets_through_by_retrying() -> None:
    """A synchronous program that does nothing but try again must not wait for ever."""
    slow = FaultPlan(Fault("create", 1, "call", forever=True, path="segments/*", hook=pause))
    runtime = ThreadRuntime()
    settings = small_settings(memory_budget_bytes=1 << 20, checkpoint_wal_bytes=1 << 30)
    engine = Engine(FaultFilesystem(SimDisk(), slow), runtime, settings)
    engine.recover()
    refusals = appended = 0
    while appended < 60 and refusals < 5_000:
        try:
            engine.append("a", [b"x" * 50_000]).result()
            appended += 1
        except Throttled:
            refusals += 1
            time.sleep(0.005)
    engine.close()
    assert refusals > 0, "nothing was throttled, so nothing was tested"
    assert appended == 60, f"refused {refusals} times"


def pause(_operation: str, _path: str) -> None:
    time.sleep(0.1)
