"""What engines with routers do before they are crashed: workloads, and what each may be held to.

Only this file knows them; `router_sweep.py` makes the crashes and judges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from headrace.core.limits import KIB
from headrace.engine.removal.deleting import TagMatch
from headrace.engine.routers.state import RouterOptions
from headrace.storage.block import Record
from headrace.storage.files.merge_policy import MergePolicy
from tests.harness.engine_driver import SMALL, Driver, Setup, batch_of
from tests.harness.events import Violation
from tests.harness.model import NewRecord, config_of
from tests.harness.scene import Stage

PAGES_MAX = 10_000


class Topic(NamedTuple):
    """A topic as a reader sees it from the start."""

    head: int
    records: dict[int, Record]
    announced: list[tuple[int, int, str]]


class Shown(NamedTuple):
    """What readers were shown of destinations."""

    topics: dict[str, Topic]


class Routed(NamedTuple):
    """A router was created, or changed, or is gone (`options` None)."""

    name: str
    options: RouterOptions | None


class Acknowledged(NamedTuple):
    """Records of a source that were acknowledged, and are to be in these destinations."""

    source: str
    data: frozenset[bytes]
    dests: tuple[str, ...]


@dataclass
class Play:
    """One run of a workload."""

    stage: Stage
    written: dict[str, dict[bytes, tuple[int, str | None]]] = field(default_factory=dict)
    serial: int = 0
    driver: Driver = field(init=False)

    def __post_init__(self) -> None:
        self.driver = self.stage.open()

    def put(self, name: str, **config: object) -> None:
        self.driver.engine.put_topic(name, config_of(**config)).result()

    def route(self, name: str, source: str, dest: str, **options: object) -> None:
        asked = RouterOptions(source=source, dest=dest, **options)  # type: ignore[arg-type]
        self.driver.engine.routers.put(name, asked).result()
        self.stage.disk.mark(Routed(name, asked))

    def unroute(self, name: str) -> None:
        self.stage.disk.mark(Routed(name, None))
        self.driver.engine.routers.delete(name).result()

    def write(self, name: str, count: int = 1, *, wait: bool = False) -> None:
        """Records like no others; nobody waits for the answer, unless told to."""
        records = self.stage.records(count, tagged=True)
        for record in records:
            self.serial += 1
            self.written.setdefault(name, {})[record.data] = (self.serial, record.tag)
        if wait:
            self.driver.engine.append(name, batch_of(records)).result()
        else:
            self.append(name, records)

    def append(self, name: str, records: Sequence[NewRecord]) -> None:
        self.driver.engine.append(name, batch_of(records))
        self.stage.pace(self.driver)

    def show(self, *names: str) -> None:
        """Somebody reads these topics."""
        self.stage.disk.mark(Shown({name: look(self.driver, name) for name in names}))

    def checkpoint(self) -> None:
        self.driver.engine.checkpoint()
        self.driver.steps(self.stage.dice.below(9))


def look(driver: Driver, name: str) -> Topic:
    """Everything a reader from the start is given and told."""
    records: dict[int, Record] = {}
    announced: list[tuple[int, int, str]] = []
    cursor = 0
    for _ in range(PAGES_MAX):
        page = driver.read(name, cursor)
        if page.tombstone is not None:
            announced.append(page.tombstone[:3])
        records.update((record.seq, record) for record in page.records)
        if page.next_from_seq >= page.head_seq:
            return Topic(page.head_seq, records, announced)
        if page.next_from_seq <= cursor:
            raise Violation(f"{name}: a read from {cursor} does not get on")
        cursor = page.next_from_seq
    raise Violation(f"{name}: no end")


# Workloads


def fan_out(play: Play) -> None:
    """One capped source, destinations of all classes, a filter, and copies of copies."""
    play.put("a", durability="disk", cap_records=12)
    play.put("f", durability="fsync")
    play.put("g", durability="fsync")
    play.put("m", durability="memory")
    play.route("ab", "a", "b")
    play.route("af", "a", "f")
    play.route("bg", "b", "g", filter=TagMatch("a"))
    play.route("fm", "f", "m", preserve_node=False)
    for turn in range(9):
        play.write("a", 1 + play.stage.dice.below(3))
        if turn % 2:
            play.append("b", [NewRecord(b"direct %d" % turn)])
        if turn % 3 == 0:
            play.show(*"bfgm"[play.stage.dice.below(4) :])
        if turn in (2, 6):
            play.checkpoint()
        if turn == 4:
            play.driver.engine.delete("a", match="b")
    play.show("b", "f", "g", "m")


def classes(play: Play) -> None:
    """Sources that are never stored, and destinations that are not."""
    play.put("e", durability="ephemeral")
    play.put("f", durability="fsync")
    play.put("x", durability="ephemeral")
    play.route("ef", "e", "f")
    play.route("fd", "f", "d")
    play.route("dx", "d", "x")
    play.route("xz", "x", "z")
    for turn in range(6):
        play.write("e", 2)
        play.show("f", "d", "z")
        if turn in (1, 3):
            play.checkpoint()
        if turn == 4:
            play.put("x", durability="disk")
    play.show("f", "d", "z")


def mirror(play: Play) -> None:
    """Two topics that copy each other."""
    play.put("a", durability="fsync")
    play.route("ab", "a", "b")
    play.route("ba", "b", "a", allow_cycle=True)
    for turn in range(5):
        play.write("ab"[turn % 2], 1)
        play.show("a", "b")
        if turn in (1, 3):
            play.checkpoint()


def coming_and_going(play: Play) -> None:
    """Routers and topics are made, changed, deleted and made again."""
    play.put("a", durability="fsync")
    for turn in range(3):
        play.route("r", "a", "b", guarantee="exactly_once", backfill=True)
        play.route("s", "b", "c", filter=TagMatch("chat", True))
        play.write("a", 3)
        play.show("b", "c")
        play.route("s", "b", "c")
        play.write("a", 2)
        play.show("c")
        if turn == 1:
            play.checkpoint()
        play.unroute("r")
        play.write("a", 1)
        if turn == 1:
            play.stage.disk.mark(Shown({}))
            play.driver.engine.delete_topic("c").result()
        else:
            play.checkpoint()


def newcomers(play: Play) -> None:
    """Destinations that come while checkpoints begin; routers in pairs; records that go soon."""
    play.put("a", durability="disk", cap_records=3)
    play.put("f", durability="fsync")
    for name, match in (("x", "a"), ("y", None), ("z", "a")):
        play.route(name, "a", "f", filter=None if match is None else TagMatch(match))
    for turn in range(4):
        play.write("a", 1)
        play.driver.engine.checkpoint()
        play.put(f"n{turn}", durability="fsync")
        play.route(f"an{turn}", "a", f"n{turn}", guarantee="exactly_once")
        play.write("a", 2)
        play.driver.steps(play.stage.dice.below(9))
        play.write("a", 2)
        play.show("f", *(f"n{number}" for number in range(turn + 1)))
        if turn == 2:
            play.stage.disk.mark(Shown({}))
            play.driver.engine.delete_topic("n0").result()
            play.put("n0", durability="fsync")


def ending(play: Play) -> None:
    """Sources that are deleted right after they were written to, one after the other."""
    play.put("f", durability="fsync")
    play.put("full", cap_records=4, discard="reject")
    play.route("bc", "b", "c")
    for turn in range(4):
        source = f"a{turn}"
        play.put(source, durability="fsync")
        for dest in ("b", "f", "full"):
            play.route(f"to-{dest}", source, dest)
        for _ in range(2):
            play.write(source, 2)
        # Nothing but the append happens before the delete: routers have all of it left to do.
        play.write(source, 3, wait=True)
        data = frozenset(play.written[source])
        play.stage.disk.mark(Acknowledged(source, data, ("b", "f", "c")))
        if turn % 2:
            play.checkpoint()
        deleting = play.driver.engine.delete_topic(source)
        if turn == 2:
            play.checkpoint()
        deleting.result()
        play.show("b", "c", "f", "full")


class Expected(NamedTuple):
    """What a destination may be held to."""

    dest: str
    source: str
    durability: str
    filter: TagMatch | None = None
    complete: bool = True  # nothing but this router ever fed it, and nobody took anything away
    twins: bool = False  # several routers feed it


@dataclass(frozen=True)
class Workload:
    run: Callable[[Play], None]
    expected: tuple[Expected, ...]
    setup: Setup = field(default_factory=Setup)


_MERGES = Setup(policy=MergePolicy(fan_in=2, own_rows_min=1_000, own_bytes_min=1 << 20))
_EAGER = Setup(replace(SMALL, checkpoint_wal_bytes=8 * KIB), _MERGES.policy, shuffled=True)
_FAN_OUT = (
    Expected("b", "a", "disk"),
    Expected("f", "a", "fsync"),
    Expected("g", "b", "fsync", TagMatch("a")),
    Expected("m", "f", "memory"),
)
_NEWCOMERS = tuple(
    Expected(name, "a", "fsync", complete=False, twins=name == "f")
    for name in ("f", "n0", "n1", "n2", "n3")
)
_ENDING = tuple(
    Expected(dest, source, durability, complete=False)
    for dest, source, durability in (
        ("b", "a0", "disk"),
        ("c", "b", "disk"),
        ("f", "a0", "fsync"),
        ("full", "a0", "disk"),
    )
)
WORKLOADS: dict[str, Workload] = {
    "fan_out": Workload(fan_out, _FAN_OUT, _MERGES),
    "fan_out_eager": Workload(fan_out, _FAN_OUT, _EAGER),
    "fan_out_shards": Workload(
        fan_out, _FAN_OUT, replace(_MERGES, settings=replace(SMALL, wal_shards=3))
    ),
    "classes": Workload(
        classes,
        (
            Expected("f", "e", "fsync", complete=False),
            Expected("d", "f", "disk"),
            Expected("z", "x", "disk", complete=False),
        ),
    ),
    "newcomers": Workload(newcomers, _NEWCOMERS, _MERGES),
    "newcomers_shards": Workload(
        newcomers, _NEWCOMERS, replace(_EAGER, settings=replace(SMALL, wal_shards=2))
    ),
    "ending": Workload(ending, _ENDING, _MERGES),
    "ending_shards": Workload(
        ending, _ENDING, replace(_EAGER, settings=replace(_EAGER.settings, wal_shards=3))
    ),
    "mirror": Workload(
        mirror,
        (
            Expected("a", "b", "fsync", complete=False),
            Expected("b", "a", "disk", complete=False),
        ),
    ),
    "coming_and_going": Workload(
        coming_and_going,
        (
            Expected("b", "a", "disk", complete=False),
            Expected("c", "b", "disk", complete=False),
        ),
        _MERGES,
    ),
}
