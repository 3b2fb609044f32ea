"""Which tests a change can break: the import graph backwards from the files that changed.

A file depends on the modules that it imports, and a test on the conftests of its directories too.
What starts a server process depends on all that a server imports.  Tests are chosen nearest first,
as many as fit into the time; what did not fit is counted and left to the whole suite.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

UNKNOWN_SECONDS = 2.0  # of a file that was never measured
SPARK_SECONDS = 20.0  # the start of a session
FAR = 1_000  # further than any path

# A module that starts another program, and the module which that program begins with.
STARTS = {"src/headrace/testing/process.py": "src/headrace/cli/serve.py"}
# Tests of what is no module: by the beginning of its path.
OTHERS = {
    "run": ("tests/test_run.py",),
    "requirements/": ("tests/test_run.py",),
    "docs/": ("tests/test_docs.py",),
    "README.md": ("tests/test_docs.py",),
    "ops/": ("tests/test_docs.py",),
    "bench/": (
        "tests/test_bench.py",
        "tests/test_bench_load.py",
        "tests/test_bench_jobs.py",
        "tests/test_bench_peers.py",
    ),
    "tests/mutants/": ("tests/regressions/test_seeded_bugs.py",),
    "pyproject.toml": ("tests/test_run.py", "tests/test_exports.py"),
}
ALWAYS = ("tests/test_tidy.py",)
BASE_VARIABLE = "HEADRACE_TEST_BASE"  # the commit to compare with
MAINS = ("main", "origin/main")
# An import statement.  To parse all of each file would take ten times as long.
IMPORT = re.compile(
    r"^[ \t]*((?:import|from) [^\n(]*(?:\((?:[^)#]|#.*)*\))?)",
    re.MULTILINE,
)


class Plan(NamedTuple):
    """Test files to run, nearest first, and those that did not fit."""

    chosen: list[str]
    left_out: list[str]
    seconds: float


def git(root: Path, *words: str) -> list[str]:
    """The lines that a git command prints; none where it fails."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else []


def starting_point(root: Path, branch: str = "main") -> str:
    """The commit that a change is compared with: where this branch left `branch`."""
    return (git(root, "merge-base", branch, "HEAD") or ["HEAD"])[0]


def earlier_point(root: Path, commits: int) -> str:
    """What to compare with in any clone, that of `main` too.

    The commit that `HEADRACE_TEST_BASE` names; or where this branch left `main`; or, on `main`
    itself, the commit so many merges and direct commits ago, or the oldest that the clone has.
    """
    given = os.environ.get(BASE_VARIABLE)
    if given:
        found = git(root, "rev-parse", "--verify", f"{given}^{{commit}}")
        if not found:
            raise ValueError(f"{BASE_VARIABLE} is {given}, which this clone does not have")
        return found[0]
    head = git(root, "rev-parse", "HEAD")
    for branch in MAINS:
        left = git(root, "merge-base", branch, "HEAD")
        if left and left != head:
            return left[0]
    history = git(root, "rev-list", "--first-parent", f"--max-count={commits + 1}", "HEAD")
    return history[-1] if history else "HEAD"


def changed_files(root: Path, base: str | None = None) -> list[str]:
    """Files that differ from `base` (where this branch left `main`), or that git does not know."""
    found = git(root, "diff", "--name-only", base or starting_point(root))
    found += git(root, "ls-files", "--others", "--exclude-standard")
    return sorted(set(found))


def python_files(root: Path) -> set[str]:
    """Every module and program of the checkout, relative to it."""
    return {
        path.relative_to(root).as_posix()
        for top in ("src", "tests", "bench", "tools")
        for path in (root / top).rglob("*.py")
    }


def module_file(files: set[str], module: str) -> str | None:
    """The file of a module of this checkout."""
    path = module.replace(".", "/")
    names = (f"{base}{path}{end}" for base in ("src/", "") for end in (".py", "/__init__.py"))
    return next((name for name in names if name in files), None)


def imported(root: Path, files: set[str], file: str) -> Iterator[str]:
    """Files of this checkout that a file imports, wherever in it."""
    for statement in IMPORT.findall((root / file).read_text(encoding="utf-8")):
        try:
            (node,) = ast.parse(statement).body
        except SyntaxError:
            continue  # a line of prose
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if module_file(files, name) else node.module for name in inner]
        yield from filter(None, (module_file(files, name) for name in names))


def importers(root: Path) -> dict[str, set[str]]:
    """For each file, those that depend on it at once."""
    files = python_files(root)
    back: dict[str, set[str]] = defaultdict(set)
    for file in files:
        for used in imported(root, files, file):
            back[used].add(file)
        for folder in Path(file).parents:
            conftest = (folder / "conftest.py").as_posix()
            if conftest in files:
                back[conftest].add(file)
    for starter, first in STARTS.items():
        back[first].add(starter)
    return back


def is_test(file: str) -> bool:
    path = Path(file)
    return path.parts[0] == "tests" and path.name.startswith("test_") and path.suffix == ".py"


def tests_of_other(root: Path, file: str) -> list[str]:
    """Test files for a changed file that is no module."""
    found = [test for start, tests in OTHERS.items() if file.startswith(start) for test in tests]
    if file.startswith("src/headrace/") and not file.endswith(".py"):
        mirror = root / "tests" / "unit" / Path(*Path(file).parts[2:-1])
        while not mirror.is_dir():
            mirror = mirror.parent
        found += [path.relative_to(root).as_posix() for path in sorted(mirror.rglob("test_*.py"))]
    return found


def distances(root: Path, changed: Iterable[str]) -> dict[str, int]:
    """How far each test file is from the nearest file that changed."""
    back = importers(root)
    far: dict[str, int] = {}
    queue: deque[tuple[str, int]] = deque((file, 0) for file in changed)
    while queue:
        file, steps = queue.popleft()
        if file in far:
            continue
        far[file] = steps
        queue.extend((user, steps + 1) for user in sorted(back.get(file, ())))
        queue.extend((test, steps + 1) for test in tests_of_other(root, file))
    return {file: far[file] for file in far if is_test(file) and (root / file).is_file()}


def tests_on_other_ground(root: Path, changed: Iterable[str]) -> set[str]:
    """Test files that changed, or one of the files below `tests/` that they are made of."""
    back = importers(root)
    found: set[str] = set()
    queue = deque(file for file in changed if file.startswith("tests/"))
    while queue:
        file = queue.popleft()
        if file not in found:
            found.add(file)
            queue.extend(user for user in back.get(file, ()) if user.startswith("tests/"))
    return {file for file in found if is_test(file)}


def plan(root: Path, changed: Iterable[str], costs: Mapping[str, float], seconds: float) -> Plan:
    """Choose tests nearest first within so many seconds; a test that changed is always run."""
    far = distances(root, changed)
    far |= {file: min(far.get(file, FAR), 1) for file in ALWAYS if (root / file).is_file()}
    cost = {file: costs.get(file, UNKNOWN_SECONDS) for file in far}
    chosen: list[str] = []
    left_out: list[str] = []
    spent = 0.0
    for file in sorted(far, key=lambda file: (far[file], cost[file], file)):
        starts_spark = file.startswith("tests/spark/") and not any(
            other.startswith("tests/spark/") for other in chosen
        )
        price = cost[file] + (SPARK_SECONDS if starts_spark else 0.0)
        if far[file] == 0 or file in ALWAYS or spent + price <= seconds:
            chosen.append(file)
            spent += price
        else:
            left_out.append(file)
    return Plan(chosen, left_out, spent)
