"""Who holds memory: each kind of thing, how many there are, their bytes, the most there may be.

Only this file adds up the memory that a server may take.  A part that keeps something for its
callers says so once, when it is made: what it is, what bounds it, and how to ask for its figures;
they are asked at a scrape, and nothing is counted for them anywhere else.  `docs/operate/memory.md`
is made from the same lines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from headrace.core.limits import MIB
from headrace.core.settings import Settings
from headrace.core.telemetry import Registry

Read = Callable[[], int]

# The interpreter, the libraries and their threads, before anybody has asked for anything.
BASE_BYTES: Final = 128 * MIB
# A body that is being parsed: as sent, as records, as a block, and as the bytes of the log.
COPIES_OF_A_BODY: Final = 4
# What a checkpoint and a merge work on, in segments.
SEGMENTS_AT_WORK: Final = 2
# Of all bytes held, what the heap loses to fragments and to what is freed and not given back yet.
HEAP_SHARE: Final = 8


class Holder(NamedTuple):
    """One kind of thing that is held in memory."""

    kind: str  # a label of metrics
    what: str
    bound: str  # the names of the settings and limits that bound it
    one: int  # bytes of one, at most
    most: int  # bytes of all, at most; 0: they count as part of another kind
    objects: Read | None  # how many there are; None: only bytes are counted
    bytes: Read  # about how many bytes they have


class Holders:
    """What one server holds.

    >>> holders = Holders()
    >>> holders.add(Holder("note", "Notes.", "notes_max", 10, 100, lambda: 2, lambda: 20))
    >>> holders.bytes_of("note"), holders.objects_of("note"), holders.most
    (20, 2, 100)
    """

    def __init__(self) -> None:
        self._all: dict[str, list[Holder]] = {}

    def add(self, holder: Holder) -> None:
        """Ask for the figures of this kind from now on; a kind may be held by several parts."""
        self._all.setdefault(holder.kind, []).append(holder)

    @property
    def kinds(self) -> dict[str, Holder]:
        """Each kind, as its first part describes it."""
        return {kind: parts[0] for kind, parts in self._all.items()}

    def bytes_of(self, kind: str) -> int:
        """About how many bytes are held as this kind."""
        return sum(part.bytes() for part in self._all[kind])

    def objects_of(self, kind: str) -> int:
        """How many of this kind are held."""
        return sum(part.objects() for part in self._all[kind] if part.objects is not None)

    @property
    def most(self) -> int:
        """Bytes that all kinds together may have."""
        return sum(parts[0].most for parts in self._all.values())

    def watch(self, registry: Registry, settings: Settings) -> None:
        """Add the series of all kinds, of those too that are added later."""
        registry.read_gauges(
            "headrace_held_bytes",
            "About what is held in memory, by kind; memory.md has the bound of each.",
            ("kind",),
            lambda: [((kind,), self.bytes_of(kind)) for kind in self._all],
        )
        registry.read_gauges(
            "headrace_held_objects",
            "How many are held in memory, by kind.",
            ("kind",),
            lambda: [
                ((kind,), self.objects_of(kind))
                for kind, parts in self._all.items()
                if parts[0].objects is not None
            ],
        )
        registry.gauge(
            "headrace_held_bytes_max",
            "The most that the process may take by its settings: the budget of memory.md.",
            lambda: memory_budget(settings, self.most),
        )


def memory_budget(settings: Settings, held: int) -> int:
    """Bytes that a server with these settings may take, of which `held` are for what is held.

    >>> memory_budget(Settings(), 1 << 30) > 1 << 30
    True
    """
    work = (
        COPIES_OF_A_BODY * max(settings.body_bytes_max, settings.websocket_message_bytes_max)
        + settings.arrow_bytes_max
        + SEGMENTS_AT_WORK * settings.segment_max_bytes
    )
    return BASE_BYTES + work + held + held // HEAP_SHARE
