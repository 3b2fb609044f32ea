"""Parts of a run sent from here by threads, begun in their order; or by tasks of Spark.

The columns are read, checked and sent by code that lets go of the interpreter, so that threads are
enough; a server takes in less than two of them can send.  The rule it owns: the first error ends
all of it, and whatever is stored by then is known when it runs again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from headrace.core.errors import HeadraceError
from headrace.lake.loading.producers import Fed, LoadTarget, Part, Parts, feed_part, feed_parts
from headrace.lake.tables.tasks import Failed, Runner
from headrace.spark.connection import connect

WORKERS_MAX: Final = 16
LOOK_SECONDS: Final = 0.2
# After Ctrl-C: what is being sent may end.  It need not, since a repeat is known.
LEAVE_SECONDS: Final = 3.0

# How far it is: what is stored so far, and which share of the bytes was read.
Watch = Callable[[Fed, float], None]


def bring(
    target: LoadTarget,
    parts: Sequence[Part],
    runner: Runner | None = None,
    *,
    workers: int = 1,
    in_order: bool = False,
    watch: Watch | None = None,
) -> Fed:
    """Send all parts: from here by `workers` threads, or as jobs of a runner.

    The first error ends it.  Where parts are sent `in_order`, one comes after the other.
    """
    if runner is None:
        return _Crew(target, parts, 1 if in_order else workers).run(watch)
    total = Fed()
    each: list[list[Part]] = [list(parts)] if in_order else [[part] for part in parts]
    for answer in runner(feed_parts, [Parts(target, some) for some in each]):
        if isinstance(answer, Failed):
            raise answer.error
        total.add(answer)
    return total


class _Stopped(Exception):
    """Somebody else has failed, or been told to end."""


class _Crew:
    """Threads over one list of parts."""

    def __init__(self, target: LoadTarget, parts: Sequence[Part], workers: int) -> None:
        self._target = target
        self._parts = parts
        self._workers = max(1, min(workers, WORKERS_MAX, len(parts)))
        self._lock = threading.Lock()
        self._begun = 0
        self._done = Fed()
        self._done_bytes = 0
        self._active: dict[int, Fed] = {}
        self._bytes = sum(part.size for part in parts)
        self._errors: dict[int, BaseException] = {}
        self._stopping = False

    def run(self, watch: Watch | None) -> Fed:
        threads = [
            threading.Thread(target=self._work, name=f"feed-{number}", daemon=True)
            for number in range(self._workers)
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(LOOK_SECONDS)
                    if watch is not None:
                        watch(*self._so_far())
        finally:
            self._stop()
            for thread in threads:
                thread.join(LEAVE_SECONDS / self._workers)
        if self._errors:
            raise self._errors[min(self._errors)]
        return self._so_far()[0]

    def _so_far(self) -> tuple[Fed, float]:
        with self._lock:
            total, read = Fed(), self._done_bytes
            total.add(self._done)
            for at, fed in self._active.items():
                total.add(fed)
                read += min(fed.read_bytes, self._parts[at].size)
        return total, read / self._bytes if self._bytes else 1.0

    def _stop(self) -> None:
        self._stopping = True

    def _check(self) -> None:
        if self._stopping:
            raise _Stopped

    def _work(self) -> None:
        at = -1
        try:
            with connect(self._target.connection) as client:
                while (at := self._next()) >= 0:
                    part, fed = self._parts[at], self._active[at]
                    feed_part(client, self._target, part, fed, self._check)
                    self._over(at)
        except _Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - the waiting thread raises it
            self._errors[at] = error
        finally:
            if at in self._errors:
                self._stop()

    def _next(self) -> int:
        """The next part to begin; -1: there is none."""
        with self._lock:
            if self._stopping or self._begun == len(self._parts):
                return -1
            self._active[self._begun] = Fed()
            self._begun += 1
            return self._begun - 1

    def _over(self, at: int) -> None:
        part = self._parts[at]
        with self._lock:
            self._done.add(self._active.pop(at))
            self._done_bytes += part.size


def goes_on(error: HeadraceError) -> HeadraceError:
    """The error of a run that the same command would go on with."""
    fix = "; ".join(filter(None, (error.fix, "then run the same command again: it goes on")))
    return type(error)(error.message, fix=fix, detail=error.detail)
