"""What the server knows to be deleted of what the lake has: how far back, and as what."""

from __future__ import annotations

from base64 import b64encode

import pytest
from pyroaring import BitMap64

from headrace.api.segments import Erasures, Floors, Manifest
from headrace.lake.sql.deleted_rows import deleted_in, nothing_deleted
from headrace.lake.tables.files import DataFile


def manifest(
    *,
    cap: int = 0,
    delete: int = 0,
    deletes: list[tuple[int, int]] | None = None,
    bitmap: set[int] | None = None,
    erased: Erasures | None = None,
) -> Manifest:
    raw = None if bitmap is None else b64encode(BitMap64(bitmap).serialize()).decode()
    return Manifest(
        "t", 1, 1, 100, max(cap, delete) + 1, 91, Floors(cap, 0, 0, 0, delete), [], [], "", 0, 0,
        deletes, raw, erased=erased,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("made", "gone"),
    [
        (manifest(), set()),
        (manifest(delete=5, deletes=[(7, 8), (60, 70)]), {1, 2, 3, 4, 5, 7, 8}),
        (manifest(bitmap={9, 20, 21, 77}), {9, 20, 21}),
        # Of what retention took nobody knows what had been deleted before.
        (manifest(cap=9, delete=5), set()),
        (manifest(cap=3, delete=5), {4, 5}),
    ],
)
def test_seqs(made: Manifest, gone: set[int]) -> None:
    assert set(deleted_in(made, 50).seqs) == gone


def test_a_topic_that_knows_further_back() -> None:
    seqs = b64encode(BitMap64([8, 30, 99]).serialize()).decode()
    erased = Erasures(since=3, below=4, seqs=seqs, tags=[("eu", False, 40), ("u", True, 6)])
    found = deleted_in(manifest(cap=20, delete=4, deletes=[(25, 26)], erased=erased), 50)
    assert set(found.seqs) == {1, 2, 3, 4, 8, 25, 26, 30}
    assert found.tags == [("eu", False, 40), ("u", True, 6)]
    late = DataFile("b", 1, 10, "2026-01-31", 25, 34, 0, 0)
    assert found.of([late]) == (BitMap64([25, 26, 30]), [("eu", False, 40)])
    early = DataFile("a", 1, 3, "2026-01-31", 1, 4, 0, 0)
    assert found.covers(early) and not found.covers(late)
    assert not nothing_deleted().covers(early)
