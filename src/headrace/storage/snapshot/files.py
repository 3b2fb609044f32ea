"""Snapshot files: when one is written, believed, kept and removed.

Only this file touches `meta/snapshot-<16 digits>.bin`.  The rules it owns:

- a snapshot is written under a temporary name, synced, renamed, its directory synced, then read
  back and checked whole; only after that does it count.  A write that fails changes nothing;
- the newest two snapshots, with the deltas and the full one they are built on, are *retained*:
  what they list must stay on disk, so that a bad newest one can fall back to the one before it.
  Nothing older is ever tried: the log it would need may be gone already;
- these two share no file: snapshots take turns in two chains, and a delta says what changed since
  the last but one.  Where there is no second chain, `double` begins one;
- a bad newest one is set aside as `<name>.broken` on the way, so that it cannot come back to life
  after the files that only it lists were removed;
- snapshots that exist and cannot be used are refused by name: never a start from nothing.

It does not know what topics are, drops no log and no segment, and runs in no thread of its own:
`write` may be called from a background thread, and nothing else may run meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import xxhash

from headrace.core.let_go import let_go
from headrace.storage.fs import File, Filesystem, write_all
from headrace.storage.snapshot.chains import (
    META_DIR,
    NAME_PATTERN,
    RETAINED_COUNT,
    Link,
    LoadedSnapshot,
    Retained,
    read_chains,
    read_snapshot_file,
    retained_of,
    snapshot_numbers,
    snapshot_path,
)
from headrace.storage.snapshot.format import (
    DELTA,
    FULL,
    HEADER_BYTES,
    Body,
    Header,
    damaged,
    delta_body,
    encode_body,
    encode_header,
    encode_trailer,
    full_body,
)
from headrace.storage.snapshot.state import (
    SnapshotChange,
    SnapshotState,
    apply_change,
    both_changes,
    check_change,
    nothing_new,
)

WRITE_BYTES_TARGET = 1 << 20


class SnapshotStore:
    """The snapshots of one data directory, and a shadow of the state last written.

    Call `load` first, once.  Then `write` takes only what changed since.  After it has returned:
    `prune`, then remove log below `replay_positions` and files outside `retained_files`.
    """

    def __init__(self, fs: Filesystem, *, chain_max: int = 16) -> None:
        assert chain_max >= 0, chain_max
        self._fs = fs
        self._chain_max = chain_max  # deltas on top of one full snapshot
        self._opened = False
        self._number_last = 0  # the highest number any file here ever had
        self._state: SnapshotState | None = None
        self._links: list[Link] = []  # of the newest snapshot
        # Of the one before it, on which the next is built; and what changed between the two,
        # None when that is not known.
        self._other: list[Link] = []
        self._since_other: SnapshotChange | None = None
        self._retained: list[Retained] = []  # oldest first, at most RETAINED_COUNT
        # A failed write whose name could not be removed for sure may be there after a crash, and
        # would then be the newest: what it lists is kept until the name is known to be gone.
        self._doubtful: dict[int, Retained] = {}
        self._pinned: list[Retained] = []

    @property
    def latest(self) -> SnapshotState:
        """The state last loaded or written: look, do not change, do not keep across `write`."""
        assert self._state is not None, "nothing was loaded or written yet"
        return self._state

    @property
    def bytes_last(self) -> int:
        """The size of the snapshot last loaded or written, with those it is built on."""
        return sum(link.size for link in self._links)

    def load(self) -> LoadedSnapshot | None:
        """The newest usable state; None when there never was a snapshot.

        Raises `SnapshotCorrupt` when there are snapshots and neither of the newest two is
        usable, `UnsupportedFormat` when a newer version wrote one of them.  An I/O error is
        raised as it is: a disk that cannot be read now is no reason to go back in time.
        """
        assert not self._opened, "load is called once"
        self._number_last = max(snapshot_numbers(self._fs, ".broken", ".bin", ".tmp"), default=0)
        reading = read_chains(self._fs)
        if reading is not None:
            self._set_aside(reading.broken)
            self._state = reading.chain.state
            self._links = reading.chain.links
            self._retained = reading.retained
        self._opened = True
        return reading.loaded if reading else None

    def write(self, change: SnapshotChange, *, full: bool = False) -> int:
        """Make `change` durable and return the number of the new snapshot.

        It is full, or built on the one before the newest.  A clean one is always full.  On any
        error the state is as before the call, the same change may be written again, and `OSError`
        or `SnapshotCorrupt` (the disk gave back other bytes than it was given) is the caller's.
        """
        assert self._opened, "load first: a number must not be used twice"
        check_change(change)
        number = self._number_last + 1
        if full or change.clean or self._since_other is None or self._full_due():
            base, chain, body = None, [], full_body(self._state, change)
        else:
            base, chain = self._other[-1], self._other
            body = delta_body(both_changes(self._since_other, change))
        try:
            link = self._write_file(number, base, body)
        except Exception:
            self._undo(number, change)
            raise
        self._state = apply_change(self._state, change, number)
        self._other, self._links = self._links, [*chain, link]
        forgotten = [] if self._since_other is None else list(self._since_other.topics.values())
        self._since_other = change if self._other else None
        let_go(forgotten)
        newest = retained_of(self._state, self._links)
        self._retained = [*self._retained, newest][-RETAINED_COUNT:]
        assert self._links[-1].number == self._state.number == number
        assert {link.number for link in self._links}.isdisjoint(link.number for link in self._other)
        return number

    def double(self, change: SnapshotChange) -> None:
        """Write what was just written once more, where there is no other to fall back to."""
        if not self._other:
            self.write(nothing_new(change), full=True)

    def retained_files(self) -> set[int]:
        """Ids of the segment files that a retained snapshot lists: these stay on disk."""
        return set().union(*(retained.files for retained in self._needed()))

    def retained_numbers(self) -> set[int]:
        """Numbers of the snapshots that a start may use, with those they are built on."""
        return set().union(*(retained.chain for retained in self._retained))

    def retained_key_files(self) -> set[int]:
        """Ids of the key files that a retained snapshot lists: these stay on disk."""
        return set().union(*(retained.key_files for retained in self._needed()))

    def replay_positions(self) -> dict[str, int]:
        """For each WAL directory the lowest LSN a retained snapshot replays from.

        0, that is all of it, for a directory that one of them does not know.
        """
        needed = list(self._needed())
        names = set().union(*(retained.positions for retained in needed))
        return {name: min(r.positions.get(name, 0) for r in needed) for name in sorted(names)}

    def prune(self, *, alone: bool = False) -> list[str]:
        """Remove snapshot files that the retained ones do not need; return their names.

        `alone`: only the newest stays, where there is no room for two; the next one is full.
        """
        if alone:
            self._retained = self._retained[-1:]
            self._other, self._since_other = [], None
        retained = self._retained
        if not retained:
            return []
        needed = frozenset().union(*(one.chain for one in (*retained, *self._pinned)))
        removed = []
        for name in self._fs.listdir(META_DIR):
            match = NAME_PATTERN.fullmatch(name)
            if match is None or (match[2] is None and int(match[1]) in needed):
                continue
            # Until a newer one is written, a broken one tells a later start that what is before
            # the snapshot in use must not be tried.
            if match[2] == ".broken" and int(match[1]) > retained[-1].number:
                continue
            self._fs.unlink(f"{META_DIR}/{name}")
            removed.append(name)
        if removed:
            self._sync_names()
        return removed

    def _full_due(self) -> bool:
        """Whether the chain on which the next snapshot would be built has become too long."""
        chain = self._other
        if len(chain) > self._chain_max:
            return True
        return 2 * sum(link.size for link in chain[1:]) > chain[0].size

    def _needed(self) -> Iterable[Retained]:
        return [*self._retained, *self._doubtful.values(), *self._pinned]

    def pin(self) -> Retained:
        """Keep what the newest snapshot needs, whatever is written later, until `unpin`."""
        assert self._retained, "nothing to pin: write a snapshot first"
        pinned = self._retained[-1]
        self._pinned.append(pinned)
        return pinned

    def unpin(self, pinned: Retained) -> None:
        """Let go of one pin."""
        self._pinned.remove(pinned)

    def _write_file(self, number: int, base: Link | None, body: Body) -> Link:
        fs = self._fs
        path = snapshot_path(number)
        temporary = f"{path}.tmp"
        fs.mkdir(META_DIR)
        fs.unlink(temporary)
        file = fs.create(temporary)
        try:
            link = _write_bytes(file, number, base, body)
            file.sync()
        finally:
            file.close()
        self._number_last = number  # from here on the name may exist, whatever is reported
        fs.rename(temporary, path)
        self._sync_names()
        found = read_snapshot_file(fs, number, keep_topics=False)
        if found.file_hash != link.file_hash:
            raise damaged(fs.describe(path), "the disk gave back other bytes than were written")
        return link

    def _undo(self, number: int, change: SnapshotChange) -> None:
        """Remove what a failed write left, as far as the disk lets us."""
        path = snapshot_path(number)
        with contextlib.suppress(OSError):
            self._fs.unlink(f"{path}.tmp")
        if number > self._number_last:
            return  # it never had its final name
        self._doubtful[number] = _doubtful_of(self._retained, change, number)
        with contextlib.suppress(OSError):
            self._sync_names()

    def _sync_names(self) -> None:
        """Sync the directory; names of failed writes that are gone by then need no more care."""
        gone = []
        for number in self._doubtful:
            with contextlib.suppress(OSError):
                self._fs.unlink(snapshot_path(number))
                gone.append(number)
        self._fs.sync_dir(META_DIR)
        for number in gone:
            del self._doubtful[number]

    def _set_aside(self, numbers: list[int]) -> None:
        for number in numbers:
            path = snapshot_path(number)
            self._fs.rename(path, f"{path}.broken")
        if numbers:
            self._fs.sync_dir(META_DIR)


def _write_bytes(file: File, number: int, base: Link | None, body: Body) -> Link:
    """Stream a snapshot into `file`; the header is written last, when its lengths are known."""
    hasher = xxhash.xxh3_64()
    pending: list[bytes] = []
    pending_bytes = chunks = 0
    offset = HEADER_BYTES
    for chunk in encode_body(body):
        hasher.update(chunk)
        pending.append(chunk)
        pending_bytes += len(chunk)
        chunks += 1
        if pending_bytes >= WRITE_BYTES_TARGET:
            offset += write_all(file, pending, offset)
            pending, pending_bytes = [], 0
    body_bytes = offset + pending_bytes - HEADER_BYTES
    kind, base_number, base_hash = FULL, 0, 0
    if base is not None:
        kind, base_number, base_hash = DELTA, base.number, base.file_hash
    header = encode_header(Header(kind, number, base_number, base_hash, body_bytes, chunks))
    hasher.update(header)
    file_hash = hasher.intdigest()
    offset += write_all(file, [*pending, encode_trailer(file_hash)], offset)
    write_all(file, [header], 0)
    assert file.size() == offset, (file.size(), offset)
    return Link(number, offset, file_hash)


def _doubtful_of(retained: list[Retained], change: SnapshotChange, number: int) -> Retained:
    """More than the failed snapshot needs, which does no harm: it is gone soon."""
    files = retained[-1].files if retained else frozenset()
    key_files = frozenset(meta.file_id for meta in change.key_files)
    return Retained(
        number, files.union(change.files), key_files, dict(change.positions), frozenset()
    )
