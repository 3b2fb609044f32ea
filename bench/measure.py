"""What every case measures with: processes, CPU, latencies, resident memory, directories.

CPU is the process's own (`process_time`: all threads, user and system), because other work on the
machine stretches the wall clock.  It makes CPU dearer too, by taking caches and the sibling
hardware thread, so a cost is measured in several rounds and the cheapest one is the figure; the
median is shown beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.storage.block import Batch

ROOT = Path(__file__).resolve().parent.parent
PAYLOAD_BYTES = 150
BATCH_RECORDS = 100
PAGE_BYTES = 4096
QUICK_VARIABLE = "HEADRACE_TEST_BENCH_QUICK"
QUICK_FILE_BYTES = 8 << 20

# A figure: one number, or the rounds it was taken in.
Measured = float | list[float]


def payloads(count: int, size: int = PAYLOAD_BYTES) -> list[bytes]:
    """Distinct JSON documents of exactly `size` bytes."""
    made = []
    for n in range(count):
        head = b'{"order":%d,"customer":"c-%d","note":"' % (n, n % 97)
        made.append(head + b"x" * (size - len(head) - 2) + b'"}')
    assert all(len(payload) == size for payload in made)
    return made


BATCH = Batch(payloads(BATCH_RECORDS))
SINGLE = Batch(payloads(1))


def best_cost(samples: Sequence[float]) -> float:
    """The cheapest round: other work on the machine can only add."""
    return min(samples)


def percentile(samples: Sequence[float], part: float) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def cpu_rounds(rounds: int, units: int, work: Callable[[], object]) -> list[float]:
    """Microseconds of CPU per unit, one figure a round."""
    costs = []
    for _ in range(rounds):
        started = time.process_time()
        work()
        costs.append((time.process_time() - started) / units * 1e6)
    return costs


def rates(costs_us: Sequence[float]) -> list[float]:
    """Units per second from microseconds per unit."""
    return [1e6 / cost for cost in costs_us]


def status_kb(field: str) -> int:
    """A field of /proc/self/status, in KiB: VmRSS now, VmHWM at its highest."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise LookupError(field)


def resident_mb() -> float:
    return status_kb("VmRSS") * 1024 / 1e6


def peak_mb() -> float:
    return status_kb("VmHWM") * 1024 / 1e6


def reset_peak() -> None:
    """Let VmHWM start from what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def written_bytes() -> int:
    """Bytes this process caused to be written to storage so far."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("write_bytes:"):
            return int(line.split()[1])
    raise LookupError("write_bytes")


def drop_page_cache(directory: str) -> None:
    """Ask the kernel to forget the pages of all files below a directory."""
    for path in Path(directory).rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


class BareFile:
    """A zeroed file, to learn what `fdatasync` alone costs beside the engine's."""

    def __init__(self, directory: str, pages: int) -> None:
        self._fd = os.open(f"{directory}/bare", os.O_RDWR | os.O_CREAT)
        self._pages = pages
        self._at = 0
        os.pwrite(self._fd, bytes(pages * PAGE_BYTES), 0)
        os.fsync(self._fd)

    def sync_us(self) -> float:
        """Write a little on a page of its own; the time of its `fdatasync`."""
        os.pwrite(self._fd, b"x" * 300, self._at % self._pages * PAGE_BYTES)
        self._at += 1
        started = time.perf_counter_ns()
        os.fdatasync(self._fd)
        return (time.perf_counter_ns() - started) / 1e3

    def close(self) -> None:
        os.close(self._fd)


def loop_step_ns() -> float:
    """CPU of one step of an empty loop: how fast the machine is just now."""
    steps = 200_000
    samples = []
    for _ in range(10):
        started = time.thread_time_ns()
        for _ in range(steps):
            pass
        samples.append((time.thread_time_ns() - started) / steps)
    return min(samples)


def loop_name() -> str:
    return _loop_factory().__module__.partition(".")[0]


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def run_loop(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on the event loop that a server would use."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


# For engines that take appends as fast as they can: with less, sealing would refuse some of them.
MEMORY_BUDGET_BYTES = 512 << 20


def settings_of(directory: str, **given: Any) -> Settings:
    """The defaults, except what a case needs; quick runs do not prepare large log files."""
    ours = {"memory_budget_bytes": MEMORY_BUDGET_BYTES}
    small = {"wal_file_bytes": QUICK_FILE_BYTES} if QUICK_VARIABLE in os.environ else {}
    return Settings(data_dir=directory, **{**ours, **small, **given})


async def open_as_server(directory: str, **settings: Any) -> Engine:
    """An engine on the running loop, with what `headrace serve` does to the process."""
    import pyarrow as pa

    # All of the server, which generators do not need.
    from headrace.cli.serve import GC_THRESHOLDS, do_without_pandas

    do_without_pandas()
    pa.set_cpu_count(1)
    engine = await Engine.open_async(directory, settings_of(directory, **settings))
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    return engine


@contextlib.contextmanager
def opened(directory: str, **settings: Any) -> Iterator[Engine]:
    """An engine in a directory; let go of without a checkpoint."""
    engine = Engine.open(directory, settings_of(directory, **settings))
    try:
        yield engine
    finally:
        engine.abandon()


# Never by itself: for cases that measure something else than checkpoints.
NO_CHECKPOINTS: dict[str, Any] = {"checkpoint_wal_bytes": 1 << 40, "memory_budget_bytes": 1 << 36}


def step(name: str, **arguments: Any) -> Any:
    """Run `bench.<module>:<function>` in a process of its own and return what it returns.

    None when it ended itself by SIGKILL, as steps that play a crash do.
    """
    done = subprocess.run(
        _command(name, arguments),
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
        preexec_fn=die_with_parent,
    )
    if done.returncode == -signal.SIGKILL:
        return None
    if done.returncode != 0:
        raise RuntimeError(f"step {name} failed with {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


class Partner:
    """A step that answers line by line, so that two of them can take turns."""

    def __init__(self, name: str, **arguments: Any) -> None:
        self._process = subprocess.Popen(
            _command(name, arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
            preexec_fn=die_with_parent,
        )

    def ask(self, question: str = "") -> Any:
        self.tell(question)
        return self.hear()

    def tell(self, question: str = "") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(question + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("a step ended without an answer")
        return json.loads(answer)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def __enter__(self) -> Partner:
        return self

    def __exit__(self, *_: object) -> None:
        """However the block ended, the process is gone."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl


def die_with_parent() -> None:
    """For `preexec_fn`: a process that we start ends when we do, however that happens."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _command(name: str, arguments: dict[str, Any]) -> list[str]:
    return [sys.executable, "-m", "bench", "--step", name, json.dumps(arguments)]


def run_step(name: str, arguments: str) -> int:
    """The other side of `step`."""
    module, _, function = name.partition(":")
    answer = getattr(importlib.import_module(f"bench.{module}"), function)(**json.loads(arguments))
    print(json.dumps(answer), flush=True)
    return 0


def die() -> None:
    """End as `kill -9` would."""
    os.kill(os.getpid(), signal.SIGKILL)
