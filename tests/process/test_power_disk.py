"""The disk that loses power: what its log keeps, its protocol, and that nothing of it stays behind.

What a server makes of such a disk is the campaign `power`, of which one unit is here.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from headrace.testing.diskmodel import Dice
from tests.campaigns.power_loss import PowerLoss
from tests.campaigns.runner import do_unit
from tests.harness import power_machine
from tests.harness.events import Violation
from tests.harness.power_history import History, State
from tests.harness.write_log import DISK_MODES, LoggedDisk
from tests.support.checkout import ROOT

SECTOR = 512
SIZE = 64 * SECTOR
MISSING = power_machine.missing()
needs_a_disk = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))


@pytest.fixture
def disk(tmp_path: Path) -> LoggedDisk:
    return LoggedDisk(str(tmp_path / "image"), SIZE, SECTOR)


def sectors(*numbers: int) -> bytes:
    return b"".join(bytes([number]) * SECTOR for number in numbers)


@pytest.mark.parametrize("mode", DISK_MODES)
@pytest.mark.parametrize("seed", range(40))
def test_a_barrier_keeps_what_was_written_before_it(disk: LoggedDisk, mode: str, seed: int) -> None:
    """Each sector is the old one or one that was written after the barrier, never anything else."""
    disk.write(0, sectors(*range(1, 9)))
    disk.barrier()
    disk.write(2 * SECTOR, sectors(100, 101, 102))
    disk.write(4 * SECTOR, sectors(110, 111))
    disk.dead = True
    left = disk.come_back(mode, Dice(seed))  # type: ignore[arg-type]
    assert sum(left.values()) == 2 and not disk.dead
    found = disk.read(0, 8 * SECTOR)
    allowed = [{1}, {2}, {3, 100}, {4, 101}, {5, 102, 110}, {6, 111}, {7}, {8}]
    for number, values in enumerate(allowed):
        sector = found[number * SECTOR : (number + 1) * SECTOR]
        assert set(sector) <= values and len(set(sector)) == 1
    if mode == "none":
        assert found == sectors(*range(1, 9)) and left["writes dropped"] == 2
    if mode == "all":
        assert found == sectors(1, 2, 100, 101, 110, 111, 7, 8) and left["writes kept"] == 2
    if mode in ("prefix", "torn"):
        assert found[4 * SECTOR] != 110 or found[2 * SECTOR : 4 * SECTOR] == sectors(100, 101)


def test_the_same_seed_leaves_the_same_disk(tmp_path: Path) -> None:
    found = set()
    for name in ("one", "two"):
        disk = LoggedDisk(str(tmp_path / name), SIZE, SECTOR)
        for number in range(30):
            disk.write(number % 7 * SECTOR, sectors(number, number, number))
        disk.come_back("subset", Dice(7))
        found.add(disk.read(0, SIZE))
    assert len(found) == 1


def set_n(number: int, state: State) -> None:
    state["n"] = number


@pytest.mark.parametrize(("lossy", "there", "lost"), [(False, 2, 0), (False, 3, 0), (True, 1, 1)])
def test_what_is_found_is_what_the_first_steps_left(lossy: bool, there: int, lost: int) -> None:
    """Class fsync has all that was acknowledged; another class may have less, and says so."""
    history = History({"n": 0}, lossy=lossy)
    for number in (1, 2, 3):
        history.begin(partial(set_n, number))
        if number < 3:
            history.done()
    assert history.pending
    assert history.judge(lambda state: None if state["n"] == there else "") == lost
    assert history.base == {"n": there}


def test_an_acknowledged_step_that_is_gone_is_a_violation() -> None:
    history = History({"n": 0})
    history.begin(lambda state: state.update(n=1))
    history.done()
    with pytest.raises(Violation, match="n is 1"):
        history.judge(lambda state: None if state["n"] == 0 else f"n is {state['n']}")


# A program that makes a filesystem on the disk, loses power, and says what is there.
PROGRAM = """
import os, sys
from pathlib import Path
from tests.harness.power_machine import FILESYSTEMS, Machine
kind = FILESYSTEMS[int(sys.argv[2])]
machine = Machine(Path(sys.argv[1]), kind, 320 << 20)
machine.make_filesystem()
boot = Path("/proc/sys/kernel/random/boot_id").read_text()
for name, synced in (("synced", True), ("lost", False)):
    with open(machine.root / name, "wb") as file:
        file.write(b"x" * 10_000)
        if synced:
            file.flush()
            os.fsync(file.fileno())
            directory = os.open(machine.root, os.O_RDONLY)
            os.fsync(directory)
            os.close(directory)
machine.arm(0, 0)
machine.wait_for_cut(1)
machine.come_back("none", 1)
assert Path("/proc/sys/kernel/random/boot_id").read_text() != boot
found = machine.root / "lost"
size = found.exists() and found.stat().st_size
print((machine.root / "synced").read_bytes() == b"x" * 10_000, size, flush=True)
if sys.argv[3] == "die":
    os.kill(os.getpid(), 9)
machine.close()
"""


def loop_devices() -> str:
    return subprocess.run(["losetup", "-l", "-n"], capture_output=True, check=True).stdout.decode()


@needs_a_disk
@pytest.mark.slow
@pytest.mark.parametrize("end", ["close", "die"])
@pytest.mark.parametrize("kind", range(len(power_machine.FILESYSTEMS)))
def test_a_filesystem_keeps_what_was_synced_and_nothing_stays_behind(
    tmp_path: Path, kind: int, end: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), str(kind), end],
        capture_output=True, cwd=ROOT, check=False, timeout=120,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )  # fmt: skip
    assert done.stdout.decode().split()[0] == "True", done.stderr.decode()
    assert done.stdout.decode().split()[1] in ("False", "0"), "what nobody synced is there"
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert str(tmp_path) not in loop_devices()


@needs_a_disk
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_unit_of_the_campaign() -> None:
    """A server with all dialects over several power losses; nothing acknowledged is missing."""
    said: list[str] = []
    outcome = do_unit(PowerLoss(), 1, 600, said.append)
    assert not outcome.findings, outcome.findings
    assert outcome.counts["power losses"] >= 8 and outcome.counts["records judged"] > 1_000
    assert said
