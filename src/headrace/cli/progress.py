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
        if not self._shown or (not self._due() and done < of):
            return
        part = min(1.0, done / of) if of else 1.0
        cells = "#" * round(part * BAR_CELLS)
        text = f"[{cells:<{BAR_CELLS}}] {part:4.0%} {what}"
        self._draw(text)

    def count(self, text: str) -> None:
        """Draw a text instead of a bar."""
        if self._shown and self._due():
            self._draw(text)

    def _due(self) -> bool:
        now = self._clock.monotonic_ns()
        if now - self._drawn_ns < BAR_INTERVAL_NS:
            return False
        self._drawn_ns = now
        return True

    def _draw(self, text: str) -> None:
        self._stream.write("\r" + text.ljust(self._width)[:BAR_COLUMNS_MAX])
        self._width = len(text)
        self._stream.flush()

    def clear(self) -> None:
        if self._width:
            self._draw("")
            self._stream.write("\r")
            self._stream.flush()


class Counted:
    """How many, where nobody knows of how many: one line that is drawn over and over."""

    def __init__(self, stream: TextIO, clock: Clock, what: str) -> None:
        self._bar = ProgressBar(stream, clock, shown=stream.isatty())
        self._what = what

    def __call__(self, done: int) -> None:
        self._bar.count(f"{done:,} {self._what}")

    def clear(self) -> None:
        self._bar.clear()
