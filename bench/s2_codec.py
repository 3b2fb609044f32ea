"""What the protobuf messages of S2 cost by hand and with the protobuf library, in CPU.

`python -m bench.s2_codec` prints a table, in microseconds of CPU a message; the best of its rounds.
Both sides start and end with what the dialect has: bytes, and records as columns.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from bench.measure import cpu_rounds
from headrace.wire.s2 import protobuf
from headrace.wire.s2.protobuf_input import decode_append_input
from headrace.wire.s2.records import AppendAck, AppendInput, Position, ReadBatch
from tests.support import s2_messages

COUNTS = (1, 10, 100)
SIZES = (128, 1024)
ROUNDS = 15
RECORDS = 20_000  # in a round, in messages of each size
NOW_MS = 1_700_000_000_000


def input_bytes(count: int, size: int, headers: bool, stamps: bool) -> bytes:
    """An AppendInput as a client sends it."""
    message = s2_messages.AppendInput(match_seq_num=7)
    for row in range(count):
        record = message.records.add(body=bytes([row % 256]) * size)
        if stamps:
            record.timestamp = NOW_MS + row // 50
        if headers:
            record.headers.add(name=b"trace", value=b"0123456789abcdef")
    written: bytes = message.SerializeToString()
    return written


def library_decode(data: bytes) -> AppendInput:
    """The same as `decode_append_input` of ours, with the library."""
    message = s2_messages.AppendInput.FromString(data)
    records = message.records
    return AppendInput(
        [record.body for record in records],
        [[(h.name, h.value) for h in record.headers] for record in records],
        [record.timestamp if record.HasField("timestamp") else None for record in records],
        message.match_seq_num if message.HasField("match_seq_num") else None,
        message.fencing_token if message.HasField("fencing_token") else None,
    )


def library_encode(batch: ReadBatch) -> bytes:
    """The same as `protobuf.encode_read_batch`, with the library."""
    message = s2_messages.ReadBatch()
    add = message.records.add
    headers = batch.headers
    for row, (seq_num, stamp, body) in enumerate(
        zip(batch.seq_nums, batch.timestamps, batch.bodies, strict=True)
    ):
        record = add(seq_num=seq_num, timestamp=stamp, body=body)
        for name, value in (headers[row] if headers is not None else None) or ():
            record.headers.add(name=name, value=value)
    written: bytes = message.SerializeToString()
    return written


def library_ack(ack: AppendAck) -> bytes:
    """The same as `protobuf.encode_append_ack`, with the library."""
    message = s2_messages.AppendAck()
    for part, (seq_num, stamp) in zip((message.start, message.end, message.tail), ack, strict=True):
        part.seq_num = seq_num
        part.timestamp = stamp
    written: bytes = message.SerializeToString()
    return written


def cost(work: Callable[[], object], messages: int) -> float:
    def turn() -> None:
        for _ in range(messages):
            work()

    return min(cpu_rounds(ROUNDS, messages, turn))


def row(name: str, by_hand: Callable[[], object], library: Callable[[], object], n: int) -> None:
    ours, theirs = cost(by_hand, n), cost(library, n)
    print(f"| {name} | {ours:.1f} | {theirs:.1f} | {theirs / ours:.1f} |")


def main() -> int:
    """Print the table."""
    print("| message | by hand | protobuf (upb) | ratio |\n|---|---|---|---|")
    for plain in (True, False):
        suffix = "" if plain else ", timestamp, header"
        for size in SIZES:
            for count in COUNTS:
                data = input_bytes(count, size, headers=not plain, stamps=not plain)
                given = decode_append_input(data)
                stamps = [NOW_MS + n // 50 for n in range(count)]
                seqs = range(1_000_000, 1_000_000 + count)
                batch = ReadBatch(seqs, stamps, given.bodies, given.headers)
                assert library_encode(batch) == protobuf.encode_read_batch(batch)
                what, n = f"{count} of {size} B{suffix}", RECORDS // count
                row(
                    f"read AppendInput, {what}",
                    lambda data=data: decode_append_input(data),  # type: ignore[misc]
                    lambda data=data: library_decode(data),  # type: ignore[misc]
                    n,
                )
                row(
                    f"write ReadBatch, {what}",
                    lambda batch=batch: protobuf.encode_read_batch(batch),  # type: ignore[misc]
                    lambda batch=batch: library_encode(batch),  # type: ignore[misc]
                    n,
                )
    ack = AppendAck(
        Position(1_000_000, NOW_MS), Position(1_000_100, NOW_MS), Position(1_000_100, NOW_MS)
    )
    assert library_ack(ack) == protobuf.encode_append_ack(ack)
    row("write AppendAck", lambda: protobuf.encode_append_ack(ack), lambda: library_ack(ack), 20000)
    return 0


if __name__ == "__main__":
    sys.exit(main())
