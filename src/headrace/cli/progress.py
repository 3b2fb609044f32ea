"""How far long work is, as a bar on stderr, for people who watch a terminal."""

from __future__ import annotations

from typing import TextIO

from headrace.core.clock import Clock

BAR_CELLS = 30
BAR_INTERVAL_NS = 100_000_000
BAR_COLUMNS_MAX = 118


class ProgressBar:
    """One line that is drawn over and over; nothing at all when nobody watches."""

    def __init__(self, stream: TextIO, clock: Clock, *, shown: bool) -> None:
        self._stream = stream
        self._clock = clock
        self._shown = shown
        self._drawn_ns = -BAR_INTERVAL_NS
        self._width = 0

    def __call__(self, what: str, done: int, of: int) -> None:
        now = self._clock.monotonic_ns()
        if not self._shown or (now - self._drawn_ns < BAR_INTERVAL_NS and done < of):
            return
        self._drawn_ns = now
        part = min(1.0, done / of) if of else 1.0
        cells = "#" * round(part * BAR_CELLS)
        text = f"[{cells:<{BAR_CELLS}}] {part:4.0%} {what}"
        self._draw(text)

    def _draw(self, text: str) -> None:
        self._stream.write("\r" + text.ljust(self._width)[:BAR_COLUMNS_MAX])
        self._width = len(text)
        self._stream.flush()

    def clear(self) -> None:
        if self._width:
            self._draw("")
            self._stream.write("\r")
            self._stream.flush()
