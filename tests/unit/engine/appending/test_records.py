"""Rules A: seqs, timestamps, order, visibility, and payloads that come back as they were sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.appending.payloads import make_batch
from headrace.engine.engine import Engine
from headrace.storage.block import KIND_BYTES, KIND_COMMAND, KIND_JSON, KIND_MIXED, Batch
from headrace.testing.simdisk import SimDisk
from tests.support.engine_reads import all_records
from tests.support.engines import Start
from tests.support.seqs import seqs_read

SMALL = Settings(wal_file_bytes=64 << 10, wal_batch_bytes_max=16 << 10)
START_MS = 1_700_000_000_000


# Seqs


def test_a1_first_seq_is_one_and_a_batch_is_numbered_in_order(engine: Engine) -> None:
    first = engine.append("t", [{"n": 1}]).result()
    assert (first.first_seq, first.last_seq, first.head_seq, first.count) == (1, 1, 1, 1)
    batch = engine.append("t", [{"n": 2}, {"n": 3}, {"n": 4}]).result()
    assert (batch.first_seq, batch.last_seq, batch.head_seq, batch.count) == (2, 4, 4, 3)
    assert [(r.seq, r.data) for r in all_records(engine)] == [
        (n, b'{"n":%d}' % n) for n in (1, 2, 3, 4)
    ]


def test_a1_topics_number_their_records_apart(engine: Engine) -> None:
    engine.append("a", [1, 2]).result()
    assert engine.append("b", [1]).result().first_seq == 1
    assert engine.append("a", [3]).result().first_seq == 3


@given(st.lists(st.integers(1, 20), min_size=1, max_size=20))
def test_a2_assignment_never_skips(sizes: list[int]) -> None:
    engine = Engine(SimDisk(), StepRuntime(ManualClock()), SMALL, random=SeededRandom(1))
    engine.recover()
    total = 0
    for size in sizes:
        appended = engine.append("t", [0] * size).result()
        assert appended.first_seq == total + 1
        total += size
        assert appended.head_seq == engine.topic("t").head_seq == total
    engine.abandon()


def test_a2_many_appends_in_one_turn_get_consecutive_seqs(engine: Engine) -> None:
    tickets = [engine.append("t", [n, n]) for n in range(50)]
    engine.runtime.run()  # type: ignore[attr-defined]
    assert [t.result().first_seq for t in tickets] == list(range(1, 101, 2))
    assert [r.data for r in all_records(engine)] == [b"%d" % (n // 2) for n in range(100)]


def test_a3_a_refused_append_consumes_no_seq(engine: Engine) -> None:
    engine.append("t", [1]).result()
    assert engine.append("t", []).error is not None
    assert engine.append("t", [b"x" * (1 << 21)]).error is not None
    assert engine.append("t", [1], expected_head_seq=9).error is not None
    assert engine.append("t", [2]).result().first_seq == 2


def test_a4_head_and_earliest_never_decrease(
    engine: Engine, clock: ManualClock, kill: Start, power_loss: Start, restart: Start
) -> None:
    engine.put_topic("t", {"cap_records": 5, "ttl_ms": 1_000}).result()
    head = earliest = 0
    for turn in range(24):
        engine.append("t", [turn] * (turn % 4 + 1)).result()
        if turn % 3 == 0:
            engine.delete("t", before_seq=engine.topic("t").earliest_seq + 1).result()
        if turn % 5 == 0:
            clock.advance(1_001)
        if turn % 6 == 5:
            engine = (kill, power_loss, restart, kill)[turn // 6](engine)
        state = engine.topic("t")
        assert state.head_seq >= head and state.earliest_seq >= earliest
        head, earliest = state.head_seq, state.earliest_seq
    assert head >= sum(turn % 4 + 1 for turn in range(24))


# Timestamps


def test_a5_all_records_of_a_batch_share_one_ts_of_engine_time(
    engine: Engine, clock: ManualClock
) -> None:
    assert engine.append("t", [1, 2]).result().ts == START_MS
    clock.advance(7)
    assert engine.append("t", [3]).result().ts == START_MS + 7
    assert [r.ts for r in all_records(engine)] == [START_MS, START_MS, START_MS + 7]


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000, -315_360_000_000, 315_360_000_000])
def test_a5_a_wall_clock_jump_changes_no_timestamp(
    engine: Engine, clock: ManualClock, jump_ms: int
) -> None:
    engine.append("t", [1]).result()
    clock.jump(jump_ms)
    clock.advance(3)
    assert engine.append("t", [2]).result().ts == START_MS + 3


def test_a5_ts_does_not_go_back_when_the_clock_does(
    engine: Engine, kill: Start, restart: Start
) -> None:
    engine.append("t", [1]).result()
    engine = kill(engine, clock=ManualClock(START_MS - 86_400_000))
    assert engine.append("t", [2]).result().ts == START_MS
    engine = restart(engine, clock=ManualClock(START_MS - 2 * 86_400_000))
    assert engine.append("t", [3]).result().ts == START_MS
    assert [r.ts for r in all_records(engine)] == [START_MS] * 3


def test_a5_client_timestamps_come_back_and_later_ones_are_not_below_them(
    engine: Engine, again: Start
) -> None:
    ahead = START_MS + 60_000
    engine.append("t", Batch([b"1", b"2"], timestamps=[START_MS + 5, ahead])).result()
    engine = again(engine)
    engine.append("t", [3]).result()
    assert [r.ts for r in all_records(engine)] == [START_MS + 5, ahead, ahead]


# Immutability and visibility


def test_a6_a_record_never_changes(engine: Engine, again: Start) -> None:
    engine.append(
        "t",
        Batch(
            [b'{"a":1}', b"[]"],
            tags=["x", None],
            nodes=["n", None],
            metas=[b'{"k":2}', None],
            headers=[[(b"name", b"\xff"), (b"name", b"")], None],
        ),
    ).result()
    before = all_records(engine)
    assert before[0].tag == "x" and before[0].node == "n" and before[0].meta == b'{"k":2}'
    assert before[0].headers is not None
    assert list(before[0].headers) == [(b"name", b"\xff"), (b"name", b"")]
    assert (before[1].tag, before[1].node, before[1].meta, before[1].headers) == (None,) * 4
    engine.append("t", [1] * 10).result()
    engine.delete("t", match="nothing").result()
    engine = again(engine)
    assert all_records(engine)[:2] == before


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a7_nothing_staged_is_visible(engine: Engine, durability: str) -> None:
    engine.put_topic("t", {"durability": durability}).result()
    ticket = engine.append("t", [1])
    assert (engine.topic("t").head_seq == 1) == ticket.done
    while not ticket.done:
        state = engine.topic("t")
        assert (state.head_seq, state.count, state.bytes, seqs_read(engine)) == (0, 0, 0, [])
        assert engine.runtime.step()  # type: ignore[attr-defined]
    assert engine.topic("t").head_seq == 1


def test_a7_an_fsync_record_is_visible_only_after_its_sync(engine: Engine) -> None:
    engine.put_topic("t", {"durability": "fsync"}).result()
    disk = engine.state.fs
    assert isinstance(disk, SimDisk)
    ticket = engine.append("t", [b"needle"])
    while not ticket.done:
        engine.runtime.step()  # type: ignore[attr-defined]
    survivors = disk.image(disk.position, "none", 0).contents()
    assert any(b"needle" in data for path, data in survivors.items() if path.startswith("wal/"))


def test_a8_acknowledgements_come_in_the_order_of_the_log(engine: Engine) -> None:
    engine.put_topic("t", {"durability": "fsync"}).result()
    order: list[int] = []
    for _ in range(40):
        ticket = engine.append("t", [0])
        ticket.when_done(lambda done: order.append(done.result().first_seq))
        engine.runtime.step()  # type: ignore[attr-defined]
    engine.runtime.run()  # type: ignore[attr-defined]
    assert order == list(range(1, 41))


def test_a8_a_disk_append_is_not_acknowledged_before_an_fsync_one_of_its_topic(
    engine: Engine,
) -> None:
    engine.append("t", [1], config={"durability": "fsync"}).result()
    order: list[str] = []
    engine.append("t", [2]).when_done(lambda _: order.append("fsync"))
    engine.put_topic("t", {"durability": "disk"}).when_done(lambda _: order.append("config"))
    engine.append("t", [3]).when_done(lambda _: order.append("disk"))
    engine.runtime.run()  # type: ignore[attr-defined]
    assert order == ["fsync", "config", "disk"]
    assert seqs_read(engine) == [1, 2, 3]


def test_a9_sixteen_writers_lose_nothing_across_a_restart(engine: Engine, again: Start) -> None:
    engine.put_topic("t", {"durability": "fsync"}).result()
    tickets = {}
    for turn in range(10):
        for writer in range(16):
            tickets[writer, turn] = engine.append("t", [{"w": writer, "n": turn}])
        engine.runtime.step()  # type: ignore[attr-defined]
    engine.runtime.run()  # type: ignore[attr-defined]
    given = {t.result().first_seq: b'{"w":%d,"n":%d}' % key for key, t in tickets.items()}
    engine = again(engine)
    assert {r.seq: r.data for r in all_records(engine)} == given
    assert sorted(given) == list(range(1, 161))


# Payloads

ODD_JSON = [
    b"1e400",
    b"-0.0",
    b"123456789012345678901234567890",
    b"1.0000000000000000000000000000001",
    b'{"b":1,"a":2,"b":3}',
    b' {"a" : [1 , 2 ] }\n',
    b'"\\u0041\\/\\ud83d\\ude00"',
    '"\u00e9\u2028\U0001f600"'.encode(),
    b"null",
    b'""',
    b"[]",
]


def test_data_comes_back_exactly_as_it_was_sent(engine: Engine, again: Start) -> None:
    engine.append("t", Batch(ODD_JSON)).result()
    for payload in ODD_JSON:
        engine.append("t", Batch([payload])).result()
    assert [r.data for r in all_records(engine)] == ODD_JSON * 2
    engine = again(engine)
    assert [r.data for r in all_records(engine)] == ODD_JSON * 2
    assert {r.kind for r in all_records(engine)} == {KIND_JSON}


def test_bytes_that_are_not_text_come_back_as_bytes(engine: Engine, again: Start) -> None:
    payloads = [b"", b"\0", b"\xff\xfe", bytes(range(256)) * 300]
    engine.append("t", payloads).result()
    engine = again(engine)
    records = all_records(engine)
    assert [r.data for r in records] == payloads
    assert {r.kind for r in records} == {KIND_BYTES}


def test_kinds_may_differ_within_an_append(engine: Engine, again: Start) -> None:
    kinds = bytes([KIND_COMMAND, KIND_JSON, KIND_BYTES])
    engine.append("t", Batch([b"fence", b"1", b"\xff"], KIND_MIXED, kinds=kinds)).result()
    engine = again(engine)
    assert [r.kind for r in all_records(engine)] == list(kinds)


def test_append_boundaries_are_kept(engine: Engine, again: Start) -> None:
    engine.append("t", [1, 2]).result()
    engine.append("t", [3]).result()
    engine.append("t", [4, 5, 6]).result()
    engine = again(engine)
    assert [r.append_first_seq for r in all_records(engine)] == [1, 1, 3, 4, 4, 4]


def test_values_are_encoded_as_compact_json() -> None:
    batch = make_batch([{"a": [1, 2.5, None, True]}, "é", 7])
    assert (batch.data, batch.kind) == (
        [b'{"a":[1,2.5,null,true]}', '"é"'.encode(), b"7"],
        KIND_JSON,
    )


def test_state_beside_records_is_committed_with_them(engine: Engine, again: Start) -> None:
    engine.append("t", [1], state=b"fencing token 1").result()
    engine.append("t", [2]).result()
    engine.append("t", [3], state=b"token 2").result()
    engine = again(engine)
    assert engine.state.topic("t").state == b"token 2"
