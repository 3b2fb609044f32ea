"""Running `engine_worker.py` as a real process: starting it, hearing it, killing it.

Tests get `Workers` by the fixture `workers`, which ends every process it started.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec
import pytest

from tests.harness.ledger import Acked, Ledger
from tests.harness.traffic import TopicDump
from tests.support.checkout import ROOT, SOURCES
from tests.support.warm_processes import WarmPopen

WORKER = ROOT / "tests" / "harness" / "engine_worker.py"
# Long enough for a busy machine; only a process that hangs is waited for so long.
PATIENCE_SECONDS = 60.0

Line = list[object]


class Worker:
    """One process and what it has said."""

    def __init__(self, command: Sequence[str], errors: IO[bytes]) -> None:
        self._errors = errors
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")} | {
            "PYTHONPATH": os.pathsep.join([str(SOURCES), str(ROOT)]),
        }
        popen = subprocess.Popen if command else WarmPopen
        self.process = popen(
            [*command, sys.executable, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
        )
        assert self.process.stdout is not None
        self._out = self.process.stdout.fileno()
        self._rest = b""
        self._ended = False
        self.pid = 0  # of the Python process itself, whatever runs it

    def tell(self, job: Mapping[str, object] | str) -> None:
        line = job if isinstance(job, str) else msgspec.json.encode(job).decode()
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def hear(self, until: str = "", seconds: float = PATIENCE_SECONDS) -> Iterator[Line]:
        """Whole lines as they come, to the first that begins with `until`, or to the end."""
        deadline = time.monotonic() + seconds
        while not self._ended:
            *lines, self._rest = self._rest.split(b"\n")
            for at, text in enumerate(lines):
                line = msgspec.json.decode(text)
                if line[0] == "started":
                    self.pid = line[1]
                    continue
                if line[0] == until:
                    self._rest = b"\n".join([*lines[at + 1 :], self._rest])
                    yield line
                    return
                yield line
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._out], [], [], left)[0]:
                return
            data = os.read(self._out, 1 << 18)
            self._rest += data
            self._ended = not data

    def last(self, until: str) -> Line:
        """The line that begins with this word, which must come."""
        lines = list(self.hear(until))
        assert lines and lines[-1][0] == until, (until, lines[-3:], self.complaints())
        return lines[-1]

    def ask(self, command: str) -> Line:
        """One further command of a job that obeys, and its answer."""
        self.tell(command)
        answer = next(self.hear(), None)
        assert answer is not None and answer[0] in ("done", "failed"), (answer, self.complaints())
        return answer

    def kill(self) -> None:
        """SIGKILL, now, and wait until it is dead."""
        if self.process.poll() is None:
            if self.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
            self.process.kill()
        self.process.wait(PATIENCE_SECONDS)

    def end(self) -> int:
        """Wait for it to end by itself; its exit code."""
        return self.process.wait(PATIENCE_SECONDS)

    def complaints(self) -> str:
        """What it wrote to its standard error."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def discard(self) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout, self._errors):
            assert pipe is not None
            pipe.close()


class Workers:
    """Starts processes, each ready with its imports before it is needed."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._all: list[Worker] = []
        self._ready: list[Worker] = []

    def spawn(self, *command: str) -> Worker:
        """A process under a command such as strace; it waits for its job."""
        errors = (self._scratch / f"errors-{len(self._all)}").open("w+b")
        worker = Worker(command, errors)
        self._all.append(worker)
        return worker

    def start(self, **job: object) -> Worker:
        """Give a job to a process that waits for one, and have the next one start."""
        worker = self._ready.pop() if self._ready else self.spawn()
        self._ready.append(self.spawn())
        worker.tell(job)
        return worker

    def discard(self) -> None:
        for worker in self._all:
            worker.discard()


@pytest.fixture
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    made = Workers(tmp_path_factory.mktemp("workers"))
    try:
        yield made
    finally:
        made.discard()


@pytest.fixture(scope="module")
def make_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Workers]]:
    """For a start that the tests of a module share."""
    made: list[Workers] = []

    def make() -> Workers:
        made.append(Workers(tmp_path_factory.mktemp("workers")))
        return made[-1]

    yield make
    for one in made:
        one.discard()


class Story:
    """What the processes on one directory said, entered into a ledger."""

    def __init__(self, seed: int) -> None:
        self.ledger = Ledger(seed)
        self.checkpoints = 0
        self.merges = 0
        self.errors: list[Line] = []
        self._stat = (0, 0)
        self._found: dict[str, TopicDump] = {}

    def follow(self, run: int, lines: Iterator[Line], *, live: bool = False) -> list[str]:
        """Enter every line; returns their first words."""
        words = []
        for line in lines:
            words.append(str(line[0]))
            self.enter(run, line, live)
        return words

    def enter(self, run: int, line: Line, live: bool) -> None:
        ledger, (word, *rest) = self.ledger, line
        if word == "dump":
            found = msgspec.convert(rest[0], TopicDump, builtin_types=())
            self._found[found.name] = found
        elif word == "dumped":
            found_all, self._found = self._found, {}
            ledger.compare(found_all, live=live)
        elif word == "ready":
            self._stat = (0, 0)
            self._found = {}
        elif word == "again":
            ledger.retrying(*rest)
        elif word == "retry":
            ledger.retried(rest[0], rest[1], Acked(*rest[2]))
        elif word == "stat":
            self.checkpoints += rest[0] - self._stat[0]
            self.merges += rest[1] - self._stat[1]
            self._stat = (rest[0], rest[1])
        elif word in ("go", "ack", "del", "drop", "err"):
            self._operation(ledger.op(run, rest[0]), str(word), rest)

    def _operation(self, op: object, word: str, rest: list[object]) -> None:
        ledger = self.ledger
        if word == "go":
            ledger.began(op, rest[1])
        elif word == "ack":
            ledger.appended(op, Acked(*rest[1]))
        elif word == "del":
            ledger.deleted(op, rest[1])
        elif word == "drop":
            ledger.dropped(op, rest[1])
        else:
            self.errors.append([op, *rest[1:]])
            ledger.refused(op, unknown=rest[2] == "unknown")


@pytest.fixture(scope="session")
def make_story() -> type[Story]:
    return Story
