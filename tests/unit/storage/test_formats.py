"""The worked example of docs/formats/wal.md, byte for byte, and what a scan makes of it."""

from __future__ import annotations

import re

from headrace.storage.block import Batch, Record, decode_block
from headrace.storage.block_encoding import encode_block
from headrace.storage.wal.frame import (
    ENTRY_QUEUE,
    ENTRY_TOPIC_CREATE,
    EVENT_CLAIM,
    FORMAT_VERSION,
    PAGE_BYTES,
    FileHeader,
    Held,
    QueueEvent,
    TopicCreate,
    decode_control,
    encode_batch_header,
    encode_control,
    encode_file_header,
)
from headrace.storage.wal.mark import MARK_FILE_BYTES, Mark, decode_mark, encode_mark
from headrace.storage.wal.scan_shards import scan_all
from headrace.testing.simdisk import SimDisk
from tests.support.checkout import ROOT

PAGE = ROOT / "docs" / "formats" / "wal.md"
SALT = 0x5EED5A17
NOW_MS = 1_700_000_000_000
HEX_LINE = re.compile(r"([0-9a-f]{8})  ((?:[0-9a-f]{2} ?)+) *(?: .*)?")


def example_file() -> bytes:
    """A first log file: one batch that creates a topic and appends to it, then a closing one."""
    header = FileHeader(FORMAT_VERSION, SALT, 1, NOW_MS, 0, bytes(range(16)), PAGE_BYTES)
    create = TopicCreate("orders", 1, b"{}", 258, NOW_MS)
    batch = Batch([b'{"id":1}', b'{"id":2}'], tags=["a", None], nodes="n")
    entries = [
        encode_control(ENTRY_TOPIC_CREATE, 1, create),
        encode_block(batch, 1, 1, NOW_MS, NOW_MS).raw,
    ]
    body = b"".join(entries)
    first = encode_batch_header(SALT, PAGE_BYTES, PAGE_BYTES, 0, body, len(entries)) + body
    data = encode_file_header(header) + first
    durable = len(data)
    data += bytes(-len(data) % PAGE_BYTES)
    return data + encode_batch_header(SALT, len(data), durable, 1, b"", 0)


def hex_of(text: str) -> bytes:
    """The bytes of a dump in which `*` stands for lines like the one before it."""
    block = re.search(r"```hex\n(.*?)```", text, re.DOTALL)
    assert block is not None
    data = bytearray()
    line_before = b""
    skipping = False
    for line in block[1].splitlines():
        if line == "*":
            skipping = True
            continue
        match = HEX_LINE.fullmatch(line)
        if match is None:
            assert re.fullmatch("[0-9a-f]{8}", line), line
            match = re.fullmatch("([0-9a-f]{8})()", line)
            assert match is not None
        offset = int(match[1], 16)
        while skipping and len(data) < offset:
            data += line_before
        skipping = False
        assert len(data) == offset, line
        line_before = bytes.fromhex(match[2])
        data += line_before
    return bytes(data)


def test_the_example_is_what_the_code_writes() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert hex_of(page[page.index("## Worked example") :]).hex(" ", 8) == example_file().hex(" ", 8)


def test_the_example_is_what_the_code_reads() -> None:
    disk = SimDisk()
    disk.mkdir("wal")
    disk.create("wal/wal-0000000000000001.log").pwritev([example_file()], 0)
    seen: list[tuple[int, bytes]] = []
    scans = scan_all(disk, {"wal": [1]}, {}, lambda kind, entry: seen.append((kind, entry)))
    (_, create), (_, append) = seen
    assert decode_control(create, TopicCreate)[1].name == "orders"
    rows = decode_block(append).rows(0, 2)
    assert rows.records() == [
        Record(1, NOW_MS, b'{"id":1}', "a", "n", append_first_seq=1),
        Record(2, NOW_MS, b'{"id":2}', None, "n", append_first_seq=1),
    ]
    assert scans["wal"].end == len(example_file()) and scans["wal"].batches == 2


def test_the_mark_of_the_docs() -> None:
    page = PAGE.read_text(encoding="utf-8")
    mark = Mark(3, 1, len(example_file()))
    slot = hex_of(page[page.index("The mark of the example") :])
    assert slot == encode_mark(mark, "wal")
    assert decode_mark(slot.ljust(MARK_FILE_BYTES, b"\0"), "wal", "mark") == mark


def test_the_queue_entry_of_the_docs() -> None:
    page = PAGE.read_text(encoding="utf-8")
    start = page.index("A queue entry:")
    held = Held(0x1122334455667788, "w", NOW_MS + 30_000, 30_000, False, 2)
    event = QueueEvent(EVENT_CLAIM, [7, 8], 1, [held])
    entry = hex_of(page[start:])
    assert entry == encode_control(ENTRY_QUEUE, 1, event)
    assert decode_control(entry, QueueEvent) == (1, event)
