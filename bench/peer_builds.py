"""Peers that have no package: built once by cargo, at a version that is written down here.

They are kept outside the checkout, each version in a directory of its own, so that a new pin is
built anew.  Where there is no cargo, or the crate cannot be had, the reason is returned in one
line, and the table says it in the place of a figure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench.measure import die_with_parent

BUILD_SECONDS = 7_200.0
PROGRESS_SECONDS = 15.0


class Crate(NamedTuple):
    """What is built, and the program that comes of it."""

    name: str
    version: str
    program: str

    @property
    def root(self) -> Path:
        return cache() / "cargo" / f"{self.name}-{self.version}"

    @property
    def path(self) -> Path:
        return self.root / "bin" / self.program

    @property
    def work(self) -> Path:
        """What is compiled so far, for a build that was interrupted."""
        return self.root / "build"


# By the first word of the rows that need them.
CRATES = {
    "durable-streams-rust": Crate("durable-streams", "0.1.5", "durable-streams-server"),
    "s2-lite": Crate("s2-cli", "0.43.4", "s2"),
}


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base, "headrace-bench")


def cargo_install(crate: Crate, say: Callable[[str], None]) -> str | None:
    """The reason, if it did not work."""
    if crate.path.exists():
        return None
    cargo = shutil.which("cargo")
    if cargo is None:
        return f"{crate.name} is built with cargo, which is not on PATH"
    name = f"{crate.name}@{crate.version}"
    say(f"building {name} with cargo into {crate.root}: once, and it takes minutes")
    started = time.monotonic()
    command = [cargo, "install", "--locked", "--root", str(crate.root)]
    command += ["--target-dir", str(crate.work), name]
    problem = build(command, crate.name, say)
    if problem is None and not crate.path.exists():
        problem = f"{name} has no program {crate.program}"
    if problem is None:
        shutil.rmtree(crate.work, ignore_errors=True)
        say(f"  {crate.name}: built in {time.monotonic() - started:.0f} s")
    return problem


def build(
    command: list[str], name: str, say: Callable[[str], None], seconds: float = BUILD_SECONDS
) -> str | None:
    """Run it, telling now and then how far it is; the reason, if it failed."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            preexec_fn=die_with_parent,
        )
    except OSError as error:
        return f"{command[0]}: {error}"
    ended_late = threading.Event()

    def give_up() -> None:
        ended_late.set()
        process.kill()

    timer = threading.Timer(seconds, give_up)
    timer.start()
    progress = Progress(name, say)
    assert process.stderr is not None
    try:
        with process.stderr as lines:
            for line in lines:
                progress.heard(line)
        code = process.wait()
    finally:
        timer.cancel()
        process.kill()
        process.wait()
    if ended_late.is_set():
        return f"{name} was not built within {seconds:.0f} s"
    return None if code == 0 else progress.reason(command)


class Progress:
    """What cargo says, told in a line every few seconds; and why it failed, if it did."""

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        self._name = name
        self._say = say
        self._told = time.monotonic()
        self._compiled = 0
        self._last = ""
        self._error = ""

    def heard(self, line: str) -> None:
        line = line.strip()
        if not line:
            return
        self._last = line
        if line.startswith("error") and not self._error:
            self._error = line
        if line.startswith("Compiling "):
            self._compiled += 1
            if time.monotonic() - self._told > PROGRESS_SECONDS:
                self._told = time.monotonic()
                self._say(f"  {self._name}: {self._compiled} crates so far, now {line[10:]}")

    def reason(self, command: list[str]) -> str:
        """The first error, which the others follow from."""
        return f"{self._error or self._last} ({Path(command[0]).name} {' '.join(command[1:])})"
