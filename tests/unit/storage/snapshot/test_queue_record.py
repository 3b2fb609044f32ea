"""What a snapshot keeps of a queue: the same bytes in every version, and back."""

from __future__ import annotations

import msgspec
import pytest

from headrace.storage.snapshot.queue_record import (
    DelayState,
    HeldState,
    MoveState,
    QueueRecord,
    decode_queue,
    encode_queue,
)

FULL = QueueRecord(
    9,
    2,
    3,
    [(1, b"\x01"), (4, b"\x02")],
    [HeldState((1 << 64) - 1, "w", 1_700_000_030_000, 30_000, True, [7, 9])],
    [DelayState(1_700_000_005_000, 5_000, [8])],
    [MoveState(3, 4, "dead", [5])],
)


@pytest.mark.parametrize("record", [FULL, QueueRecord(), QueueRecord(1, 2, 3)])
def test_a_record_comes_back(record: QueueRecord) -> None:
    assert decode_queue(encode_queue(record)) == record


def test_the_order_of_the_fields_never_changes() -> None:
    plain = msgspec.msgpack.decode(encode_queue(FULL))
    assert plain == [
        9,
        2,
        3,
        [[1, b"\x01"], [4, b"\x02"]],
        [[(1 << 64) - 1, "w", 1_700_000_030_000, 30_000, True, [7, 9]]],
        [[1_700_000_005_000, 5_000, [8]]],
        [[3, 4, "dead", [5]]],
    ]


def test_a_record_of_an_older_writer_lacks_the_newer_fields() -> None:
    assert decode_queue(msgspec.msgpack.encode([9, 2])) == QueueRecord(9, 2)
