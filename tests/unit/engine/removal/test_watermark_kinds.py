"""Topics of every kind wait for their archive: queues, routed, ephemeral, cold, without room."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import InvalidRequest, NotReady, Throttled
from headrace.core.runtime import Done
from headrace.engine.engine import Engine
from headrace.engine.removal import retention
from headrace.storage.files.merge_policy import MergePolicy
from headrace.storage.files.store import DirectoryStore
from headrace.testing.faultfs import Fault, FaultFilesystem, FaultPlan
from headrace.testing.simdisk import SimDisk
from tests.support.engines import Start
from tests.support.queue_calls import ack, add, claim, counts, make
from tests.support.router_calls import data, route, run, write
from tests.support.seqs import seqs_read

KEPT = {"retain_until_archived": True}
OWN = MergePolicy(own_rows_min=1, own_bytes_min=1, own_topics_max=1_000)


def told(engine: Engine, to_seq: int, name: str) -> None:
    assert engine.archives.told(name, engine.topic(name).epoch, to_seq).result()


# Queues


def test_jobs_beyond_the_watermark_stay_and_what_is_done_does_not(
    engine: Engine, kill: Start
) -> None:
    make(engine, cap_records=2, **KEPT)
    add(engine, 6)
    jobs = claim(engine, 3)
    assert counts(engine)[:2] == (3, 3)
    ack(engine, jobs[:1])
    assert seqs_read(engine, "jobs") == [2, 3, 4, 5, 6], "who is done with a job deletes it"
    told(engine, 2, "jobs")
    assert seqs_read(engine, "jobs") == [3, 4, 5, 6]
    told(engine, 6, "jobs")
    assert (seqs_read(engine, "jobs"), counts(engine)[:2]) == ([5, 6], (2, 0))
    assert seqs_read(kill(engine), "jobs") == [5, 6]


# Routers


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("sealed", [False, True])
def test_a_destination_waits_for_its_own_archive(start: Start, shards: int, sealed: bool) -> None:
    disk = SimDisk()
    engine = start(disk, wal_shards=shards)
    bounded = {**KEPT, "cap_records": 2, "retain_bytes_max": 3}
    engine.put_topic("from", {}).result()
    engine.put_topic("to", bounded).result()
    route(engine, "r", "from", "to")
    write(engine, "from", *"abcd")
    run(engine)
    assert data(engine, "to") == list("abcd")
    told(engine, 1, "to")
    assert data(engine, "to") == list("bcd")
    if sealed:
        engine.checkpoint().result()
    write(engine, "from", *"efg")
    run(engine)
    assert (data(engine, "to"), engine.topic("to").overtaken_seq) == (list("cdefg"), 2)
    told(engine, 5, "to")
    write(engine, "from", "h")
    run(engine)
    left = (data(engine, "to"), engine.topic("to").overtaken_seq, engine.topic("to").archived_seq)
    assert left == (list("fgh"), 2, 5)
    engine.abandon()
    again = start(disk.image(disk.position, "all", 0, power_loss=False), wal_shards=shards)
    info = again.topic("to")
    assert (data(again, "to"), info.overtaken_seq, info.archived_seq) == left


def test_a_source_waits_and_its_router_brings_everything(start: Start) -> None:
    """A router that is behind finds what its source held back; the source does not wait for it."""
    engine = start()
    engine.put_topic("from", {**KEPT, "cap_records": 1}).result()
    engine.put_topic("to", {"cap_records": 3, "discard": "reject"}).result()
    route(engine, "r", "from", "to")
    write(engine, "from", *"abcdef")
    run(engine)
    assert (data(engine, "to"), data(engine, "from")) == (list("abc"), list("abcdef"))
    told(engine, 4, "from")
    assert data(engine, "from") == list("ef"), "the fourth goes, though the router had not been"
    engine.delete("to", before_seq=4).result()
    engine.runtime.clock.advance(60_000)  # type: ignore[attr-defined]
    run(engine)
    page = engine.read("to", 3).result()
    assert page.tombstone is not None and page.tombstone.reason == "source_trim"
    assert data(engine, "to") == list("ef")


# Ephemeral


def test_an_ephemeral_topic_says_how_much_memory_may_wait(engine: Engine) -> None:
    refused = engine.put_topic("t", {**KEPT, "durability": "ephemeral"}).error
    assert isinstance(refused, InvalidRequest) and "retain_bytes_max" in refused.fix
    engine.put_topic("t", {"durability": "ephemeral", "retain_bytes_max": 0}).result()
    assert isinstance(
        engine.put_topic("t", {**KEPT, "durability": "ephemeral"}).error, InvalidRequest
    )


def test_an_ephemeral_topic_waits_in_memory(engine: Engine, kill: Start) -> None:
    config = {**KEPT, "durability": "ephemeral", "cap_records": 1, "retain_bytes_max": 20}
    engine.put_topic("t", config).result()
    for _ in range(3):
        engine.append("t", [b"x" * 10]).result()
    assert seqs_read(engine, "t") == [1, 2, 3]
    told(engine, 1, "t")
    for _ in range(2):
        engine.append("t", [b"x" * 10]).result()
    info = engine.topic("t")
    assert (seqs_read(engine, "t"), info.archived_seq, info.overtaken_seq) == ([3, 4, 5], 1, 2)
    assert engine.state.totals.ephemeral_bytes == engine.state.topic("t").ephemeral_bytes
    engine = kill(engine)
    page = engine.read("t").result()
    assert page.tombstone is not None and page.tombstone.reason == "crash"
    assert (page.records, engine.topic("t").archived_seq) == ([], 1)
    assert engine.topic("t").head_seq >= 5


# The cold tier


@pytest.mark.parametrize("most", [0, 100])
def test_what_is_held_back_in_the_cold_tier_goes_when_it_is_archived(
    start: Start, clock: ManualClock, most: int
) -> None:
    cold = SimDisk()
    disk = SimDisk()
    how = {"hot_retain_segments": 1, "policy": OWN}
    engine = start(disk, cold=DirectoryStore(cold), **how)
    config = {**KEPT, "cap_bytes": 50, "retain_bytes_max": most}
    engine.put_topic("t", config).result()
    for _ in range(5):
        for _ in range(3):
            engine.append("t", [b"x" * 10]).result()
        engine.checkpoint().result()
    assert 1 in {meta.tier for meta in engine.state.catalog.metas()}
    cold.cached = False
    assert engine.topic("t").count == 15, "all that waits is within the bound"
    for segment in engine.state.catalog.segments():
        engine.state.cache.drop(segment.meta.file_id, 100)
    engine.state.forget_blocks(engine.state.topic("t"))
    told(engine, 7, "t")
    run(engine)
    assert (seqs_read(engine, "t"), engine.topic("t").overtaken_seq) == (list(range(8, 16)), 0)
    engine.append("t", [b"x" * 10] * 7).result()
    run(engine)
    assert (seqs_read(engine, "t"), engine.topic("t").overtaken_seq) == (list(range(8, 23)), 0)
    engine.append("t", [b"x" * 10] * 2).result()
    run(engine)
    due = list(range(10, 25)) if most else list(range(8, 25))
    assert seqs_read(engine, "t") == due
    assert engine.topic("t").overtaken_seq == (9 if most else 0)


def test_no_look_at_what_is_held_back_makes_the_loop_wait_for_the_cold_tier(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a cap ends is far from the oldest rows then, and in a file that nothing has read."""
    monkeypatch.setattr(retention, "RUNS_PER_FETCH", 1)
    waited: list[str] = []
    lanes: list[str] = []

    def hook(operation: str, path: str) -> None:
        if not lanes:
            waited.append(path)

    cold, plan = SimDisk(), FaultPlan(Fault("pread", 1, "call", forever=True, hook=hook))
    store = DirectoryStore(FaultFilesystem(cold, plan))
    engine = start(cold=store, hot_retain_segments=1, policy=OWN)
    submit = engine.runtime.submit

    def submit_seen(lane: str, job: Callable[[], object], done: Done) -> None:
        def seen() -> object:
            lanes.append(lane)
            try:
                return job()
            finally:
                lanes.pop()

        submit(lane, seen, done)

    monkeypatch.setattr(engine.runtime, "submit", submit_seen)
    engine.put_topic("t", KEPT).result()
    for _ in range(6):
        engine.append("t", [b"x" * 10] * 4).result()
        engine.checkpoint().result()
    assert sum(meta.tier for meta in engine.state.catalog.metas()) >= 4
    told(engine, 2, "t")
    engine.state.forget_blocks(engine.state.topic("t"))
    for segment in engine.state.catalog.segments():
        engine.state.cache.drop(segment.meta.file_id, 100)
    cold.cached = False
    waited.clear()
    engine.put_topic("t", {**KEPT, "cap_bytes": 145, "retain_bytes_max": 45}).result()
    run(engine)
    assert plan.fired and waited == []
    assert (engine.topic("t").earliest_seq, engine.topic("t").overtaken_seq) == (7, 6)
    assert len(engine.state.fetching) == 0


