"""Records as a reader sees them: one by one (`Record`), or as columns of Python values (`Rows`).

Blocks of the log and runs of sealed files both give `Rows`, so that readers see one shape from
every tier.  Nothing here knows where the values came from; the same as Arrow columns is what
`storage/segment/page_columns.py` makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from headrace.storage.record_headers import Header

# Kinds of payload.  On-disk values: never change one.
KIND_JSON = 0
KIND_BYTES = 1
KIND_COMMAND = 2
KIND_MIXED = 255  # the kinds column says, record by record


class Record(NamedTuple):
    """One record, as a reader sees it.

    >>> Record(seq=1, ts=1700000000000, data=b"{}").tag is None
    True
    """

    seq: int
    ts: int
    data: bytes
    tag: str | None = None
    node: str | None = None
    meta: bytes | None = None
    headers: Sequence[Header] | None = None
    kind: int = KIND_JSON
    append_first_seq: int = 0


class Rows(msgspec.Struct, eq=False):
    """Records of one topic as parallel columns, in ascending seq; absent columns are None.

    `ts`, `kinds` and `append_firsts` are one int where every row has the same value.
    """

    seqs: Sequence[int]
    ts: int | Sequence[int]
    data: list[bytes]
    kinds: int | Sequence[int] = KIND_JSON
    tags: list[str | None] | None = None
    nodes: list[str | None] | None = None
    metas: list[bytes | None] | None = None
    headers: list[Sequence[Header] | None] | None = None
    append_firsts: int | Sequence[int] = 0

    def __post_init__(self) -> None:
        assert len(self.seqs) == len(self.data)

    def __len__(self) -> int:
        return len(self.data)

    def pick(self, positions: Sequence[int]) -> Rows:
        """The rows at these positions only, in order."""

        def chosen(column: Sequence | None) -> list | None:  # type: ignore[type-arg]
            return None if column is None else [column[i] for i in positions]

        def chosen_or_one(column: int | Sequence[int]) -> int | Sequence[int]:
            return column if isinstance(column, int) else [column[i] for i in positions]

        return Rows(
            [self.seqs[i] for i in positions],
            chosen_or_one(self.ts),
            [self.data[i] for i in positions],
            chosen_or_one(self.kinds),
            chosen(self.tags),
            chosen(self.nodes),
            chosen(self.metas),
            chosen(self.headers),
            chosen_or_one(self.append_firsts),
        )

    def records(self) -> list[Record]:
        """The rows as `Record` objects."""
        count = len(self.data)
        ts, kinds, firsts = self.ts, self.kinds, self.append_firsts
        none = [None] * count
        return list(
            map(
                Record,
                self.seqs,
                [ts] * count if isinstance(ts, int) else ts,
                self.data,
                self.tags or none,
                self.nodes or none,
                self.metas or none,
                self.headers or none,
                [kinds] * count if isinstance(kinds, int) else kinds,
                [firsts] * count if isinstance(firsts, int) else firsts,
            )
        )
