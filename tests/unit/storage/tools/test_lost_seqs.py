"""What is lost, against a plain set of seqs."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from headrace.engine.topics.config import make_config
from headrace.engine.topics.topic import Topic
from headrace.storage.block import Batch
from headrace.storage.block_encoding import encode_block
from headrace.storage.snapshot.state import TopicState
from headrace.storage.tools.lost_seqs import (
    LogHeads,
    Range,
    base_of,
    holes_of,
    live_ranges,
    lose,
    missing_seqs,
)
from headrace.storage.wal.frame import (
    ENTRY_TOPIC_CREATE,
    ENTRY_TOPIC_DELETE,
    TopicCreate,
    TopicDelete,
    encode_batch_header,
    encode_control,
)

HEAD = 40
seqs = st.integers(1, HEAD)
ranges = st.lists(
    st.tuples(seqs, st.integers(0, 8)).map(lambda r: (r[0], min(HEAD, r[0] + r[1]))), max_size=5
)


def topic(floor: int = 0, holes: Iterable[int] = ()) -> TopicState:
    bitmap = BitMap64(sorted(seq for seq in holes if seq > floor))
    return TopicState(
        id=1, name="t", epoch=1, config=b"{}", head=HEAD, sealed_to=HEAD, last_ts=0, created_ms=0,
        evict_floor_cap=0, evict_floor_ttl=0, evict_floor_crash=0, trim_floor=0,
        delete_floor=floor, reserved_to=HEAD, bytes=0,
        holes=bitmap.serialize() if bitmap else b"", gaps=[], producers={}, state=b"",
    )  # fmt: skip


def live(state: TopicState) -> set[int]:
    return set(range(base_of(state) + 1, HEAD + 1)) - set(holes_of(state))


def flat(found: list[Range]) -> list[int]:
    return [seq for first, last in found for seq in range(first, last + 1)]


@given(st.integers(0, HEAD), st.sets(seqs), ranges)
def test_missing_seqs_are_the_live_ones_that_nothing_covers(
    floor: int, holes: set[int], covered: list[Range]
) -> None:
    state = topic(floor, holes)
    assert flat(missing_seqs(state, covered)) == sorted(live(state) - set(flat(covered)))
    assert flat(list(live_ranges(state, 1, HEAD))) == sorted(live(state))


@given(st.integers(0, HEAD), st.sets(seqs), ranges)
def test_a_reader_is_told_of_every_lost_seq(
    floor: int, holes: set[int], covered: list[Range]
) -> None:
    before = topic(floor, holes)
    lost = missing_seqs(before, covered)
    after = lose(before, lost, 0)
    assert live(after) == live(before) - set(flat(lost))
    announced = flat(after.gaps)
    assert set(flat(lost)) <= set(announced), "every lost seq is announced"
    assert not set(announced) & live(after), "no live record hides behind a gap"
    assert after.gaps == sorted(after.gaps) and len(announced) == len(set(announced))
    # What the engine makes of it: from any cursor, no lost seq is passed over in silence.
    engine = Topic(1, "t", 1, make_config(None))
    engine.head = HEAD
    engine.delete_floor = engine.base = base_of(after)
    engine.holes = holes_of(after) or None
    engine.gaps = after.gaps
    told: set[int] = set()
    for cursor in range(HEAD):
        gone = engine.lost_after(cursor)
        if gone is not None:
            told.update(range(gone.first, gone.last + 1))
    assert set(flat(lost)) <= told


def test_ranges_with_only_deleted_seqs_between_are_one_gap() -> None:
    state = lose(topic(0, {13, 14}), [(11, 12), (15, 16)], 7)
    assert state.gaps == [(11, 16)] and state.bytes == 7
    assert lose(topic(), [(1, 4)], 0).delete_floor == 4, "the dead prefix swallows it"


# The log


def create(topic_id: int) -> bytes:
    entry = TopicCreate(f"t{topic_id}", topic_id, b"{}", 0, 0)
    return encode_control(ENTRY_TOPIC_CREATE, topic_id, entry)


def append(topic_id: int, first: int, count: int = 1) -> bytes:
    return encode_block(Batch([b"x"] * count), topic_id, first, 1, 1).raw


def stretch(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return encode_batch_header(1, 4096, 0, 0, body, len(entries)) + body


def heads(*applied: bytes) -> LogHeads:
    found = LogHeads(None)
    for entry in applied:
        found.apply(entry[0], entry)
    return found


def test_a_readable_stretch_tells_exactly_what_it_held() -> None:
    found = heads(create(1), create(2), append(1, 1, 3))
    stored = stretch(append(1, 4, 2), append(2, 1))
    found.damaged(len(stored), stored, 1)
    (lost,) = found.finish()
    assert [(one.topic, one.first, one.last) for one in lost] == [("t1", 4, 5), ("t2", 1, 1)]


def test_later_records_bound_a_loss() -> None:
    found = heads(create(1), create(2), append(1, 1), append(2, 1))
    found.damaged(400, None, -1)
    found.apply(1, append(1, 4))
    found.apply(1, append(2, 2))
    (lost,) = found.finish()
    assert [(one.topic, one.first, one.last, one.certain) for one in lost] == [("t1", 2, 3, True)]


def test_without_later_records_an_upper_bound_counts() -> None:
    found = heads(create(1), append(1, 1))
    found.damaged(400, b"\xff" * 400, 1)
    (lost,) = found.finish()
    assert [(one.first, one.last, one.certain) for one in lost] == [(2, 101, False)]


def test_two_stretches_add_up() -> None:
    found = heads(create(1), append(1, 1))
    found.damaged(400, None, -1)
    found.damaged(800, None, -1)
    first, second = found.finish()
    assert [(one.first, one.last) for one in first] == [(2, 301)] and second == []


def test_seqs_that_do_not_follow_are_not_believed() -> None:
    found = heads(create(1), append(1, 1))
    stored = stretch(append(1, 9))
    assert found.guess(stored, 1) is None
    assert found.guess(stretch(append(1, 2)), 2) is None, "a batch is missing altogether"
    assert found.guess(bytes(400), 1) is None, "zeros are no batch"
    assert found.guess(stretch(append(7, 1)), 1) is None, "no such topic"
    assert found.guess(stretch(append(1, 2)), 1) is not None


def test_a_deleted_topic_is_not_missed() -> None:
    found = heads(create(1), append(1, 1))
    found.damaged(400, None, -1)
    found.apply(ENTRY_TOPIC_DELETE, encode_control(ENTRY_TOPIC_DELETE, 1, TopicDelete(1)))
    found.apply(1, append(1, 9))
    assert found.finish() == [[]] and found.recovered == [[]]
