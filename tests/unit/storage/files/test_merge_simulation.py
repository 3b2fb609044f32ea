"""A month of merges in numbers only: files, spread of reads, disk and writes stay bounded.

Topics that behave alike are one class, so that 10,000 of them cost as much as one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from headrace.storage.files.merge_policy import FileStats, MergeJob, MergePolicy, TopicShare, plan
from headrace.storage.segment.format import SegmentMeta

MIB = 1 << 20
# Measured on a file of 10,000 topics with 32 rows each: 50.7 bytes a row beside the payload.
ROW_AROUND_BYTES = 51
FILE_AROUND_BYTES = 8 << 10
CHECKPOINTS_30_DAYS = 1350  # one each 32 minutes
# What a checkpoint replaced stays on disk while one of the two newest snapshots lists it.
SNAPSHOTS_RETAINED = 2
POLICY = MergePolicy()


class Kind(NamedTuple):
    """Topics `first_id..first_id+count-1`, each written alike."""

    first_id: int
    count: int
    row_bytes: int


Spans = dict[Kind, tuple[int, int]]  # the seqs of each topic of a kind in a file, inclusive
Floors = dict[Kind, int]


class Shares:
    def __init__(self, spans: Spans, floors: Floors) -> None:
        self.spans = spans
        self.floors = dict(floors)

    def live(self, kind: Kind) -> int:
        first, last = self.spans[kind]
        return max(0, last + 1 - max(first, self.floors.get(kind, 1)))

    def of(self, topic_id: int) -> TopicShare | None:
        for kind, (first, last) in self.spans.items():
            if kind.first_id <= topic_id < kind.first_id + kind.count:
                rows = self.live(kind)
                return TopicShare(rows, rows * kind.row_bytes, first, last)
        return None

    def heavy(self, bytes_min: int) -> Iterator[int]:
        for kind in self.spans:
            if self.live(kind) * kind.row_bytes >= bytes_min:
                yield from range(kind.first_id, kind.first_id + kind.count)


class World:
    def __init__(self) -> None:
        self.files: dict[int, tuple[SegmentMeta, Spans]] = {}
        self.floors: Floors = {}
        self.heads: dict[Kind, int] = {}
        self.next_id = 1
        self.retained: list[list[int]] = []  # sizes of replaced files, one list a checkpoint
        self.appended_bytes = 0
        self.written_bytes = 0
        self.files_max = 0
        self.disk_ratio_max = 0.0

    def seal(self, spans: Spans, owner: int, level: int, order: int | None = None) -> None:
        rows = sum(k.count * (last + 1 - first) for k, (first, last) in spans.items())
        payload = sum(
            k.count * (last + 1 - first) * k.row_bytes for k, (first, last) in spans.items()
        )
        size = payload + rows * ROW_AROUND_BYTES + FILE_AROUND_BYTES
        meta = SegmentMeta(
            file_id=self.next_id, owner=owner, level=level, rows=rows,
            topics=sum(k.count for k in spans), size=size, footer_offset=size, footer_hash=0,
            payload_bytes=payload, min_ts=0, max_ts=0, created_ms=0,
            order=self.next_id if order is None else order,
        )  # fmt: skip
        self.files[self.next_id] = meta, spans
        self.next_id += 1
        self.written_bytes += size

    def stats(self) -> list[FileStats]:
        result = []
        for meta, spans in self.files.values():
            shares = Shares(spans, self.floors)
            live = {kind: shares.live(kind) * kind.count for kind in spans}
            live_bytes = sum(rows * kind.row_bytes for kind, rows in live.items())
            result.append(FileStats(meta, sum(live.values()), live_bytes, shares))
        return result

    def checkpoint(self, rows: dict[Kind, int]) -> None:
        spans: Spans = {}
        for kind, count in rows.items():
            if count:
                head = self.heads.get(kind, 0)
                spans[kind] = head + 1, head + count
                self.heads[kind] = head + count
        before = self.written_bytes
        self.seal(spans, 0, 0)
        self.appended_bytes += self.written_bytes - before
        replaced: list[int] = []
        for job in plan(self.stats(), POLICY):
            replaced += self.run(job)
        self.retained = [*self.retained[-(SNAPSHOTS_RETAINED - 1) :], replaced]
        self.measure()

    def run(self, job: MergeJob) -> list[int]:
        inputs = [self.files.pop(file_id) for file_id in job.inputs]
        merged: Spans = {}
        for _, spans in inputs:
            for kind, (first, last) in spans.items():
                first = max(first, self.floors.get(kind, 1))
                if first <= last:
                    before = merged.get(kind, (first, first - 1))
                    assert before[1] < first, "the rows of a topic would not stay in order"
                    merged[kind] = before[0], last
        shared = {k: v for k, v in merged.items() if k.first_id not in job.own_topics}
        for kind, (first, last) in merged.items():
            if kind.first_id in job.own_topics:
                assert kind.count == 1
                self.seal_own(kind, first, last, job.level)
        if shared:
            order = min(meta.order for meta, _ in inputs)
            assert all(meta.owner == 0 for meta, _ in inputs)
            self.seal(shared, 0, job.level, order)
        return [meta.size for meta, _ in inputs]

    def seal_own(self, kind: Kind, first: int, last: int, level: int) -> None:
        size = (last + 1 - first) * (kind.row_bytes + ROW_AROUND_BYTES)
        pieces = -(-size // POLICY.own_bytes_max)
        rows = -(-(last + 1 - first) // pieces)
        for start in range(first, last + 1, rows):
            self.seal({kind: (start, min(last, start + rows - 1))}, kind.first_id, level, start)

    def measure(self) -> None:
        kept = [size for sizes in self.retained for size in sizes]
        self.files_max = max(self.files_max, len(self.files) + len(kept))
        stats = self.stats()
        live = sum(file.live_size for file in stats)
        disk = sum(meta.size for meta, _ in self.files.values()) + sum(kept)
        # What a running merge has written, or replaced and not yet unlinked, is one job's worth.
        disk -= POLICY.shared_bytes_max
        self.disk_ratio_max = max(self.disk_ratio_max, disk / max(1, live))

    def runs(self, kind: Kind) -> list[tuple[int, int]]:
        runs = sorted(spans[kind] for _, spans in self.files.values() if kind in spans)
        for (_, last), (first, _) in pairwise(runs):
            assert last < first
        return runs

    def spread_of(self, kind: Kind, rows: int) -> int:
        """The most files that `rows` consecutive records of a topic are spread over."""
        runs = self.runs(kind)
        assert runs[-1][1] == self.heads[kind]
        firsts = [first for first, _ in runs]
        worst = 0
        for index, (_, last) in enumerate(runs):
            worst = max(worst, bisect_right(firsts, last + rows - 1) - index)
        return worst

    def check_complete(self) -> None:
        """Every live row is in exactly one file."""
        for kind, head in self.heads.items():
            floor = self.floors.get(kind, 1)
            held = sum(max(0, last + 1 - max(first, floor)) for first, last in self.runs(kind))
            assert held == head + 1 - floor, kind


def simulate(
    world: World,
    checkpoints: int,
    rows_of: Callable[[int], dict[Kind, int]],
    before: Callable[[int], None] = lambda index: None,
) -> None:
    for index in range(checkpoints):
        before(index)
        world.checkpoint(rows_of(index))
        if index % 150 == 0:
            world.check_complete()
    world.check_complete()


def test_ten_thousand_topics_for_thirty_days() -> None:
    # 64 MiB of log for 320,000 records is 209 bytes each, 72 of them around the data.
    topics = Kind(1, 10_000, 137)
    world = World()
    spread = 0

    def before(index: int) -> None:
        nonlocal spread
        if index % 10 == 9:
            spread = max(spread, world.spread_of(topics, 1000))

    simulate(world, CHECKPOINTS_30_DAYS, lambda index: {topics: 32}, before)
    assert world.heads[topics] == 1350 * 32
    assert world.files_max <= 200
    assert spread <= 50
    assert world.disk_ratio_max <= 2.0
    # Each row is written by its checkpoint and by one merge: no file is ever written twice.
    assert world.written_bytes <= 2.01 * world.appended_bytes
    assert max(meta.size for meta, _ in world.files.values()) <= POLICY.shared_bytes_max


def test_quiet_checkpoints_do_not_pile_up() -> None:
    topics = Kind(1, 1000, 100)
    world = World()
    simulate(world, CHECKPOINTS_30_DAYS, lambda index: {topics: 1 + (index * 7919) % 5})
    levels = 4  # 8**4 checkpoints are more than there were
    assert world.files_max <= levels * POLICY.fan_in + SNAPSHOTS_RETAINED * levels * POLICY.fan_in
    assert world.written_bytes <= (levels + 1) * world.appended_bytes


def test_big_topics_get_files_of_their_own_and_small_ones_do_not() -> None:
    small = Kind(1, 5000, 100)
    big = [Kind(10_000 + n, 1, 1000) for n in range(4)]
    world = World()
    simulate(world, 600, lambda index: {small: 10, **dict.fromkeys(big, 5000)})
    own = [meta for meta, _ in world.files.values() if meta.owner]
    assert {meta.owner for meta in own} == {kind.first_id for kind in big}
    assert all(meta.size <= POLICY.own_bytes_max + FILE_AROUND_BYTES for meta in own)
    for kind in big:
        mine = [meta for meta in own if meta.owner == kind.first_id]
        total = sum(meta.size for meta in mine)
        assert total > 0.9 * 600 * 5000 * 1050, "most of a big topic's rows are in its own files"
        full = 2 * total / POLICY.own_bytes_max
        assert len(mine) <= full + 2 * POLICY.fan_in
    shared = sum(meta.size for meta, _ in world.files.values() if not meta.owner)
    assert len(world.files) - len(own) <= 2 * shared / POLICY.shared_bytes_max + POLICY.fan_in * 2
    assert world.disk_ratio_max <= 2.0


def test_a_topic_that_is_big_now_and_then_keeps_its_rows_in_order() -> None:
    small = Kind(1, 100, 100)
    bursty = Kind(500, 1, 500)
    lone = Kind(501, 1, 2000)
    world = World()

    def rows(index: int) -> dict[Kind, int]:
        burst = 40_000 if (index // 20) % 3 == 0 else 3
        return {small: 20 if (index // 30) % 2 else 0, bursty: burst, lone: (index % 50) * 20}

    simulate(world, 900, rows)
    total = sum(meta.size for meta, _ in world.files.values())
    assert len(world.files) <= 2 * total / POLICY.own_bytes_max + 100


def test_moving_floors_give_the_disk_back() -> None:
    # Half the topics keep two days, some keep six hours, a few keep everything.
    kept = Kind(1, 50, 100)
    days = Kind(1000, 5000, 137)
    hours = Kind(10_000, 4000, 137)
    world = World()

    def before(index: int) -> None:
        for kind, checkpoints in ((days, 90), (hours, 11)):
            world.floors[kind] = max(1, (index - checkpoints) * 32 + 1)

    simulate(world, 700, lambda index: {kept: 32, days: 32, hours: 32}, before)
    assert world.disk_ratio_max <= 2.0
    assert world.files_max <= 60
    # Once everything but `kept` has expired, only its rows are left, in few files.
    world.floors = {days: world.heads[days] + 1, hours: world.heads[hours] + 1}
    simulate(world, 30, lambda index: {kept: 32})
    assert len(world.files) <= 4 * POLICY.fan_in
    live = 730 * 32 * 50 * (100 + ROW_AROUND_BYTES)
    assert sum(meta.size for meta, _ in world.files.values()) <= 2 * live + 4 * MIB


def test_everything_expires() -> None:
    topics = Kind(1, 100, 100)
    world = World()
    simulate(world, 50, lambda index: {topics: 100})
    world.floors = {topics: world.heads[topics] + 1}
    for job in plan(world.stats(), POLICY):
        assert job.reason == "drop"
        world.run(job)
    assert world.files == {}
