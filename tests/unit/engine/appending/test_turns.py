"""Appends that come together: each is admitted, numbered and answered as it would be alone."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from random import Random

import msgspec
import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import HeadraceError
from headrace.engine.appending.admission import PLAIN, Append, Records
from headrace.engine.appending.pending_append import Appended, PendingAppend
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.engine import Engine
from headrace.engine.topics.config import make_config
from headrace.storage.block import Batch
from headrace.testing.faultfs import Fault, FaultFilesystem, FaultPlan
from headrace.testing.simdisk import SimDisk
from tests.support.engines import Start, open_engines

TURNS = 25
CONFIGS = {
    "disk": {"durability": "disk"},
    "fsync": {"durability": "fsync"},
    "memory": {"durability": "memory"},
    "ephemeral": {"durability": "ephemeral"},
    "full": {"durability": "disk", "cap_records": 9, "discard": "reject"},
    "capped": {"durability": "fsync", "cap_records": 4},
    "brief": {"durability": "disk", "ttl_ms": 40},
}
Asked = tuple[str, Records, Append]


def drawn(dice: Random, *, steady: bool) -> Asked:
    """An append of some kind, to one of a few topics, that may well be refused.

    `steady`: none that lets the log end a batch, or time move a floor, in the midst of a turn.
    """
    names = [*CONFIGS, "new-a", "new-b", "bad\nname"]
    if steady:
        names.remove("brief")
    name = names[dice.randrange(len(names))]
    records: Records = msgspec.Raw(b'{"n":%d}' % dice.randrange(1_000))
    if dice.randrange(3) == 0:
        records = Batch([b"%d" % n for n in range(dice.randrange(4))], tags=None)
    if dice.randrange(12) == 0 and not steady:
        records = msgspec.Raw(b'"' + b"x" * 70_000 + b'"')
    kind = dice.randrange(8)
    if kind == 0:
        return name, records, Append(idempotency_key=f"key-{dice.randrange(6)}")
    if kind == 1:
        return name, records, Append(producer=ProducerClaim("p", 0, dice.randrange(5)))
    if kind == 2:
        return name, records, Append(expected_head_seq=dice.randrange(6))
    if kind == 3:
        return (
            name,
            records,
            Append(make_config({"durability": "fsync"}), create=bool(dice.randrange(2))),
        )
    return name, records, PLAIN


def said(pending: PendingAppend) -> object:
    if pending.error is not None:
        error = pending.error
        assert isinstance(error, HeadraceError), error
        return error.code, error.detail
    answer = pending.result()
    return msgspec.structs.replace(answer, write_ns=0, sync_ns=0, throttle_ns=0)


def run_turns(
    engine: Engine, clock: ManualClock, seed: int, *, together: bool, steady: bool
) -> list[object]:
    """Random appends, turn by turn; what each was told."""
    dice = Random(seed)
    heard: list[PendingAppend] = []
    told: list[object] = []
    for name, config in CONFIGS.items():
        engine.put_topic(name, config).result()
    for _ in range(TURNS):
        drawn_now = [drawn(dice, steady=steady) for _ in range(1 + dice.randrange(12))]
        asked = [PendingAppend(engine.runtime, *one) for one in drawn_now]
        for some in [asked] if together else [[one] for one in asked]:
            engine.append_all(some, heard.extend, ends_turn=some[-1] is asked[-1])
        engine.runtime.run()
        clock.advance(dice.randrange(30))
        engine.runtime.run()
        assert all(one.done for one in asked)
        assert sorted(map(id, heard)) == sorted(map(id, asked)), "each is heard of once"
        heard.clear()
        told += map(said, asked)
    return told


def contents(disk: SimDisk) -> dict[str, bytes]:
    return {path: data for path, data in disk.contents().items() if path.startswith("wal/")}


@pytest.mark.parametrize("steady", [True, False])
@pytest.mark.parametrize("seed", range(1, 5))
def test_a_turn_is_the_same_as_its_appends_one_by_one(seed: int, steady: bool) -> None:
    """Answers, state and, where the log goes through it in one batch, every byte of the log."""
    found = []
    for together in (True, False):
        clock, disk = ManualClock(), SimDisk()
        with open_engines(clock) as start:
            engine = start(disk)
            told = run_turns(engine, clock, seed, together=together, steady=steady)
            state = [engine.topic(info.topic) for info in engine.topics()]
            found.append((told, state, engine.state.totals.bytes, contents(disk)))
    (told, *state, log), (told_alone, *state_alone, log_alone) = found
    assert told == told_alone
    assert state == state_alone
    assert not steady or log == log_alone
    assert any(isinstance(one, Appended) for one in told)
    refused = {one[0] for one in told if isinstance(one, tuple)}
    assert len(refused) >= 3, refused


def ask(engine: Engine, names: Sequence[str]) -> list[PendingAppend]:
    """Append a record to each topic, in one turn that ends with them."""
    asked = [PendingAppend(engine.runtime, name, msgspec.Raw(b"1")) for name in names]
    engine.append_all(asked, lambda _done: None, ends_turn=True)
    return asked


def test_a_turn_is_written_at_once_and_synced_for_those_who_wait(start: Start) -> None:
    disk = SimDisk()
    engine = start(disk)
    for name in ("disk", "fsync"):
        engine.put_topic(name, CONFIGS[name]).result()
    batches = engine.state.shards[0].batches_total
    asked = ask(engine, ["disk", "fsync", "disk", "fsync"])
    assert [one.done for one in asked] == [True, False, True, False]
    assert engine.state.shards[0].batches_total == batches + 1
    engine.runtime.run()
    assert [one.result().last_seq for one in asked] == [1, 1, 2, 2]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failed_write_gives_back_every_seq_of_the_turn(number: int) -> None:
    clock, armed = ManualClock(), False

    def strike(_operation: str, path: str) -> None:
        nonlocal armed
        if armed and path.startswith("wal/"):
            armed = False
            raise OSError(number, "as planned", path)

    plan = FaultPlan(Fault("pwritev", 1, "call", forever=True, hook=strike))
    with open_engines(clock) as start:
        engine = start(FaultFilesystem(SimDisk(), plan))
        for name in ("disk", "fsync"):
            engine.put_topic(name, CONFIGS[name]).result()
        engine.append("disk", [0]).result()
        clock.advance(100)
        engine.runtime.run()
        armed = True
        asked = ask(engine, ["disk", "fsync", "disk"])
        assert not any(one.done for one in asked), "all seqs are back before anybody hears"
        engine.runtime.run()
        codes = {one.error.code for one in asked if isinstance(one.error, HeadraceError)}
        assert codes == ({"not_ready"} if number == errno.ENOSPC else {"internal"})
        assert (engine.topic("disk").head_seq, engine.topic("fsync").head_seq) == (1, 0)
        topics = engine.state.by_name
        assert topics["disk"].staged == 1 and topics["fsync"].staged == 0
        assert engine.state.totals.staged_bytes == 0
        if number == errno.ENOSPC:
            clock.advance(10_000)
            assert engine.append("disk", ["again"]).result().last_seq == 2


def test_one_callers_mistake_is_not_the_others(engine: Engine) -> None:
    engine.put_topic("t", {}).result()
    good = PendingAppend(engine.runtime, "t", msgspec.Raw(b"1"))
    bad = PendingAppend(engine.runtime, "t", object())  # type: ignore[arg-type]
    late = PendingAppend(engine.runtime, "t", msgspec.Raw(b"2"))
    good.when_done(lambda _: 1 // 0)
    engine.append_all([good, bad, late], lambda _done: None)
    engine.runtime.run()
    assert bad.error is not None
    assert (good.result().last_seq, late.result().last_seq) == (1, 2)


def test_the_totals_are_those_of_the_topics(start: Start) -> None:
    """Also where a cap takes records in the midst of a turn."""
    engine = start(SimDisk())
    for name in ("disk", "capped", "ephemeral"):
        engine.put_topic(name, {**CONFIGS[name], "durability": "disk"}).result()
    for _ in range(5):
        ask(engine, ["disk", "capped", "disk", "capped", "capped", "ephemeral", "disk"])
        engine.runtime.run()
    topics, totals = engine.state.by_name.values(), engine.state.totals
    assert totals.records == sum(topic.count for topic in topics) == 15 + 4 + 5
    assert totals.bytes == sum(topic.bytes for topic in topics)
    assert totals.unsealed_bytes == sum(topic.unsealed_bytes for topic in topics)
    assert totals.staged_bytes == 0
