"""Writing bytes past transports: the same to very many connections, or many to one.

Only this file writes bytes to a socket beside its transport, and only inside one call on the loop
thread, so that no transport changes meanwhile and none is closed.  What goes to many is framed
once, and between two writes no bytecode runs.  What the kernel does not take whole goes on through
the transport, which also finds out what is wrong with a connection that takes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import repeat
from typing import Final

from headrace.wire.exchange import Outlet
from headrace.wire.open_streams import write_one_by_one

# Fewer than this are written through their transports.
DIRECT_MIN: Final = 8


def write_to_all(outlets: Sequence[Outlet], data: bytes) -> None:
    """Write the same bytes to streams of one kind that have room, whatever carries them."""
    if len(outlets) < DIRECT_MIN:
        write_one_by_one(outlets, data)
        return
    descriptors = [outlet.descriptor for outlet in outlets]
    if min(descriptors) < 0:
        both = list(zip(outlets, descriptors, strict=True))
        write_one_by_one([outlet for outlet, descriptor in both if descriptor < 0], data)
        outlets = [outlet for outlet, descriptor in both if descriptor >= 0]
        descriptors = [descriptor for _, descriptor in both if descriptor >= 0]
    if outlets:
        framed = outlets[0].framed(data)
        taken, size = _write_each(descriptors, framed), len(framed)
        if taken.count(size) < len(outlets):
            for outlet, count in zip(outlets, taken, strict=True):
                if count < size:
                    outlet.write_framed(framed[count:])


def write_now(descriptor: int, data: bytes | memoryview) -> int:
    """Write what the kernel takes at once, and return how much that was.

    It raises if the connection has failed: of one that is not read from nobody else would hear it.
    """
    try:
        return os.write(descriptor, data)
    except BlockingIOError:
        return 0


def _write_each(descriptors: Sequence[int], data: bytes) -> list[int]:
    """Write to each, and return how much it took: nothing, where that failed."""
    taken: list[int] = []
    each = iter(descriptors)
    while len(taken) < len(descriptors):
        try:
            taken.extend(map(os.write, each, repeat(data)))
        except OSError:
            taken.append(0)
    return taken
