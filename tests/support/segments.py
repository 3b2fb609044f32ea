"""Random records, and segments sealed from them."""

from __future__ import annotations

from random import Random

from headrace.storage.block import Batch
from headrace.storage.block_encoding import encode_block
from headrace.storage.fs import RealFilesystem
from headrace.storage.segment.format import SegmentMeta
from headrace.storage.segment.from_blocks import Piece, optional_columns
from headrace.storage.segment.writer import SegmentWriter, batch_of_blocks

TAGS = [None, "chat-4", "chat-42", "chat-42:x", "chat-420:x", "é", ""]


def random_batch(random: Random, ts: int, rich: bool) -> Batch:
    count = random.choice([1, 1, 3, 40])
    size = random.choice([0, 5, 300])
    data = [random.randbytes(random.randint(0, size)) for _ in range(count)]
    if not rich or random.random() < 0.3:
        return Batch(data)
    headers = [
        [(b"n%d" % i, random.randbytes(3))] * (i % 3) if i % 4 else None for i in range(count)
    ]
    return Batch(
        data,
        kind=255,
        tags=[random.choice(TAGS) for _ in range(count)],
        nodes=random.choice([None, "node", [random.choice([None, "a"]) for _ in range(count)]]),
        metas=[random.choice([None, b"", b"meta"]) for _ in range(count)],
        headers=headers,
        kinds=bytes(random.choice([0, 1, 2]) for _ in range(count)),
        timestamps=sorted(random.randint(ts, ts + 5) for _ in range(count)),
    )


def random_pieces(random: Random, topic_id: int, gaps: bool, rich: bool) -> list[Piece]:
    pieces: list[Piece] = []
    seq, ts = random.randint(1, 1000), 1_000
    for _ in range(random.randint(1, 30)):
        block = encode_block(random_batch(random, ts, rich), topic_id, seq, ts, ts)
        start = random.randrange(block.count) if gaps else 0
        pieces.append((topic_id, block, start, block.count))
        seq += block.count
        ts = block.ts + random.choice([0, 1, 50])
    return pieces


def seal(
    fs: RealFilesystem, pieces: list[Piece], group_bytes: int, file_id: int = 1
) -> SegmentMeta:
    names = optional_columns([piece[1] for piece in pieces])
    writer = SegmentWriter(fs, file_id, 0, 0, 5, columns=names, group_bytes=group_bytes)
    writer.add(batch_of_blocks(pieces))
    return writer.finish()
