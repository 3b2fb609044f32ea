"""Whether `strace` is there and may trace, and how it is called."""

from __future__ import annotations

import contextlib
import functools
import shutil
import subprocess
from collections.abc import Iterator

STRACE = ("strace", "-f", "-qq")
# Leaves all other calls at full speed; but then signals are not delivered to the first thread.
QUICKLY = "--seccomp-bpf"


@functools.cache
def strace_works() -> bool:
    if shutil.which("strace") is None:
        return False
    probe = [*STRACE, QUICKLY, "-o", "/dev/null", "-e", "trace=fsync", "true"]
    return subprocess.run(probe, capture_output=True).returncode == 0


@contextlib.contextmanager
def traced(pid: int, calls: str, rule: str) -> Iterator[None]:
    """Have strace inject something into the calls of a process that runs."""
    command = [*STRACE, "-o", "/dev/null", "-p", str(pid)]
    strace = subprocess.Popen(
        [*command, "-e", f"trace={calls}", "-e", f"inject={rule}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        strace.kill()
        strace.wait()
