"""The state behind `SimDisk`: what is durable, what is pending, and what a power loss leaves.

Only this file decides which bytes and names survive a crash.  It owns three rules.  Pending
means: done, and not yet covered by a sync.  A crash may keep, drop, cut or spoil what is pending,
and nothing else, save that a write spoils the whole 4 KiB page it touches unless the disk is
`powersafe`.  The same state, mode and seed give the same image on every machine and every Python,
which is why the dice are here and not the standard library's.

It does not know paths' parents, open files, errors or free space: that is `simdisk.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, get_args

SECTOR_BYTES: Final = 512
PAGE_BYTES: Final = 4096
ZERO_PAGE: Final = bytes(PAGE_BYTES)
# Stands in a namespace where a file has its inode number.
DIRECTORY: Final = 0

Mode = Literal["none", "all", "prefix", "subset", "torn", "garbage"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
Kind = Literal[
    "create",
    "write",
    "truncate",
    "sync",
    "sync_data",
    "sync_failed",
    "rename",
    "unlink",
    "mkdir",
    "sync_dir",
]


class Op(NamedTuple):
    """One mutating call.  A write of zeros has `data` None, so that it costs nothing to keep."""

    kind: Kind
    path: str
    inode: int = DIRECTORY
    offset: int = 0  # of a write; the new length of a truncate
    length: int = 0
    data: bytes | None = None
    target: str = ""  # of a rename

    @property
    def end(self) -> int:
        return self.offset + self.length


class Dice:
    """A small deterministic source of numbers (splitmix64).

    >>> Dice(1, 2).below(1000) == Dice(1, 2).below(1000)
    True
    """

    __slots__ = ("_state",)

    def __init__(self, *seeds: int) -> None:
        self._state = 0
        for seed in seeds:
            self._state = (self._state ^ seed) & 0xFFFFFFFFFFFFFFFF
            self._state = self._next()

    def _next(self) -> int:
        mask = 0xFFFFFFFFFFFFFFFF
        self._state = mixed = (self._state + 0x9E3779B97F4A7C15) & mask
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
        return mixed ^ (mixed >> 31)

    def below(self, bound: int) -> int:
        assert bound > 0, bound
        return self._next() % bound

    def coin(self) -> bool:
        return self._next() >= 1 << 63

    def bytes(self, length: int) -> bytes:
        return hashlib.shake_128(self._next().to_bytes(8, "little")).digest(length)


class Content:
    """The bytes of a file as 4 KiB pages that copies share until one of them writes.

    A page of zeros is not stored.  Bytes beyond `size` within the last page are zero.
    """

    __slots__ = ("_pages", "_shared", "size")

    def __init__(self) -> None:
        self._pages: dict[int, bytes] = {}
        self._shared = False
        self.size = 0

    def fork(self) -> Content:
        other = Content()
        other._pages = self._pages
        other.size = self.size
        self._shared = other._shared = True
        return other

    def _own_pages(self) -> dict[int, bytes]:
        if self._shared:
            self._pages = dict(self._pages)
            self._shared = False
        return self._pages

    def read(self, offset: int, length: int) -> bytes:
        stop = min(self.size, offset + length)
        if stop <= offset:
            return b""
        pages = self._pages
        if not pages:
            return bytes(stop - offset)
        first, last = offset // PAGE_BYTES, (stop - 1) // PAGE_BYTES
        base = first * PAGE_BYTES
        if first == last:
            return pages.get(first, ZERO_PAGE)[offset - base : stop - base]
        joined = b"".join([pages.get(n, ZERO_PAGE) for n in range(first, last + 1)])
        return joined[offset - base : stop - base]

    def write(self, offset: int, data: bytes) -> None:
        pages = self._own_pages()
        position, end = offset, offset + len(data)
        while position < end:
            number, start = divmod(position, PAGE_BYTES)
            stop = min(PAGE_BYTES, start + end - position)
            page = data[position - offset : position - offset + stop - start]
            if stop - start < PAGE_BYTES:
                old = pages.get(number, ZERO_PAGE)
                page = old[:start] + page + old[stop:]
            if page == ZERO_PAGE:
                pages.pop(number, None)
            else:
                pages[number] = page
            position += stop - start
        if data:
            self.size = max(self.size, end)

    def write_zeros(self, offset: int, length: int) -> None:
        end = offset + length
        first, last = -(-offset // PAGE_BYTES), end // PAGE_BYTES
        if last <= first:
            self.write(offset, bytes(length))
            return
        pages = self._own_pages()
        for number in [n for n in pages if first <= n < last]:
            del pages[number]
        self.size = max(self.size, end)
        self.write(offset, bytes(first * PAGE_BYTES - offset))
        self.write(last * PAGE_BYTES, bytes(end - last * PAGE_BYTES))

    def truncate(self, length: int) -> None:
        if length < self.size:
            pages = self._own_pages()
            number, start = divmod(length, PAGE_BYTES)
            for beyond in [n for n in pages if n > number or (n == number and not start)]:
                del pages[beyond]
            if number in pages:
                pages[number] = pages[number][:start] + bytes(PAGE_BYTES - start)
        self.size = length

    def put(self, op: Op, start: int, stop: int) -> None:
        """The bytes [start, stop) of the file as the write `op` has them."""
        assert op.kind == "write" and op.offset <= start and stop <= op.end, (op, start, stop)
        if stop <= start:
            return
        if op.data is None:
            self.write_zeros(start, stop - start)
        else:
            self.write(start, op.data[start - op.offset : stop - op.offset])

    def fingerprint(self) -> object:
        """Equal for equal bytes.  Pages are shared by copies, so that most compare at once."""
        return self.size, frozenset(self._pages.items())

    def apply(self, op: Op) -> None:
        if op.kind == "truncate":
            self.truncate(op.offset)
        else:
            self.put(op, op.offset, op.end)


class Node:
    """One file: what is durable, what a reader sees now, and the changes between the two."""

    __slots__ = ("durable", "live", "lost", "pending")

    def __init__(self, durable: Content) -> None:
        self.durable = durable
        self.live = durable  # The same object until something is pending.
        self.pending: list[tuple[int, Op]] = []
        self.lost = False

    def fork(self) -> Node:
        other = Node(self.durable.fork())
        if self.live is not self.durable:
            other.live = self.live.fork()
            other.pending = list(self.pending)
            other.lost = self.lost
        return other

    def change(self, serial: int, op: Op) -> None:
        if self.live is self.durable:
            self.live = self.durable.fork()
        self.live.apply(op)
        self.pending.append((serial, op))

    def sync(self) -> None:
        if self.lost:
            for _, op in self.pending:
                self.durable.apply(op)
        else:
            self.durable = self.live
        self.pending = []

    def sync_failed(self) -> None:
        """The kernel calls the dirty pages clean: readable still, and no later sync writes them."""
        self.lost = self.lost or bool(self.pending)
        self.pending = []

    def settle(self) -> None:
        self.durable = self.live
        self.pending = []
        self.lost = False

    def fingerprint(self) -> object:
        """Equal for files that are alike now and after every crash."""
        durable = self.durable.fingerprint()
        if self.live is self.durable:
            return durable
        return durable, self.live.fingerprint(), tuple(op for _, op in self.pending), self.lost


class State:
    """A whole disk at one point of its trace."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.names: dict[str, int] = {"": DIRECTORY}
        self.names_durable: dict[str, int] = {"": DIRECTORY}
        self.names_pending: list[tuple[int, Mapping[str, int | None]]] = []
        self.serial = 0
        self.inode_next = 1

    def fork(self) -> State:
        other = State()
        other.nodes = {inode: node.fork() for inode, node in self.nodes.items()}
        other.names = dict(self.names)
        other.names_durable = dict(self.names_durable)
        other.names_pending = list(self.names_pending)
        other.serial = self.serial
        other.inode_next = self.inode_next
        return other

    def apply(self, op: Op) -> None:
        self.serial += 1
        kind = op.kind
        if kind in ("write", "truncate"):
            self.nodes[op.inode].change(self.serial, op)
        elif kind in ("sync", "sync_data"):
            self.nodes[op.inode].sync()
        elif kind == "sync_failed":
            self.nodes[op.inode].sync_failed()
        elif kind == "sync_dir":
            self._sync_dir(op.path)
        elif kind == "create":
            assert op.inode == self.inode_next, op
            self.inode_next += 1
            self.nodes[op.inode] = Node(Content())
            self._rename({op.path: op.inode})
        elif kind == "mkdir":
            self._rename({op.path: DIRECTORY})
        elif kind == "rename":
            self._rename({op.path: None, op.target: self.names[op.path]})
        else:
            assert kind == "unlink", kind
            self._rename({op.path: None})

    def _rename(self, names: Mapping[str, int | None]) -> None:
        assign_names(self.names, names)
        self.names_pending.append((self.serial, names))

    def _sync_dir(self, directory: str) -> None:
        rest: list[tuple[int, Mapping[str, int | None]]] = []
        for serial, names in self.names_pending:
            inside = {p: i for p, i in names.items() if p.rpartition("/")[0] == directory}
            if not inside:
                rest.append((serial, names))
            elif len(inside) == len(names) or None in inside.values():
                # A rename to another directory is never durable as a removal alone.
                assign_names(self.names_durable, names)
            else:
                assign_names(self.names_durable, inside)
                rest.append((serial, {p: i for p, i in names.items() if p not in inside}))
        self.names_pending = rest

    def settle(self) -> None:
        """Everything a reader sees is durable from now on."""
        for node in self.nodes.values():
            node.settle()
        self.names_durable = dict(self.names)
        self.names_pending = []

    def is_durable(self) -> bool:
        """Whether every power loss gives the same image."""
        nodes = self.nodes
        return not self.names_pending and not any(
            inode != DIRECTORY and (nodes[inode].pending or nodes[inode].lost)
            for inode in self.names_durable.values()
        )

    def fingerprint(self) -> object:
        """Equal for disks that are alike now and after every crash, whatever made them."""
        if not self.names_pending:
            return self._named(self.names)
        pending = tuple(tuple(changes.items()) for _, changes in self.names_pending)
        return self._named(self.names), self._named(self.names_durable), pending

    def _named(self, names: Mapping[str, int]) -> object:
        nodes = self.nodes
        return frozenset(
            (path, nodes[inode].fingerprint() if inode != DIRECTORY else None)
            for path, inode in names.items()
        )


def assign_names(names: dict[str, int], changes: Mapping[str, int | None]) -> None:
    for path, inode in changes.items():
        if inode is None:
            names.pop(path, None)
        else:
            names[path] = inode
