"""Snapshot files: when one is written, believed, kept and removed.

Only this file touches `meta/snapshot-<16 digits>.bin`.  The rules it owns:

- a snapshot is written under a temporary name, synced, renamed, its directory synced, then read
  back and checked whole; only after that does it count.  A write that fails changes nothing;
- the newest two snapshots, with the deltas and the full one they are built on, are *retained*:
  what they list must stay on disk, so that a bad newest one can fall back to the one before it.
  Nothing older is ever tried: the log it would need may be gone already;
- a bad newest one is set aside as `<name>.broken` on the way, so that it cannot come back to life
  after the files that only it lists were removed;
- snapshots that exist and cannot be used are refused by name: never a start from nothing.

It does not know what topics are, drops no log and no segment, and runs in no thread of its own:
`write` may be called from a background thread, and nothing else may run meanwhile.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import xxhash

from headrace.core.errors import SnapshotCorrupt
from headrace.storage.fs import File, Filesystem, read_exact, write_all
from headrace.storage.snapshot import (
    DELTA,
    FULL,
    HEADER_BYTES,
    TRAILER_BYTES,
    Body,
    Decoded,
    Header,
    SnapshotChange,
    SnapshotState,
    apply_change,
    check_change,
    damaged,
    decode,
    decode_header,
    delta_body,
    encode_body,
    encode_header,
    encode_trailer,
    full_body,
)

META_DIR = "meta"
RETAINED_COUNT = 2
NUMBER_MAX = 10**16 - 1  # sixteen digits
WRITE_BYTES_TARGET = 1 << 20

_NAME = re.compile(r"snapshot-([0-9]{16})\.bin(\.broken|\.tmp)?")


class LoadedSnapshot(NamedTuple):
    """The state found, what was wrong on the way, and whether it is not the newest one."""

    state: SnapshotState
    problems: list[str]
    fell_back: bool


class Retained(NamedTuple):
    """What one snapshot needs to stay usable."""

    number: int
    files: frozenset[int]
    key_files: frozenset[int]
    positions: dict[str, int]
    chain: frozenset[int]  # numbers of the snapshots it is built from, its own included


class Link(NamedTuple):
    """One file of a chain."""

    number: int
    size: int
    file_hash: int


class Chain(NamedTuple):
    """A snapshot put together from its files, the full one first."""

    state: SnapshotState
    links: list[Link]
    retained: dict[int, Retained]  # of every link


class _Reading(NamedTuple):
    loaded: LoadedSnapshot
    chain: Chain
    retained: list[Retained]
    broken: list[int]  # candidates that have to be set aside


def snapshot_path(number: int) -> str:
    """Relative to the data directory.

    >>> snapshot_path(12)
    'meta/snapshot-0000000000000012.bin'
    """
    assert 0 <= number <= NUMBER_MAX, number
    return f"{META_DIR}/snapshot-{number:016d}.bin"


def read_latest(fs: Filesystem) -> LoadedSnapshot | None:
    """What `SnapshotStore.load` would give, changing nothing on disk: for tools."""
    reading = _read(fs)
    return reading.loaded if reading else None


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
        self._links: list[Link] = []
        self._retained: list[Retained] = []  # oldest first, at most RETAINED_COUNT
        # A failed write whose name could not be removed for sure may be there after a crash, and
        # would then be the newest: what it lists is kept until the name is known to be gone.
        self._doubtful: dict[int, Retained] = {}
        self._full_next = False
        self._pinned: list[Retained] = []

    @property
    def latest(self) -> SnapshotState:
        """The state last loaded or written: look, do not change, do not keep across `write`."""
        assert self._state is not None, "nothing was loaded or written yet"
        return self._state

    def load(self) -> LoadedSnapshot | None:
        """The newest usable state; None when there never was a snapshot.

        Raises `SnapshotCorrupt` when there are snapshots and neither of the newest two is
        usable, `UnsupportedFormat` when a newer version wrote one of them.  An I/O error is
        raised as it is: a disk that cannot be read now is no reason to go back in time.
        """
        assert not self._opened, "load is called once"
        self._number_last = max(_numbers(self._fs, ".broken", ".bin", ".tmp"), default=0)
        reading = _read(self._fs)
        if reading is not None:
            self._set_aside(reading.broken)
            self._state = reading.chain.state
            self._links = reading.chain.links
            self._retained = reading.retained
            # A disk that has damaged one snapshot gets a whole new one, not a delta.
            self._full_next = reading.loaded.fell_back
        self._opened = True
        return reading.loaded if reading else None

    def write(self, change: SnapshotChange, *, full: bool = False) -> int:
        """Make `change` durable and return the number of the new snapshot.

        A clean one is always full.  On any error the state is as before the call, the same
        change may be written again, and `OSError` or `SnapshotCorrupt` (the disk gave back other
        bytes than it was given) is the caller's.
        """
        assert self._opened, "load first: a number must not be used twice"
        check_change(change)
        full = full or change.clean or self._full_due()
        number = self._number_last + 1
        base = None if full else self._links[-1]
        body = full_body(self._state, change) if full else delta_body(change)
        try:
            link = self._write_file(number, base, body)
        except Exception:
            self._undo(number, change)
            raise
        self._full_next = False
        self._state = apply_change(self._state, change, number)
        self._links = [link] if full else [*self._links, link]
        newest = _retained_of(self._state, self._links)
        self._retained = [*self._retained, newest][-RETAINED_COUNT:]
        assert self._links[-1].number == self._state.number == number
        return number

    def retained_files(self) -> set[int]:
        """Ids of the segment files that a retained snapshot lists: these stay on disk."""
        return set().union(*(retained.files for retained in self._needed()))

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

    def prune(self, *, keep: int = RETAINED_COUNT) -> list[str]:
        """Remove snapshot files that the newest `keep` do not need; return their names.

        With `keep=1`, for a clean exit, the one before the newest is no longer retained.
        """
        assert 1 <= keep <= RETAINED_COUNT, keep
        if not self._retained:
            return []
        retained = self._retained[-keep:]
        needed = frozenset().union(*(one.chain for one in (*retained, *self._pinned)))
        removed = []
        for name in self._fs.listdir(META_DIR):
            match = _NAME.fullmatch(name)
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
        self._retained = retained
        return removed

    def _full_due(self) -> bool:
        """Whether the next snapshot starts a new chain."""
        if not self._links or self._full_next or len(self._links) > self._chain_max:
            return True
        return 2 * sum(link.size for link in self._links[1:]) > self._links[0].size

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
        found = _read_file(fs, number, keep_topics=False)
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


def _read(fs: Filesystem) -> _Reading | None:
    """Try the newest two; what is set aside already counts as tried."""
    usable = _numbers(fs, ".bin")
    numbers = sorted(usable | _numbers(fs, ".broken"), reverse=True)[:RETAINED_COUNT]
    if not numbers:
        return None
    problems: list[str] = []
    broken: list[int] = []
    chain: Chain | None = None
    retained: list[Retained] = []
    for number in numbers:
        if number not in usable:
            name = fs.describe(f"{snapshot_path(number)}.broken")
            problems.append(f"{name}: it was found damaged and set aside at an earlier start")
            continue
        if chain is not None and number in chain.retained:
            retained.append(chain.retained[number])
            continue
        try:
            # The one before is read for what it needs kept, so its topics can be let go.
            found = _read_chain(fs, number, keep_topics=chain is None)
        except SnapshotCorrupt as error:
            problems.append(error.message)
            broken.append(number)
            continue
        retained.append(found.retained[number])
        chain = chain or found
    if chain is None:
        raise SnapshotCorrupt(
            "no snapshot is usable: " + "; ".join(problems),
            fix="restore the data directory from a backup, or see `headrace check`",
            detail={"problems": problems},
        )
    fell_back = chain.state.number != numbers[0]
    loaded = LoadedSnapshot(chain.state, problems, fell_back)
    return _Reading(loaded, chain, retained[::-1], broken)


def _read_chain(fs: Filesystem, number: int, *, keep_topics: bool) -> Chain:
    """Read one snapshot and all it is built on; `SnapshotCorrupt` says which file and why."""
    headers = [_read_header(fs, number)]
    while headers[-1].kind == DELTA:
        assert headers[-1].base_number < headers[-1].number
        headers.append(_read_header(fs, headers[-1].base_number))
    state: SnapshotState | None = None
    links: list[Link] = []
    retained: dict[int, Retained] = {}
    for header in reversed(headers):
        found = _read_file(fs, header.number, keep_topics=keep_topics)
        name = fs.describe(snapshot_path(header.number))
        if links and found.header.base_hash != links[-1].file_hash:
            base = fs.describe(snapshot_path(links[-1].number))
            raise damaged(name, f"{base} is not the snapshot it was built on")
        state = apply_change(state, found.change, header.number)
        size = HEADER_BYTES + found.header.body_bytes + TRAILER_BYTES
        links.append(Link(header.number, size, found.file_hash))
        retained[header.number] = _retained_of(state, links)
    assert state is not None
    assert state.number == number
    return Chain(state, links, retained)


def _read_header(fs: Filesystem, number: int) -> Header:
    path = snapshot_path(number)
    name = fs.describe(path)
    try:
        file = fs.open_read(path)
    except FileNotFoundError:
        raise damaged(name, "it is missing and a later snapshot is built on it") from None
    try:
        header = decode_header(file.pread(HEADER_BYTES, 0), name)
    finally:
        file.close()
    if header.number != number:
        raise damaged(name, f"it holds snapshot {header.number}: another file's bytes")
    return header


def _read_file(fs: Filesystem, number: int, *, keep_topics: bool) -> Decoded:
    path = snapshot_path(number)
    name = fs.describe(path)
    file = fs.open_read(path)
    try:
        return decode(partial(read_exact, file), file.size(), name, keep_topics=keep_topics)
    except EOFError:
        raise damaged(name, "it became shorter while it was read") from None
    finally:
        file.close()


def _retained_of(state: SnapshotState, links: list[Link]) -> Retained:
    return Retained(
        state.number,
        frozenset(state.files),
        frozenset(meta.file_id for meta in state.key_files),
        dict(state.positions),
        frozenset(link.number for link in links),
    )


def _doubtful_of(retained: list[Retained], change: SnapshotChange, number: int) -> Retained:
    """More than the failed snapshot needs, which does no harm: it is gone soon."""
    files = retained[-1].files if retained else frozenset()
    key_files = frozenset(meta.file_id for meta in change.key_files)
    return Retained(
        number, files.union(change.files), key_files, dict(change.positions), frozenset()
    )


def _numbers(fs: Filesystem, *endings: str) -> set[int]:
    """The numbers of the snapshot files whose names end so."""
    found = set()
    for name in fs.listdir(META_DIR):
        match = _NAME.fullmatch(name)
        if match is not None and (match[2] or ".bin") in endings:
            found.add(int(match[1]))
    return found
