"""Reading snapshot files: the newest chain that is whole, or an older one instead of a bad one.

Only this file decides which snapshot is believed.  `files.py` writes, keeps and removes them.
"""

from __future__ import annotations

import re
from functools import partial
from typing import NamedTuple

from headrace.core.errors import SnapshotCorrupt
from headrace.storage.fs import Filesystem, read_exact
from headrace.storage.snapshot.format import (
    DELTA,
    HEADER_BYTES,
    TRAILER_BYTES,
    Decoded,
    Header,
    damaged,
    decode,
    decode_header,
)
from headrace.storage.snapshot.state import (
    SnapshotState,
    apply_change,
)

META_DIR = "meta"
RETAINED_COUNT = 2
NUMBER_MAX = 10**16 - 1  # sixteen digits
NAME_PATTERN = re.compile(r"snapshot-([0-9]{16})\.bin(\.broken|\.tmp)?")


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


class ChainsRead(NamedTuple):
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
    reading = read_chains(fs)
    return reading.loaded if reading else None


def read_chains(fs: Filesystem) -> ChainsRead | None:
    """Try the newest two; what is set aside already counts as tried."""
    usable = snapshot_numbers(fs, ".bin")
    numbers = sorted(usable | snapshot_numbers(fs, ".broken"), reverse=True)[:RETAINED_COUNT]
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
    return ChainsRead(loaded, chain, retained[::-1], broken)


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
        found = read_snapshot_file(
            fs, header.number, keep_topics=keep_topics, decode_topics=keep_topics
        )
        name = fs.describe(snapshot_path(header.number))
        if links and found.header.base_hash != links[-1].file_hash:
            base = fs.describe(snapshot_path(links[-1].number))
            raise damaged(name, f"{base} is not the snapshot it was built on")
        state = apply_change(state, found.change, header.number)
        size = HEADER_BYTES + found.header.body_bytes + TRAILER_BYTES
        links.append(Link(header.number, size, found.file_hash))
        retained[header.number] = retained_of(state, links)
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


def read_snapshot_file(
    fs: Filesystem, number: int, *, keep_topics: bool, decode_topics: bool = True
) -> Decoded:
    path = snapshot_path(number)
    name = fs.describe(path)
    file = fs.open_read(path)
    try:
        return decode(
            partial(read_exact, file), file.size(), name,
            keep_topics=keep_topics, decode_topics=decode_topics,
        )  # fmt: skip
    except EOFError:
        raise damaged(name, "it became shorter while it was read") from None
    finally:
        file.close()


def retained_of(state: SnapshotState, links: list[Link]) -> Retained:
    return Retained(
        state.number,
        frozenset(state.files),
        frozenset(meta.file_id for meta in state.key_files),
        dict(state.positions),
        frozenset(link.number for link in links),
    )


def snapshot_numbers(fs: Filesystem, *endings: str) -> set[int]:
    """The numbers of the snapshot files whose names end so."""
    found = set()
    for name in fs.listdir(META_DIR):
        match = NAME_PATTERN.fullmatch(name)
        if match is not None and (match[2] or ".bin") in endings:
            found.add(int(match[1]))
    return found
