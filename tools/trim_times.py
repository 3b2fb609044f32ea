"""Print how long `malloc_trim` takes on a heap of 1 GB, and how long it holds up other threads.

python tools/trim_times.py
"""

from __future__ import annotations

import threading
import time

from headrace.cli.compose import resident_bytes
from headrace.server.freed_memory import trim_heap

HEAP_BYTES = 1 << 30
PIECE_BYTES = 64 << 10
ALLOCATED_BYTES = 16 << 10  # by a thread that stands for the loop
MS = 1_000


def longest_gap(until: threading.Event) -> float:
    """The longest that a loop waited for memory, in seconds."""
    longest, last = 0.0, time.perf_counter()
    while not until.is_set():
        bytearray(ALLOCATED_BYTES)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return longest


def measure(what: str, *, in_thread: bool) -> None:
    before, done, cpu = resident_bytes(), threading.Event(), [0.0]

    def trim() -> None:
        started = time.thread_time()
        trim_heap()
        cpu[0] = time.thread_time() - started
        done.set()

    started = time.perf_counter()
    if in_thread:
        thread = threading.Thread(target=trim)
        thread.start()
        held = longest_gap(done)
        thread.join()
    else:
        trim()
        held = time.perf_counter() - started
    print(
        f"{what:24} {'in a thread' if in_thread else 'in the loop':12}"
        f"{before >> 20:5} -> {resident_bytes() >> 20:4} MiB"
        f"{cpu[0] * MS:8.1f} ms of CPU, loop held up {held * MS:6.1f} ms"
    )


def main() -> None:
    measure("a small process", in_thread=False)
    for in_thread in (False, True):
        pieces = [bytearray(b"x") * PIECE_BYTES for _ in range(HEAP_BYTES // PIECE_BYTES)]
        measure("1 GB in use", in_thread=in_thread)
        del pieces[::2]
        measure("every other piece let go", in_thread=in_thread)
        measure("the same again", in_thread=in_thread)
        del pieces


if __name__ == "__main__":
    main()
