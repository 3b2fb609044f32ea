"""How long each part of a run of tests took: said when the part is over, and once more at the end.

Tests of Spark run in a process of their own, beside the other parts.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Self


class Parts:
    """The parts of one run, in the order in which they ended."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._ended: list[str] = []

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure what the block does."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.ended(name, time.monotonic() - started)

    def ended(self, name: str, seconds: float) -> None:
        self._ended.append(f"{name} {seconds:.0f} s")
        print(f"took: {self._ended[-1]}", flush=True)

    def summary(self) -> str:
        """All of them in a line, and how long it took together: some ran beside others."""
        return f"{', '.join(self._ended)}; together {time.monotonic() - self._started:.0f} s"


class Beside:
    """A command that runs beside the block; what it prints is shown when it has ended."""

    def __init__(self, name: str, command: Sequence[str], parts: Parts) -> None:
        self._name, self._parts = name, parts
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the block
        self._started = time.monotonic()
        self._seconds = 0.0
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._said, stderr=subprocess.STDOUT
        )
        self._waiter = threading.Thread(target=self._wait)
        self._waiter.start()

    def _wait(self) -> None:
        self.process.wait()
        self._seconds = time.monotonic() - self._started

    def code(self) -> int:
        """Wait for its end, show what it said, and return its exit code."""
        self._waiter.join()
        self._said.seek(0)
        sys.stdout.buffer.write(self._said.read())
        sys.stdout.flush()
        self._parts.ended(f"{self._name} (beside the others)", self._seconds)
        return self.process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.kill()
        self._waiter.join()
        self._said.close()
