"""What each test costs: a pytest plugin that measures, and the page that shows it.

`./run test --times` runs the default suite with this plugin, then rewrites `tests/times.json` (the
cost of each file, which `./run test --changed` plans with) and `docs/internals/test-times.md`.

CPU is that of the test's process and of all that it started, directly or not, setup and teardown
included: of the processes that have ended, and of those that run on, as Java does for Spark.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "internals" / "test-times.md"
COSTS = ROOT / "tests" / "times.json"
VARIABLE = "HEADRACE_TEST_TIMES"  # the directory that measurements go to
SLOWEST = 40
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
DIRECTORY_DEPTH = 3  # tests/unit/engine


class Cost(NamedTuple):
    """What one test, or several together, took."""

    tests: int = 0
    cpu: float = 0.0
    wall: float = 0.0

    def plus(self, other: Cost) -> Cost:
        return Cost(self.tests + other.tests, self.cpu + other.cpu, self.wall + other.wall)


def cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used) + sum(running_seconds(os.getpid()))


def running_seconds(pid: int) -> Iterator[float]:
    """What each process below this one has used, with those it waited for."""
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            for child in map(int, path.read_text().split()):
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                yield sum(map(int, fields[11:15])) / TICKS_PER_SECOND
                yield from running_seconds(child)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    started, used = time.monotonic(), cpu_seconds()
    yield
    wall, cpu = time.monotonic() - started, cpu_seconds() - used
    line = json.dumps([item.nodeid, round(cpu, 3), round(wall, 3)])
    with open(Path(os.environ[VARIABLE]) / f"{os.getpid()}.jsonl", "a", encoding="utf-8") as file:
        file.write(line + "\n")


def measured(directory: Path) -> dict[str, Cost]:
    """The cost of each test, by its id."""
    found: dict[str, Cost] = {}
    for path in sorted(directory.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            name, cpu, wall = json.loads(line)
            found[name] = Cost(1, cpu, wall)
    return found


def summed(costs: Iterable[tuple[str, Cost]]) -> dict[str, Cost]:
    """Costs of the same name added up."""
    total: dict[str, Cost] = defaultdict(Cost)
    for name, cost in costs:
        total[name] = total[name].plus(cost)
    return dict(total)


def by_file(costs: dict[str, Cost]) -> dict[str, Cost]:
    return summed((name.partition("::")[0], cost) for name, cost in costs.items())


def directory_of(file: str) -> str:
    """The directory that the page adds a file to."""
    parts = Path(file).parent.parts[:DIRECTORY_DEPTH]
    return "/".join(parts) if parts[:1] == ("tests",) else "examples in src and docs"


def page_of(costs: dict[str, Cost]) -> str:
    """The page: cost by directory, and the slowest tests."""
    rooms = summed((directory_of(file), cost) for file, cost in by_file(costs).items())
    total = summed(("all", cost) for cost in costs.values()).get("all", Cost())
    slowest = sorted(costs.items(), key=lambda item: -max(item[1].cpu, item[1].wall))[:SLOWEST]
    lines = [
        "# What the tests cost",
        "",
        "`./run test --times` measures the default suite and rewrites this page.  CPU counts all",
        "processes that a test started, setup and teardown included, and for Spark the Java that",
        "its tests share.  Times on the clock are from workers that share the cores, so they are",
        "longer than those of a test run alone.",
        "",
        "## By directory",
        "",
        "| directory | tests | CPU s | clock s |",
        "|---|---:|---:|---:|",
    ]
    for room, cost in sorted(rooms.items(), key=lambda item: -item[1].cpu):
        lines.append(f"| {room} | {cost.tests} | {cost.cpu:.0f} | {cost.wall:.0f} |")
    lines.append(f"| **all** | {total.tests} | {total.cpu:.0f} | {total.wall:.0f} |")
    lines += ["", f"## The {SLOWEST} slowest tests", "", "| test | CPU s | clock s |"]
    lines.append("|---|---:|---:|")
    for name, cost in slowest:
        lines.append(f"| `{name.replace('|', '/')}` | {cost.cpu:.1f} | {cost.wall:.1f} |")
    return "\n".join(lines) + "\n"


def write_costs(costs: dict[str, Cost]) -> None:
    """Rewrite the page and the table that `--changed` plans with."""
    PAGE.write_text(page_of(costs), encoding="utf-8")
    files = {
        file: round(max(cost.cpu, cost.wall), 1) for file, cost in sorted(by_file(costs).items())
    }
    text = json.dumps(files, indent=0)
    COSTS.write_text(text + "\n", encoding="utf-8")


def known_costs() -> dict[str, float]:
    """Seconds by file, as last measured."""
    return dict(json.loads(COSTS.read_text(encoding="utf-8"))) if COSTS.exists() else {}
