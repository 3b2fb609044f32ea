"""The syncs of a shard: one at a time, at once, after a while, or in a window that is held open.

Only this file decides when the log is synced and in which thread.  The rules it owns:

* at most one sync is asked for or runs; what is written meanwhile is for the next one;
* a sync that nobody waits for is put off, and cut short by one that somebody waits for;
* a window holds up those that somebody waits for, so that more can join them (0: not at all).

It knows neither commits nor what a failed sync means: `shard.py` does.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.runtime import Runtime, Thunk
from headrace.core.telemetry import LATENCY_NS, SECONDS_PER_NS, Histogram
from headrace.storage.wal.batch_writer import BatchWriter, SyncGroup

# Upper bounds of the histogram of sync times, in microseconds.
SYNC_MICROS = (50, 100, 250, 500, 1_000, 5_000, 10_000, 50_000, 100_000)


class LogSyncs:
    """When and where one shard's log is synced.  `heard` is told on the loop thread."""

    def __init__(
        self,
        runtime: Runtime,
        lane: str,
        writer: BatchWriter,
        heard: Callable[[OSError | None], None],
        *,
        interval_ms: int,
    ) -> None:
        self.total = 0
        self.micros = Histogram(SYNC_MICROS)
        self.durations = Histogram(LATENCY_NS, SECONDS_PER_NS)
        self.last_ns = 0  # how long the last one took
        self.window_ms = 0
        self.windows_total = 0  # syncs that waited for it
        self.asked = False  # one runs, or will
        self._hurry: Thunk | None = None  # cuts a delayed sync short
        self._windowed, self._opened_ns = False, 0  # somebody waits for it nevertheless; since then
        self._window_end_ns = 0  # when the last sync began, if it was in a window
        self._runtime = runtime
        self._lane = lane
        self._writer = writer
        self._heard = heard
        self._interval_ms = interval_ms

    @property
    def running(self) -> bool:
        """Whether what is written now has to wait for the sync after this one."""
        return self.asked and self._hurry is None

    def want(self, *, urgent: bool) -> None:
        """Sync what is written: soon, or if it is urgent as soon as the window allows."""
        if self.asked:
            if urgent and self._hurry is not None and not self._windowed:
                if self._open_window():
                    self._runtime.later(self.window_ms, self._hurry)
                    return
                self._hurry()
                self._hurry = None
            return
        self.asked = True
        if urgent and not self._open_window():
            group = self._writer.begin_sync()
            self._runtime.submit(self._lane, lambda: self._sync(group), self._done)
        else:
            self._hurry = self._runtime.submit_after(
                self.window_ms if urgent else self._interval_ms,
                self._lane,
                lambda: self._sync(self._writer.begin_sync()),
                self._done,
            )

    def here(self) -> None:
        """Sync what is written now, in this thread.  The lane must be idle."""
        try:
            synced = self._sync(self._writer.begin_sync())
        except OSError as error:
            self._done(None, error)
            return
        self._done(synced, None)

    def widen(self, window_ms: int) -> None:
        """Let syncs that somebody waits for wait so long for more to join them; 0: not at all."""
        self.window_ms = window_ms
        if not window_ms and self._windowed and self._hurry is not None:
            self._hurry()

    def put_off_ns(self, written_ns: int) -> int:
        """How long what was written then has waited on purpose for the last sync to begin."""
        return max(self._window_end_ns - max(written_ns, self._opened_ns), 0)

    def _open_window(self) -> bool:
        self._windowed = self.window_ms > 0
        self._opened_ns = self._runtime.clock.monotonic_ns()
        return self._windowed

    def _sync(self, group: SyncGroup) -> object:
        started = self._runtime.clock.monotonic_ns()
        self._writer.sync(group)
        return group.target, started, self._runtime.clock.monotonic_ns() - started

    def _done(self, value: object, error: BaseException | None) -> None:
        windowed, self._windowed = self._windowed, False
        self.windows_total += windowed
        self.asked, self._hurry = False, None
        if error is not None:
            self._heard(error if isinstance(error, OSError) else OSError(str(error)))
            return
        assert isinstance(value, tuple)
        target, begun_ns, self.last_ns = value
        self._window_end_ns = begun_ns if windowed else 0
        self.total += 1
        self.micros.observe(self.last_ns // 1000)
        self.durations.observe(self.last_ns)
        self._writer.note_durable(target)
        self._heard(None)
