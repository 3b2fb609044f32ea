"""The records of one pass of a router, and the copies that are made of them.

Only this file makes copies, both while the engine runs and during recovery, so that they are the
same.  A pass reads the source once for all routers with the same cursor; copies that are made in
the same way are one run of bytes, which every destination shares (`storage/block.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pyroaring import BitMap64

from headrace.core.errors import HeadraceError
from headrace.engine.reading.page_rows import fit_rows
from headrace.engine.removal.deleting import TagMatch
from headrace.engine.routers.state import Router, keyed_meta
from headrace.engine.topics.topic import Topic
from headrace.storage.block import KIND_MIXED, Batch, Block, Rows, single_layout
from headrace.storage.block_encoding import encode_block, share
from headrace.storage.wal.frame import FORWARD_KEY, FORWARD_NODE, FORWARD_TAG, CopyTarget

# The most a router consumes in one pass.
RECORDS_PER_PASS = 1024
BYTES_PER_PASS = 4 << 20

Picked = tuple[int, ...] | None  # positions in the window; None: all of them


class SharedCopies(NamedTuple):
    """Copies: the bytes that every destination shares, their number and size."""

    raw: bytes
    rows: int
    size: int  # data and meta

    def block(self, first_seq: int, ts: int, arrived_ms: int) -> Block:
        layout = single_layout(self.raw, self.rows)
        return Block(self.raw, first_seq, self.rows, ts, arrived_ms, self.size, layout)


class Copy(NamedTuple):
    """The copies of one router in one pass."""

    router: Router
    block: Block | None  # None: nothing, or holes
    first_seq: int  # 0: nothing
    rows: int
    cursor: int  # of the router, after the pass
    forwarded_total: int
    reserve: int = 0
    hops: Sequence[int] = ()
    seqs: Sequence[int] = ()  # of the source, where the copies have keys

    @property
    def size(self) -> int:
        return self.block.bytes if self.block is not None else 0


class ForwardCommit:
    """A log entry of copies that is staged and not settled yet."""

    __slots__ = ("_copies", "_settled", "entries", "needs_sync")

    def __init__(
        self,
        raw: bytes,
        needs_sync: bool,
        copies: list[Copy],
        settled: Settled,
    ) -> None:
        self.entries: Sequence[bytes] = (raw,)
        self.needs_sync = needs_sync
        self._copies = copies
        self._settled = settled

    def settle(self, error: HeadraceError | None) -> None:
        self._settled(self, self._copies, error)


Settled = Callable[[ForwardCommit, list[Copy], HeadraceError | None], None]


class Window:
    """Live records of a source after `cursor`, up to and including the seq `last`."""

    __slots__ = (
        "_capped",
        "_kept",
        "_made",
        "_matching",
        "_rows",
        "block",
        "cursor",
        "last",
        "topic",
    )

    def __init__(
        self, topic: Topic, cursor: int, last: int, block: Block | None, rows: Rows | None
    ) -> None:
        assert (block is None) != (rows is None)
        self.topic = topic
        self.cursor = cursor
        self.last = last
        self.block = block  # set where the records are exactly those of one block
        self._rows = rows
        self._matching: dict[TagMatch, Picked] = {}
        self._kept: dict[object, Picked] = {}
        self._capped: dict[int, tuple[Picked, Picked]] = {}
        self._made: dict[object, tuple[Picked, SharedCopies]] = {}  # by identity of what was picked

    @property
    def rows(self) -> Rows:
        if self._rows is None:
            assert self.block is not None
            self._rows = self.block.rows(0, self.block.count)
        return self._rows

    @property
    def count(self) -> int:
        return self.block.count if self.block is not None else len(self.rows)

    @property
    def unlogged(self) -> bool:
        """Whether some of these records are not in the log, to rebuild their copies from."""
        return self.seqs[0] <= self.topic.unlogged_to

    @property
    def seqs(self) -> Sequence[int]:
        block = self.block
        if block is not None:
            return range(block.first_seq, block.last_seq + 1)
        return self.rows.seqs

    @property
    def kinds(self) -> int | Sequence[int]:
        """The kind of every record; one int where all have the same."""
        if self.block is not None and self.block.raw[1] != KIND_MIXED:
            return self.block.raw[1]
        return self.rows.kinds

    def size(self, position: int, router: Router) -> int:
        """Data and meta bytes of the copy that this router makes of one record."""
        if self.block is not None and not router.exactly_once:
            return self.block.size_of(position, position + 1)
        metas = self.rows.metas
        meta = metas[position] if metas is not None else None
        if router.exactly_once:
            meta = keyed_meta(meta, router.name, self.topic, self.rows.seqs[position])
        return len(self.rows.data[position]) + len(meta or b"")

    # Choosing records

    def matching(self, match: TagMatch | None) -> Picked:
        """Return the records that a filter lets through; the same object for the same filter."""
        if match is None:
            return None
        if match not in self._matching:
            tags = self.block.tags(0, self.block.count) if self.block else self.rows.tags
            found: tuple[int, ...] = ()
            if tags is not None and match.prefix:
                prefix = match.tag
                found = tuple(
                    [i for i, tag in enumerate(tags) if tag is not None and tag.startswith(prefix)]
                )
            elif tags is not None and match.tag in tags:
                found = tuple([i for i, tag in enumerate(tags) if tag == match.tag])
            self._matching[match] = found
        return self._matching[match]

    def below(self, picked: Picked, hops: Sequence[int], hops_max: int) -> Picked:
        """Return those of these records that may be forwarded once more."""
        if max(hops) < hops_max:
            return picked
        known = self._capped.get(id(picked))
        if known is None:
            chosen = range(self.count) if picked is None else picked
            left = tuple([i for i in chosen if hops[i] < hops_max])
            known = self._capped[id(picked)] = (picked, left)
        return known[1]

    def up_to(self, picked: Picked, last: int) -> Picked:
        """Return those of these records up to a seq."""
        if last >= self.last:
            return picked
        seqs = self.seqs
        chosen = range(self.count) if picked is None else picked
        return tuple([i for i in chosen if seqs[i] <= last])

    def skipped(self, picked: Picked, last: int) -> list[int]:
        """Return the seqs up to `last` that are consumed without a copy."""
        seqs = self.seqs
        copied = set(seqs if picked is None else [seqs[i] for i in picked])
        first = self.cursor + 1
        if picked is None and len(copied) == last - self.cursor:
            return []
        return [seq for seq in range(first, last + 1) if seq not in copied]

    def keep(self, picked: Picked) -> None:
        """Keep a choice, to be found by its identity (`kept`)."""
        self._kept[id(picked)] = picked

    def kept(self, identity: object) -> Picked:
        return self._kept[identity]

    # Making copies

    def make(self, picked: Picked, flags: int, router: str = "") -> SharedCopies:
        """Return the copies, which are made once for all routers that want the same."""
        key = (id(picked), flags, router if flags & FORWARD_KEY else "")
        known = self._made.get(key)
        if known is None:
            known = self._made[key] = (picked, self._make(picked, flags, router))
        return known[1]

    def _make(self, picked: Picked, flags: int, router: str) -> SharedCopies:
        block = self.block
        if picked is None and block is not None and not flags & FORWARD_KEY:
            stripped = (block.raw[57] and not flags & FORWARD_TAG) or (
                block.raw[58] and not flags & FORWARD_NODE
            )
            if not stripped and not block.raw[62] and not block.has_sidecar:
                return SharedCopies(share(block.raw), block.count, block.bytes)
        copied = encode_block(self.batch(picked, flags, router), 0, 1, 0, 0)
        return SharedCopies(share(copied.raw), copied.count, copied.bytes)

    def batch(self, picked: Picked, flags: int, router: str = "") -> Batch:
        """Return the copies as records to append."""
        rows = self.rows if picked is None else self.rows.pick(picked)
        metas = rows.metas
        if flags & FORWARD_KEY:
            known = metas or [None] * len(rows)
            metas = [
                keyed_meta(meta, router, self.topic, seq)
                for meta, seq in zip(known, rows.seqs, strict=True)
            ]
        kinds = rows.kinds
        return Batch(
            rows.data,
            kinds if isinstance(kinds, int) else KIND_MIXED,
            rows.tags if flags & FORWARD_TAG else None,
            rows.nodes if flags & FORWARD_NODE else None,
            metas,
            rows.headers,
            None if isinstance(kinds, int) else bytes(kinds),
        )


def window_in_memory(topic: Topic, cursor: int, stop: int, bytes_max: int) -> Window | None:
    """Return the records after `cursor` up to `stop`; None where memory does not hold them."""
    start = max(cursor, topic.base)
    blocks = topic.blocks.since(start + 1, RECORDS_PER_PASS)
    held_from = blocks[0].first_seq if blocks else topic.head + 1
    if held_from > start + 1 and topic.live_between(start + 1, min(held_from - 1, stop)):
        return None
    last = min(stop, start + RECORDS_PER_PASS)
    left = bytes_max
    parts: list[tuple[Block, int, int]] = []
    for block in blocks:
        low = max(0, start + 1 - block.first_seq)
        high = min(block.count, last - block.first_seq + 1)
        if high <= low:
            break
        if block.size_of(low, high) > left:
            if parts and left <= 0:
                last = block.first_seq - 1
                break
            high = fit_rows(block, low, high, left)
            last = block.first_seq + high - 1
        left -= block.size_of(low, high)
        parts.append((block, low, high))
        if block.first_seq + high - 1 == last:
            break
    holes = topic.holes
    dead = bool(holes) and holes.range_cardinality(start + 1, last + 1)  # type: ignore[union-attr]
    if len(parts) == 1 and not dead:
        block, low, high = parts[0]
        if (low, high) == (0, block.count):
            return Window(topic, cursor, last, block, None)
    rows = joined([block.rows(low, high) for block, low, high in parts])
    return Window(topic, cursor, last, None, live_rows(topic, rows))


def live_rows(topic: Topic, rows: Rows) -> Rows:
    """Return the rows whose records are not deleted."""
    base, holes = topic.base, topic.holes or ()
    alive = [i for i, seq in enumerate(rows.seqs) if seq > base and seq not in holes]
    return rows if len(alive) == len(rows) else rows.pick(alive)


def joined(parts: Sequence[Rows]) -> Rows:
    """Return the rows of all parts as one."""
    if len(parts) == 1:
        return parts[0]
    seqs = [seq for rows in parts for seq in rows.seqs]
    data = [value for rows in parts for value in rows.data]
    kinds: list[int] = []
    for rows in parts:
        each = rows.kinds
        kinds += [each] * len(rows) if isinstance(each, int) else each
    same = len(set(kinds)) <= 1
    result = Rows(seqs, 0, data, (kinds[0] if kinds else 0) if same else kinds)
    for name in ("tags", "nodes", "metas", "headers"):
        columns = [getattr(rows, name) for rows in parts]
        if any(column is not None for column in columns):
            values: list[object] = []
            for rows, column in zip(parts, columns, strict=True):
                values += [None] * len(rows) if column is None else column
            setattr(result, name, values)
    return result


def encode_seqs(seqs: Sequence[int]) -> bytes:
    """Return seqs as a log entry has them."""
    return BitMap64(seqs).serialize() if seqs else b""


def target_of(copy: Copy, flags: int) -> CopyTarget:
    """Return what a log entry says of the copies of one router."""
    router, block = copy.router, copy.block
    return CopyTarget(
        router.id,
        router.dest.id,
        copy.first_seq,
        block.ts if block is not None else 0,
        copy.reserve,
        copy.forwarded_total,
        router.name if flags & FORWARD_KEY else "",
    )
