"""Streams that go when they are empty: which to look at, and when.

Only this file decides that a stream with `delete_on_empty` is over: it holds no record, and nobody
has written to it, or created it, for that long.  What is held in memory is one small entry for
each such stream.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

from headrace.core.errors import HeadraceError, TopicNotEmpty
from headrace.core.runtime import Ticket
from headrace.engine.engine import Engine
from headrace.wire.s2.stream_own import decode_own

log = logging.getLogger("headrace.s2")

# Streams that are looked at in one sweep.
SWEEP_STREAMS_MAX: Final = 1_000
# One that holds records is looked at again after its age, or after so long if that is less; one
# that could not be removed after so long.
LOOK_AGAIN_MS: Final = 60_000
SECOND_MS: Final = 1_000
# Entries of streams that are looked at earlier, or no more, beyond as many as there are.
STALE_MIN: Final = 64


class EmptyStreams:
    """The streams of one server that are to go when they are empty."""

    def __init__(self, engine: Engine, remove: Callable[[str], Ticket[None]]) -> None:
        self._engine = engine
        self._remove = remove
        self._due: list[tuple[int, str]] = []  # a heap: when, which topic
        self._watched: dict[str, int] = {}  # the next time of each; other entries are stale

    def __len__(self) -> int:
        return len(self._watched)

    def watch(self, name: str, min_age_s: int, since_ms: int) -> None:
        """Look at a stream when it may be over; 0 seconds: look at it no more."""
        if not min_age_s:
            self._watched.pop(name, None)
            return
        self._look_at(name, since_ms + min_age_s * SECOND_MS)

    def _look_at(self, name: str, due_ms: int) -> None:
        """Look at a stream then, or earlier if that was said before."""
        if self._watched.get(name, due_ms + 1) <= due_ms:
            return
        self._watched[name] = due_ms
        heappush(self._due, (due_ms, name))
        if len(self._due) > 2 * len(self._watched) + STALE_MIN:
            self._due = [(due, watched) for watched, due in self._watched.items()]
            heapify(self._due)

    def sweep(self) -> None:
        """Look at the streams whose time has come, and remove those that are over."""
        now_ms = self._engine.clock.now_ms()
        for _ in range(SWEEP_STREAMS_MAX):
            if not self._due or self._due[0][0] > now_ms:
                return
            due_ms, name = heappop(self._due)
            if self._watched.get(name) == due_ms:
                del self._watched[name]
                self._look(name, now_ms)

    def forget(self, name: str) -> None:
        """Look at a stream no more: it is gone."""
        self._watched.pop(name, None)

    def is_over(self, name: str) -> bool:
        """Whether a stream is to go, by what it is now: it may be another one than at first."""
        over_ms = self._over_ms(name)
        return over_ms is not None and over_ms <= self._engine.clock.now_ms()

    def _over_ms(self, name: str) -> int | None:
        """When a stream is over, or for one that holds records may be; None: never."""
        topic = self._engine.find(name)
        if topic is None:
            return None
        try:
            info = self._engine.streams.info(name)
        except HeadraceError:
            return None  # it is being created or deleted
        min_age_ms = decode_own(info.state.own).config.min_age_secs * SECOND_MS
        if not min_age_ms:
            return None
        if topic.count:
            return self._engine.clock.now_ms() + min(min_age_ms, LOOK_AGAIN_MS)
        return info.written_ms + min_age_ms

    def _look(self, name: str, now_ms: int) -> None:
        over_ms = self._over_ms(name)
        if over_ms is None:
            return
        if over_ms > now_ms:
            self._look_at(name, over_ms)
        else:
            self._remove(name).when_done(lambda done: self._removed(name, done))

    def _removed(self, name: str, done: Ticket[None]) -> None:
        if done.error is not None and not isinstance(done.error, TopicNotEmpty):
            log.warning("an empty stream stays for now: %s", done.error)
        over_ms = self._over_ms(name)
        if over_ms is not None:  # it is not over any more, or has to be tried again
            rest_ms = SECOND_MS if done.error is None else LOOK_AGAIN_MS
            self._look_at(name, max(over_ms, self._engine.clock.now_ms() + rest_ms))
