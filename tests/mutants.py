"""What `./run test --mutants` runs: seeded bugs, each of which must turn a test red.

The bugs are in tests/mutants/*.toml.  For each one, the sources and the tests are copied, the bug
is put in, and each test that the bug names must fail.  A bug that one of them does not notice, one
whose place in the source is not found exactly once, and one that does not even run all count as
failures.  The same tests pass first without any bug, so that red means noticed.

`--changed` takes the bugs of what changed: their source, their entry, their tests or what these are
made of.  `--minutes` takes those first, and then others, each in an order drawn by the commit,
until the time is up; it says which ones it did not come to.  Both compare with where the branch
left `main`; on `main` itself with its state of a few merges ago, or with the commit that
HEADRACE_TEST_BASE names.

`tests/mutants.py --page` rewrites the table in docs/internals/mutants.md.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests import changed  # noqa: E402 - the checkout is on the path only now

BUGS = ROOT / "tests" / "mutants"
PAGE = ROOT / "docs" / "internals" / "mutants.md"
TABLE_BEGIN = "<!-- table: python tests/mutants.py --page -->"
TABLE_END = "<!-- end of table -->"

JOBS = 2
SECONDS_MAX = 120  # for the tests of one bug, unless it says otherwise
BASELINE_SECONDS_MAX = 900
COMMITS_BACK = 30  # how far back a change goes on `main`: merges and direct commits
COPIED = ("src", "tests", "docs", "pyproject.toml")
PYTEST_TESTS_FAILED = 1
TAIL_LINES = 12  # of the tests' output, shown for a bug that was not noticed


@dataclass(frozen=True)
class Mutant:
    """One seeded bug."""

    name: str
    part: str  # the file it is listed in: a heading of the table
    file: str  # relative to src/headrace
    old: str
    new: str
    breaks: str  # the promise that no longer holds
    tests: tuple[str, ...]
    seconds: float = SECONDS_MAX

    def mutate(self, source: str) -> str:
        """The source with the bug; `ValueError` unless its place is found exactly once."""
        found = source.count(self.old)
        if found != 1:
            raise ValueError(f"{self.file}: the text to replace occurs {found} times, not once")
        return source.replace(self.old, self.new)


@dataclass(frozen=True)
class Verdict:
    """How it went with one bug."""

    mutant: Mutant
    noticed: bool
    seconds: float
    what: str  # the test that failed, or why the bug counts as not noticed
    output: str = ""


def parse(text: str) -> list[Mutant]:
    """The seeded bugs of one file."""
    content = tomllib.loads(text)
    mutants: list[Mutant] = []
    for entry in content["mutant"]:
        entry["tests"] = tuple(entry["tests"])
        for side in ("old", "new"):
            entry[side] = entry[side].removesuffix("\n")
        mutants.append(Mutant(part=content["part"], **entry))
    return mutants


def load() -> list[Mutant]:
    """Every seeded bug, in the order of the files."""
    mutants: list[Mutant] = []
    for path in sorted(BUGS.glob("*.toml")):
        mutants += parse(path.read_text(encoding="utf-8"))
    names = [mutant.name for mutant in mutants]
    twice = {name for name in names if names.count(name) > 1}
    assert not twice, f"names are used twice: {sorted(twice)}"
    return mutants


def obstacle(mutant: Mutant) -> str | None:
    """Why this bug cannot be put in or its tests cannot be run, if so."""
    path = ROOT / "src" / "headrace" / mutant.file
    try:
        changed = mutant.mutate(path.read_text(encoding="utf-8"))
        compile(changed, mutant.file, "exec", dont_inherit=True)
    except (OSError, ValueError, SyntaxError) as error:
        return str(error)
    for test in mutant.tests:
        if not (ROOT / test.partition("::")[0]).exists():
            return f"there is no {test}"
    return None if mutant.tests else "it names no test"


# Choosing


def listed_at(root: Path, commit: str) -> set[Mutant]:
    """The bugs that a commit had, as far as their lists can still be read."""
    found: set[Mutant] = set()
    for file in changed.git(root, "ls-tree", "--name-only", commit, "tests/mutants/"):
        with contextlib.suppress(tomllib.TOMLDecodeError, TypeError, KeyError):
            found.update(parse("\n".join(changed.git(root, "show", f"{commit}:{file}")) + "\n"))
    return found


def touched(root: Path, mutants: Sequence[Mutant], base: str) -> list[Mutant]:
    """The bugs that a change since `base` concerns: by source, then by entry, then by tests."""
    files = changed.changed_files(root, base)
    tests = changed.tests_on_other_ground(root, files)
    before = listed_at(root, base)
    of_source = [m for m in mutants if f"src/headrace/{m.file}" in files]
    of_entry = [m for m in mutants if m not in before]
    of_tests = [m for m in mutants if tests & {test.partition("::")[0] for test in m.tests}]
    return list(dict.fromkeys([*of_source, *of_entry, *of_tests]))


def in_order(root: Path, mutants: Sequence[Mutant], base: str, seed: str) -> list[Mutant]:
    """First those that a change since `base` concerns, else in an order drawn by the seed."""
    drawn = list(mutants)
    random.Random(seed).shuffle(drawn)
    return list(dict.fromkeys([*touched(root, drawn, base), *drawn]))


# Running


def copy_tree(source: Path, target: Path, copy: Callable[[str, str], object]) -> None:
    """The part of a checkout that the tests need.  Compiled files come along: they stay valid."""
    target.mkdir()
    for name in COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, copy_function=copy)
        else:
            copy(str(source / name), str(target / name))


def run_tests(root: Path, arguments: Sequence[str], seconds: float) -> tuple[int | None, str]:
    """(exit status, output) of pytest in a copy; the status is None when the time was up."""
    scratch = root / "scratch"
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=short", "-rfE"]
    command += ["-m", "not long", "-p", "no:cacheprovider"]
    command += [f"--basetemp={scratch}", f"--timeout={seconds:.0f}"]
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    # Where it is set, pytest tells every difference in full: of long lists that takes minutes.
    environment.pop("CI", None)
    with subprocess.Popen(
        [*command, *arguments],
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as running:
        try:
            output, _ = running.communicate(timeout=seconds)
            return running.returncode, output
        except subprocess.TimeoutExpired:
            # With what it started: tests of real processes have some.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            return None, running.communicate()[0]


def baseline(root: Path, mutants: Sequence[Mutant], jobs: int) -> str | None:
    """Run every named test without a bug; what is wrong, if anything is."""
    where = "import headrace, sys; sys.stdout.write(headrace.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", where],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root / "src")},
        capture_output=True,
        text=True,
    )
    if not Path(found.stdout or "/").is_relative_to(root):
        return f"the copy in {root} is not what is imported: {found.stdout}{found.stderr}"
    named = {test for mutant in mutants for test in mutant.tests}
    # A file covers the tests in it, and a test its parameters: nothing has to run twice.
    whole = {t for t in named if not {t.partition(mark)[0] for mark in ("::", "[")} & (named - {t})}
    tests = sorted(whole)
    arguments = ["-n", str(jobs), "--dist", "worksteal", *tests]
    status, output = run_tests(root, arguments, BASELINE_SECONDS_MAX)
    return None if status == 0 else output


def judge(base: Path, mutant: Mutant) -> Verdict:
    """Put one bug into a copy of its own; each of its tests must fail, one after the other."""
    started = time.monotonic()

    def verdict(noticed: bool, what: str, output: str = "") -> Verdict:
        return Verdict(mutant, noticed, time.monotonic() - started, what, output)

    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="mutant-", dir=base.parent) as directory:
        root = Path(directory) / "copy"
        copy_tree(base, root, os.link)
        path = root / "src" / "headrace" / mutant.file
        source = path.read_text(encoding="utf-8")
        path.unlink()  # the name alone: the file belongs to every copy
        path.write_text(mutant.mutate(source), encoding="utf-8")
        # It may be as long and, in whole seconds, as old as the file it replaces.
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()
        for test in mutant.tests:
            status, output = run_tests(root, ["-x", test], mutant.seconds)
            if status == 0:
                return verdict(False, f"survived {test}", output)
            if status is None:
                return verdict(False, f"{test} took more than {mutant.seconds:.0f} s", output)
            if status != PYTEST_TESTS_FAILED:
                return verdict(False, f"{test} did not run, pytest says {status}", output)
            found = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
            failed.append(found[1].removeprefix("tests/") if found else test)
    return verdict(True, " and ".join(failed))


def run(
    mutants: Sequence[Mutant], jobs: int, *, baseline_first: bool, minutes: float = math.inf
) -> int:
    """Put in one after the other; no further one when the minutes have passed."""
    started = time.monotonic()
    deadline = started + minutes * 60
    verdicts: dict[str, Verdict] = {}

    def note(verdict: Verdict) -> None:
        verdicts[verdict.mutant.name] = verdict
        say(f"[{len(verdicts):>3}/{len(mutants)}] {line_of(verdict)}")
        if not verdict.noticed:
            tail = verdict.output.splitlines()[-TAIL_LINES:]
            say("\n".join(f"    {line}" for line in tail))

    def judge_in_time(base: Path, mutant: Mutant) -> Verdict | None:
        return judge(base, mutant) if time.monotonic() < deadline else None

    for mutant in mutants:
        why = obstacle(mutant)
        if why is not None:
            note(Verdict(mutant, False, 0, why))
    left = [mutant for mutant in mutants if mutant.name not in verdicts]
    with tempfile.TemporaryDirectory(prefix="headrace-mutants-") as directory:
        base = Path(directory) / "base"
        copy_tree(ROOT, base, shutil.copy2)
        say(f"{len(left)} seeded bugs to put in" + "; first their tests without" * baseline_first)
        complaint = baseline(base, left, jobs) if baseline_first else None
        if complaint is not None:
            say(f"{complaint}\nthe tests are not green without a seeded bug")
            say(f"0 of {len(mutants)} seeded bugs noticed\n0 passed, {len(mutants)} failed")
            return 1
        shutil.rmtree(base / "scratch", ignore_errors=True)
        say(f"green, {time.monotonic() - started:.0f} s" if baseline_first else "no baseline")
        with ThreadPoolExecutor(jobs) as pool:
            trials = [pool.submit(judge_in_time, base, mutant) for mutant in left]
            for future in as_completed(trials):
                verdict = future.result()
                if verdict is not None:
                    note(verdict)
    return conclude(mutants, verdicts, time.monotonic() - started)


def line_of(verdict: Verdict) -> str:
    word = "noticed" if verdict.noticed else "NOT NOTICED"
    return f"{word:<11} {verdict.mutant.name:<42} {verdict.seconds:5.1f} s  {verdict.what}"


def conclude(mutants: Sequence[Mutant], verdicts: Mapping[str, Verdict], seconds: float) -> int:
    """The closing table and the count; 1 unless every bug that was put in was noticed."""
    say("")
    tried = [verdicts[mutant.name] for mutant in mutants if mutant.name in verdicts]
    for verdict in tried:
        say(line_of(verdict))
    missed = [verdict.mutant for verdict in tried if not verdict.noticed]
    for mutant in missed:
        say(f"not noticed: {mutant.name}, which breaks: {mutant.breaks}")
    left_out = [mutant.name for mutant in mutants if mutant.name not in verdicts]
    if left_out:
        say(f"the time was up before {len(left_out)}: {' '.join(left_out)}")
    noticed = len(tried) - len(missed)
    names = ", ".join(mutant.name for mutant in missed)
    say(
        f"{noticed} of {len(tried)} seeded bugs noticed"
        + f"; not noticed: {names}" * bool(missed)
        + f"; {len(left_out)} not tried" * bool(left_out)
        + f"; {seconds:.0f} s"
    )
    say(f"{noticed} passed, {len(missed)} failed")
    return 1 if missed else 0


def say(text: str) -> None:
    print(text, flush=True)


# The page


def table(mutants: Sequence[Mutant]) -> str:
    """The list for docs/internals/mutants.md."""
    lines: list[str] = []
    for part, members in groupby(mutants, key=lambda mutant: mutant.part):
        lines += [f"## {part}", "", "| Seeded bug | What it breaks | Tests that notice |"]
        lines.append("|---|---|---|")
        for mutant in members:
            tests = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in mutant.tests)
            lines.append(f"| `{mutant.name}` | {mutant.breaks} | {tests} |")
        lines.append("")
    return "\n".join(lines)


def page(mutants: Sequence[Mutant]) -> str:
    """The whole page as it should be."""
    head, begin, rest = PAGE.read_text(encoding="utf-8").partition(TABLE_BEGIN)
    _, end, tail = rest.partition(TABLE_END)
    assert begin and end, f"{PAGE} has lost the marks of its table"
    return f"{head}{begin}\n\n{table(mutants)}\n{end}{tail}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run test --mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="only bugs whose name matches, as wal-*")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"at a time ({JOBS})")
    parser.add_argument("--no-baseline", action="store_true", help="do not run without bugs first")
    parser.add_argument("--list", action="store_true", help="name them and stop")
    parser.add_argument("--page", action="store_true", help="rewrite the table of the docs")
    parser.add_argument("--changed", action="store_true", help="only those of what changed")
    parser.add_argument(
        "--minutes", type=float, help="those of what changed, then others until the time is up"
    )
    options = parser.parse_args()
    mutants = load()
    if options.page:
        PAGE.write_text(page(mutants), encoding="utf-8")
        return 0
    if options.names:
        mutants = [m for m in mutants if any(fnmatchcase(m.name, n) for n in options.names)]
    if options.changed or options.minutes is not None:
        base = changed.earlier_point(ROOT, COMMITS_BACK)
        first = touched(ROOT, mutants, base)
        say(f"{len(first)} of {len(mutants)} seeded bugs are about what changed since {base[:12]}")
        if options.changed and not first:
            return 0
        commit = "".join(changed.git(ROOT, "rev-parse", "HEAD"))
        mutants = first if options.changed else in_order(ROOT, mutants, base, commit)
    if options.list or not mutants:
        say("\n".join(f"{m.name:<42} {m.breaks}" for m in mutants) or "no such bug")
        return 0 if mutants else 1
    minutes = math.inf if options.minutes is None else options.minutes
    return run(mutants, options.jobs, baseline_first=not options.no_baseline, minutes=minutes)


if __name__ == "__main__":
    sys.exit(main())
