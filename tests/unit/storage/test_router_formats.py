"""The forward entry of docs/formats/wal.md, byte for byte."""

from __future__ import annotations

import re

from pyroaring import BitMap64

from headrace.storage.wal.frame import (
    ENTRY_FORWARD,
    FORWARD_NODE,
    FORWARD_STORED,
    FORWARD_TAG,
    CopyTarget,
    Forward,
    decode_control,
    encode_control,
)
from tests.support.checkout import ROOT

PAGE = ROOT / "docs" / "formats" / "wal.md"
NOW_MS = 1_700_000_000_000


def test_the_forward_entry_of_the_docs() -> None:
    text = PAGE.read_text()
    dump = re.search(r"```hex\n(.*?)```", text[text.index("A forward entry:") :], re.DOTALL)
    assert dump is not None
    data = bytes.fromhex("".join(line[10:58] for line in dump[1].splitlines()))
    flags = FORWARD_NODE | FORWARD_TAG | FORWARD_STORED
    skip = BitMap64([8]).serialize()
    target = CopyTarget(1, 2, 5, NOW_MS, 0, 2)
    forward = Forward(1, 1, 7, 9, skip, flags, NOW_MS, [], [target])
    assert encode_control(ENTRY_FORWARD, 1, forward) == data
    assert decode_control(data, Forward) == (1, forward)
