"""The syncs of a shard: one at a time, at once, after a while, or in a window that is held open.

Only this file decides when the log is synced and in which thread.  The rules it owns:

* at most one sync is asked for or runs; what is written meanwhile is for the next one;
* a sync that nobody waits for is put off, and cut short by one that somebody waits for;
* a window holds up those that somebody waits for, so that more can join them (0: not at all);
* without a window they wait for the turns that still bring more (`gathering.py`), unless there is
  nothing more to come;
* syncs run in a lane, while the loop works on.  For a lone commit, with nothing else to do and a
  disk that is quick, the loop syncs itself: two hand-overs between threads cost as much again.

It knows neither commits nor what a failed sync means: `shard.py` does.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.clock import NS_PER_US
from headrace.core.error_frames import without_frames
from headrace.core.limits import KIB
from headrace.core.runtime import Runtime, Thunk
from headrace.core.telemetry import LATENCY_NS, SECONDS_PER_NS, Histogram
from headrace.storage.wal.batch_writer import BatchWriter, SyncGroup
from headrace.storage.wal.gathering import Gathering

# Upper bounds of the histogram of sync times, in microseconds.
SYNC_MICROS = (50, 100, 250, 500, 1_000, 5_000, 10_000, 50_000, 100_000)

# Of what the average of sync times keeps when another is added: all but one part in so many.
AVERAGE_PARTS = 8
# A sync counts for at most so many times the bound: one that met a busy disk says little of it.
SLOW_PARTS_MAX = 2
# How many syncs the lane does after one of the loop's that was slow: each time twice as many, since
# where all processors are busy the lane's can be the quicker ones.  After one that somebody else
# had to wait for it does the most at once.
LANE_SYNCS_MIN = 8
LANE_SYNCS_MAX = 256
# What the loop syncs itself has at most so many bytes: more takes longer than the average did.
INLINE_BYTES_MAX = 64 * KIB


class InlineChoice:
    """Whether the loop may sync by itself: not if it takes long, nor if others came meanwhile.

    `ns_max` bounds the average time of the last syncs; 0: it never may.
    """

    def __init__(self, ns_max: int) -> None:
        self._ns_max = ns_max
        self._average_ns = ns_max  # until a sync was quicker, the disk is taken for a slow one
        self._lane_syncs = 0  # the next so many
        self._after_slow = LANE_SYNCS_MIN  # so many when one of the loop's is slow

    def may(self) -> bool:
        return self._average_ns < self._ns_max and not self._lane_syncs

    def took(self, ns: int) -> None:
        """Count a sync, wherever it ran."""
        counted = min(ns, SLOW_PARTS_MAX * self._ns_max)
        self._average_ns += (counted - self._average_ns) // AVERAGE_PARTS
        if self._lane_syncs:
            self._lane_syncs -= 1

    def did(self, ns: int, *, held_up: bool) -> None:
        """Leave the next syncs to the lane if one of the loop's was slow or held somebody up."""
        if ns > self._ns_max:
            self._lane_syncs = self._after_slow
            self._after_slow = min(2 * self._after_slow, LANE_SYNCS_MAX)
        else:
            self._after_slow = max(self._after_slow // 2, LANE_SYNCS_MIN)
        if held_up:
            self._lane_syncs = LANE_SYNCS_MAX


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
        inline_us_max: int,
    ) -> None:
        self.total = 0
        self.inline_total = 0  # of these, by the loop itself
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
        self._choice = InlineChoice(inline_us_max * NS_PER_US)
        self._gathering = Gathering(runtime, self._begin)

    @property
    def running(self) -> bool:
        """Whether what is written now has to wait for the sync after this one."""
        return self.asked and self._hurry is None and not self._gathering.is_open

    def want(self, *, urgent: bool, lone: bool = False) -> None:
        """Sync what is written: soon, or if it is urgent as soon as the window allows.

        `lone`: one commit waits for it and nothing was settled in this turn, so that it may be
        done before this returns.
        """
        if not urgent:
            if not self.asked:
                self.asked = True
                self._put_off(self._interval_ms)
        elif not self.asked:
            self.asked = True
            if self._open_window():
                self._put_off(self.window_ms)
            elif lone and self._runtime.idle():
                group = self._writer.begin_sync()
                if self._is_quick(group):
                    self._sync_inline(group)
                else:
                    self._submit(group)
            else:
                self._gathering.open()
        elif self._hurry is not None and not self._windowed and not self._gathering.is_open:
            if self._open_window():
                self._runtime.later(self.window_ms, self._hurry)
            elif lone and self._runtime.idle():
                self._begin()
            else:
                self._gathering.open()

    def join(self) -> None:
        """Say that one more waits for the next sync, so that it may be worth to wait for others."""
        self._gathering.join()

    def _put_off(self, delay_ms: int) -> None:
        self._hurry = self._runtime.submit_after(
            delay_ms, self._lane, lambda: self._sync(self._writer.begin_sync()), self._done
        )

    def _begin(self) -> None:
        """Sync in the lane now, with what was put off if there is any."""
        if self._hurry is not None:
            self._hurry()
            self._hurry = None
        else:
            self._submit(self._writer.begin_sync())

    def _submit(self, group: SyncGroup) -> None:
        self._runtime.submit(self._lane, lambda: self._sync(group), self._done)

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

    def _is_quick(self, group: SyncGroup) -> bool:
        """Whether a sync is short enough for the loop, as far as the last ones tell."""
        small = group.target - self._writer.durable <= INLINE_BYTES_MAX
        return small and len(group.files) == 1 and self._choice.may()

    def _sync_inline(self, group: SyncGroup) -> None:
        value: object = None
        failure: Exception | None = None
        try:
            value = self._sync(group)
        except Exception as error:  # noqa: BLE001 - whatever it is, the lane would hand it over
            failure = error  # nothing may come between that could be interrupted in turn
        except BaseException:
            # A signal ends what the program was doing, and not what somebody waits for.
            self._submit(group)
            raise
        self.inline_total += 1
        held_up = not self._runtime.idle()  # before anybody hears, and has the loop do more
        self._done(value, without_frames(failure) if failure is not None else None)
        self._choice.did(self.last_ns, held_up=held_up)

    def _sync(self, group: SyncGroup) -> object:
        started = self._runtime.clock.monotonic_ns()
        self._writer.sync(group)
        return group.target, started, self._runtime.clock.monotonic_ns() - started

    def _done(self, value: object, error: BaseException | None) -> None:
        windowed, self._windowed = self._windowed, False
        self.windows_total += windowed
        self.asked, self._hurry = False, None
        self._gathering.end()  # one that was put off may have come before it
        if error is not None:
            self._heard(error if isinstance(error, OSError) else OSError(str(error)))
            return
        assert isinstance(value, tuple)
        target, begun_ns, taken_ns = value
        self.last_ns = taken_ns
        self._window_end_ns = begun_ns if windowed else 0
        self.total += 1
        self._writer.note_durable(target)
        try:
            self._heard(None)
        finally:  # after those who waited have been answered
            self.micros.observe(taken_ns // NS_PER_US)
            self.durations.observe(taken_ns)
            self._choice.took(taken_ns)