# Without room


@pytest.mark.parametrize("reserve", [0, 64 << 10])
def test_a_watermark_is_refused_while_the_disk_is_full_and_counts_after_it(
    start: Start, reserve: int
) -> None:
    """L12, L20: the reserve is for deletes.  Its share of the disk is known from the start."""
    disk = SimDisk(space_bytes=1 << 20)
    engine = start(disk, disk_reserve_bytes=reserve)
    assert engine.state.reserve.bytes == reserve
    engine.put_topic("t", {**KEPT, "cap_records": 1}).result()
    refusals = 0
    for _ in range(1_000):
        appended = engine.append("t", [b"x" * 8_000])
        run(engine)
        # After the first refusal a checkpoint looks for room.
        refusals = refusals + 1 if appended.error is not None else 0
        if refusals == 2:
            break
    assert isinstance(appended.error, NotReady)
    held, epoch = seqs_read(engine, "t"), engine.topic("t").epoch
    refused = engine.archives.told("t", epoch, 3).error
    assert isinstance(refused, NotReady) and refused.detail["reason"] == "disk_full"
    assert (engine.topic("t").archived_seq, seqs_read(engine, "t")) == (0, held)
    disk.space_bytes += 1 << 20
    told(engine, 3, "t")
    assert seqs_read(engine, "t") == held[3:]


# A topic that nothing archives


def test_a_stopped_archive_is_bounded_by_the_quota(start: Start) -> None:
    engine = start(max_total_bytes=1_000)
    engine.put_topic("t", {**KEPT, "cap_records": 1}).result()
    for _ in range(10):
        engine.append("t", [b"x" * 100]).result()
    refused = engine.append("t", [b"x"]).error
    assert isinstance(refused, Throttled) and refused.detail["limit"] == "max_total_bytes"
    told(engine, 9, "t")
    engine.append("t", [b"x"]).result()
    assert seqs_read(engine, "t") == [10, 11]
