"""What the crash explorer runs: one workload for each operation that has to survive a crash.

Each is a small program that uses an engine through a `Stage`, decides by the stage's dice, and is
the same for the same seed.  Settings and policies are tiny, so that rotations, merges, seals and
relocations happen within a few hundred disk calls.  What is right is not decided here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from headrace.core.limits import KIB
from headrace.storage.files.merge_policy import MergePolicy
from tests.harness.append_workloads import (
    CLASSES,
    DISK,
    FSYNC,
    OF_CLASS,
    append_classes,
    append_disk,
    append_ephemeral,
    append_fsync,
    append_memory,
    append_turns,
)
from tests.harness.archive_workload import archive
from tests.harness.engine_driver import SMALL, Setup
from tests.harness.events import Loss
from tests.harness.model import NewRecord, Producer, config_of
from tests.harness.scene import TAGS, Stage
from tests.harness.sync_workloads import lone, window


def batch(stage: Stage) -> None:
    """Batches of many sizes, some larger than a group commit or than a log file."""
    driver = stage.open()
    sizes = (40, 40, 600, 3_000, 12_000, 40)
    for turn in range(14):
        name = ("a", "b")[stage.dice.below(2)]
        config = FSYNC if name == "a" else DISK
        count = 1 + stage.dice.below(6)
        size = sizes[stage.dice.below(len(sizes))]
        driver.append(name, *stage.records(count, size, tagged=True), config=config)
        if turn == 9:
            driver.append(name, NewRecord(stage.dice.bytes(70 * KIB)))
        stage.pace(driver)
    driver.finish()


def rotation(stage: Stage) -> None:
    """The log goes through several files."""
    driver = stage.open()
    for _ in range(45):
        name = ("f", "d")[stage.dice.below(2)]
        config = FSYNC if name == "f" else DISK
        driver.append(name, stage.record(8_000), config=config)
        stage.pace(driver)
    driver.finish()


def rotation_beside(stage: Stage) -> None:
    """The log grows, and leaves its file, while a sync runs or has run and nobody has heard."""
    driver = stage.open()
    for _ in range(20):
        driver.append("f", stage.record(), config=FSYNC)
        driver.steps(1 + stage.dice.below(2))
        for _ in range(stage.dice.below(9)):
            driver.append("d", stage.record(8_000), config=DISK)
        driver.steps(1 + stage.dice.below(3))
    driver.finish()


def automatic(stage: Stage) -> None:
    """Checkpoints that nobody asks for, in the midst of appends."""
    driver = stage.open()
    for turn in range(40):
        name = ("f", "d")[stage.dice.below(2)]
        config = FSYNC if name == "f" else DISK
        driver.append(name, *stage.records(2, 1_500, tagged=True), config=config)
        if turn % 7 == 6:
            driver.delete(name, before_seq=turn)
        stage.pace(driver)
    driver.finish()


def replay(stage: Stage) -> None:
    """More in the log than a recovery may hold in memory."""
    driver = stage.open()
    for turn in range(26):
        name = ("f", "d", "e")[turn % 3]
        config = OF_CLASS[("fsync", "disk", "ephemeral")[turn % 3]]
        driver.append(name, NewRecord(stage.dice.bytes(70 * KIB), "a"), config=config)
        if turn in (10, 20):
            driver.finish()
            driver.delete(name, before_seq=3)
        stage.pace(driver)
    driver.finish()


def reserve(stage: Stage) -> None:
    """More seqs than were reserved at creation, several times over."""
    driver = stage.open()
    for _ in range(16):
        for name in ("disk", "ephemeral"):
            count = 20 + stage.dice.below(80)
            driver.append(name, *stage.records(count, 3), config=OF_CLASS[name])
            stage.pace(driver)
        stage.clock.advance(stage.dice.below(40))
    driver.finish()
    for _ in range(12):  # with no time for the sync that would make a reservation valid
        driver.append("disk", *stage.records(60, 3))
        driver.finish()


def checkpoint(stage: Stage) -> None:
    """Checkpoints, some of them with calls in flight before, during and after."""
    driver = stage.open()
    for _ in range(4):
        for _ in range(5):
            name = CLASSES[stage.dice.below(4)]
            config = OF_CLASS[name]
            driver.append(name, *stage.records(1 + stage.dice.below(3), tagged=True), config=config)
            stage.pace(driver)
        stage.checkpoint(driver)
        driver.steps(stage.dice.below(8))
        driver.append("fsync", stage.record(), config=FSYNC)
        stage.pace(driver)
        driver.append("disk", stage.record())
        if stage.dice.coin():
            driver.finish()
    driver.finish()


def merge(stage: Stage) -> None:
    """Small files of several levels become larger ones, dead rows are dropped on the way."""
    driver = stage.open()
    for turn in range(7):
        for name in ("a", "b", "c"):
            driver.append(name, *stage.records(2, tagged=True), config=FSYNC)
            stage.pace(driver)
        driver.finish()
        if turn % 2:
            driver.delete("a", before_seq=2 * turn)
            driver.delete("b", match="chat-42*")
        if turn == 5:
            driver.drop("c")
        stage.checkpoint(driver)
        driver.steps(stage.dice.below(10))
        if stage.dice.coin():
            driver.delete("b", match="a")
        driver.finish()


def merge_beside(stage: Stage) -> None:
    """Checkpoints that follow each other at once, so that merges go on beside them."""
    driver = stage.open()
    for turn in range(6):
        for name in ("a", "b", "c"):
            driver.append(name, *stage.records(2, tagged=True), config=FSYNC)
        stage.checkpoint(driver)
        driver.steps(stage.dice.below(20))
        driver.append("a", stage.record(), config=FSYNC)
        driver.delete("b", match="chat-42*")
        stage.checkpoint(driver)
        driver.steps(20 + stage.dice.below(40))
        if turn == 4:
            driver.drop("c")
    driver.finish()


def seal_own(stage: Stage) -> None:
    """A large topic beside small ones gets files of its own."""
    driver = stage.open()
    for _ in range(4):
        driver.append("big", *stage.records(8, 300, tagged=True), config=FSYNC)
        driver.append("small", stage.record(), config=DISK)
        stage.pace(driver)
        driver.append("big", *stage.records(3, 300))
        stage.checkpoint(driver)
        driver.steps(stage.dice.below(6))
        driver.append("big", stage.record())
        driver.finish()
    driver.delete("big", before_seq=30)
    stage.checkpoint(driver)
    driver.finish()


def relocate(stage: Stage) -> None:
    """Own files beyond the hot bound move to the cold tier and are read and deleted from there."""
    driver = stage.open()
    for turn in range(5):
        driver.append("big", *stage.records(8, 300, tagged=True), config=FSYNC)
        driver.append("small", stage.record(), config=DISK)
        stage.pace(driver)
        stage.checkpoint(driver)
        driver.finish()
        if turn == 3:
            driver.delete("big", match="a")
            driver.delete("big", before_seq=10)
    stage.checkpoint(driver)
    driver.finish()


def delete(stage: Stage) -> None:
    """Every kind of delete, in memory and in sealed rows."""
    driver = stage.open()
    driver.put("f", FSYNC)
    driver.put("d", DISK)
    for turn in range(5):
        for name in ("f", "d"):
            driver.append(name, *stage.records(6, tagged=True))
            stage.pace(driver)
            driver.delete(name, match=("a", "chat-42:*", "b", "chat-4*", "*")[turn])
            stage.pace(driver)
            driver.append(name, stage.record(tagged=True))
            driver.delete(name, before_seq=4 * turn)
            driver.delete(name, before_seq=6 * turn, match="b")
            stage.pace(driver)
        if turn in (1, 3):
            stage.checkpoint(driver)
            driver.steps(stage.dice.below(9))
    driver.finish()


def snapshots(stage: Stage) -> None:
    """A chain of snapshots long enough to start anew."""
    driver = stage.open()
    for turn in range(19):
        name = f"t{turn % 5}"
        driver.append(name, stage.record(), config=FSYNC)
        if turn == 11:
            driver.finish()
            driver.drop("t0")
        stage.checkpoint(driver)
        driver.finish()


def lifecycle(stage: Stage) -> None:
    """Topics are deleted and made again under the same name."""
    driver = stage.open()
    for turn in range(4):
        for name in ("x", "y"):
            config = config_of(durability=CLASSES[stage.dice.below(4)], cap_records=turn * 3)
            if stage.dice.coin():
                driver.put(name, config)
            driver.append(name, *stage.records(3, tagged=True), config=config)
            stage.pace(driver)
        if stage.dice.coin():
            stage.checkpoint(driver)
            driver.steps(stage.dice.below(9))
        for name in ("x", "y"):
            driver.finish()
            driver.drop(name)
            driver.append(name, stage.record(), config=FSYNC)
            stage.pace(driver)
        if turn == 2:
            stage.checkpoint(driver)
    driver.finish()


def configure(stage: Stage) -> None:
    """A topic changes its class and its caps while it is used."""
    driver = stage.open()
    driver.put("t", DISK)
    for turn in range(9):
        driver.append("t", *stage.records(3, tagged=True))
        stage.pace(driver)
        durability = CLASSES[stage.dice.below(4)]
        cap = (0, 0, 4, 7)[stage.dice.below(4)]
        driver.put("t", config_of(durability=durability, cap_records=cap))
        stage.pace(driver)
        driver.append("t", *stage.records(2, tagged=True))
        driver.finish()
        driver.delete("t", match="a")
        stage.pace(driver)
        if turn in (2, 6):
            stage.checkpoint(driver)
    driver.finish()


def retention(stage: Stage) -> None:
    """Caps and a TTL take records, in memory and in files."""
    driver = stage.open()
    driver.put("records", config_of(durability="fsync", cap_records=5))
    driver.put("bytes", config_of(durability="disk", cap_bytes=120))
    driver.put("ttl", config_of(durability="fsync", ttl_ms=500))
    driver.put("reject", config_of(durability="disk", cap_records=6, discard="reject"))
    driver.finish()
    for turn in range(7):
        for name in ("records", "bytes", "ttl", "reject"):
            driver.append(name, *stage.records(1 + stage.dice.below(3), tagged=True))
            stage.pace(driver)
        stage.clock.advance(150)
        driver.finish()
        if turn == 3:
            driver.delete("records", match="a")
            driver.delete("reject", before_seq=4)
        if turn in (2, 5):
            stage.checkpoint(driver)
            driver.steps(stage.dice.below(9))
    driver.finish()


def idempotency(stage: Stage) -> None:
    """Keys and producers are retried in flight, after checkpoints and after crashes."""
    driver = stage.open()
    for name, durability in (("f", "fsync"), ("d", "disk")):
        driver.put(name, config_of(durability=durability, idempotency_window_ms=60_000))
    sequence = {"f": 0, "d": 0}
    for turn in range(8):
        for name in ("f", "d"):
            records = stage.records(2)
            driver.append(name, *records, key=f"{name}{turn}")
            if stage.dice.coin():
                stage.pace(driver)
            driver.append(name, *records, key=f"{name}{turn}")
            producer = Producer("p", turn // 4, sequence[name] % 4)
            sequence[name] += 1
            driver.append(name, *stage.records(1 + stage.dice.below(2)), producer=producer)
            stage.pace(driver)
            if stage.dice.coin():
                older = stage.dice.below(producer.sequence + 1)
                driver.append(name, stage.record(), producer=producer._replace(sequence=older))
        if turn in (2, 5):
            stage.checkpoint(driver)
            driver.steps(stage.dice.below(9))
    driver.finish()


def closing(stage: Stage) -> None:
    """Clean exits, and what follows them."""
    driver = stage.open()
    for turn in range(3):
        for durability in CLASSES:
            driver.append(
                durability,
                *stage.records(2, tagged=True),
                key=f"{durability}{turn}",
                config=OF_CLASS[durability],
            )
            stage.pace(driver)
        if turn == 1:
            stage.checkpoint(driver)
        driver.finish()
        driver = stage.reopen(driver, "clean")
    driver.append("disk", stage.record())
    driver.finish()


def recovery(stage: Stage) -> None:
    """A little of everything, and then recoveries that the explorer crashes in turn."""
    driver = stage.open()
    for durability in CLASSES:
        driver.append(
            durability,
            *stage.records(3, tagged=True),
            key="k",
            config=config_of(durability=durability, cap_records=8),
        )
    stage.checkpoint(driver)
    driver.finish()
    for durability in CLASSES:
        driver.append(durability, *stage.records(3, tagged=True))
        driver.delete(durability, match="a")
        stage.pace(driver)
    driver.drop("memory")
    driver.finish()
    driver = stage.reopen(driver, "kill")
    for durability in CLASSES:
        driver.append(durability, stage.record())
    driver.finish()


def shards(stage: Stage) -> None:
    """The number of logs changes from one start to the next: 1, 2, 1, 3."""
    driver = stage.open()
    for turn, count in enumerate((2, 1, 3)):
        for number in range(4):
            name = f"t{number}"
            durability = CLASSES[number]
            driver.append(name, *stage.records(2, tagged=True), config=OF_CLASS[durability])
            stage.pace(driver)
        if turn == 1:
            stage.checkpoint(driver)
            driver.finish()
            driver.append("t0", stage.record())
            driver.drop("t1")
        driver.finish()
        loss: Loss = "clean" if stage.dice.coin() else "kill"
        driver = stage.reopen(driver, loss, wal_shards=count)
    for number in range(4):
        driver.append(f"t{number}", stage.record(), config=FSYNC)
    driver.finish()


def mixed(stage: Stage) -> None:
    """Anything, in any order, with the lanes taking turns by the dice."""
    driver = stage.open()
    names = ("f", "d", "m", "e")
    for turn in range(50):
        name = names[stage.dice.below(4)]
        config = config_of(durability=CLASSES[names.index(name)], cap_records=20)
        choice = stage.dice.below(12)
        if choice < 7:
            key = f"k{turn}" if stage.dice.below(3) == 0 else None
            driver.append(
                name, *stage.records(1 + stage.dice.below(4), tagged=True), key=key, config=config
            )
        elif choice == 7:
            driver.delete(name, match=TAGS[1 + stage.dice.below(4)])
        elif choice == 8:
            driver.delete(name, before_seq=stage.dice.below(30))
        elif choice == 9 and stage.dice.coin():
            driver.finish()
            driver.drop(name)
        elif choice == 10:
            stage.checkpoint(driver)
        else:
            stage.clock.advance(15)
        stage.pace(driver)
    driver.settle()


@dataclass(frozen=True)
class Workload:
    """A program and the engine it runs on."""

    run: Callable[[Stage], None]
    setup: Setup = field(default_factory=Setup)
    ordered: bool = True  # one log, in the order of the calls


_MERGES = MergePolicy(fan_in=2, own_rows_min=1_000, own_bytes_min=1 << 20, step_bytes=1)
_OWN = MergePolicy(fan_in=2, own_rows_min=6, own_bytes_min=1_000, own_topics_max=4)
_EAGER = replace(SMALL, checkpoint_wal_bytes=24 * KIB)
_COLD = replace(SMALL, hot_retain_segments=1)
_PLAIN = (
    append_fsync, append_disk, append_memory, append_ephemeral, append_classes, append_turns,
    batch, rotation, reserve, replay, checkpoint, delete, snapshots, lifecycle, configure,
    retention, archive,
    idempotency, closing, recovery,
)  # fmt: skip

WORKLOADS: dict[str, Workload] = {
    **{run.__name__: Workload(run) for run in _PLAIN},
    "automatic": Workload(automatic, Setup(_EAGER, _MERGES)),
    "merge": Workload(merge, Setup(policy=_MERGES)),
    "merge_beside": Workload(
        merge_beside, Setup(policy=_MERGES, shuffled=True, cached=False), ordered=False
    ),
    "seal_own": Workload(seal_own, Setup(policy=_OWN)),
    "relocate": Workload(relocate, Setup(_COLD, _OWN, cold=True)),
    "shards": Workload(shards, ordered=False),
    "lone": Workload(lone, Setup(idle_in=200)),
    "window": Workload(window, Setup(shuffled=True)),
    "rotation_beside": Workload(rotation_beside, Setup(shuffled=True), ordered=False),
    "mixed": Workload(mixed, Setup(policy=_MERGES, shuffled=True, cached=False), ordered=False),
}


def perform(name: str, seed: int, *, checkpoints: bool = True, calm: bool = False) -> Stage:
    """Run a workload to its end; the disk's trace is what the explorer works on."""
    workload = WORKLOADS[name]
    stage = Stage(workload.setup, seed, checkpoints, calm)
    workload.run(stage)
    return stage
