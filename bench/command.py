"""The command: which cases run, where their data goes, and how the figures are shown."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench import measure, peer_goals, peers
from bench.figures import CASES, FIGURES
from bench.goals import Figure

IN_MEMORY = {"tmpfs", "ramfs"}
SPARK_CASES = "spark_"
RESULTS = measure.ROOT / "bench" / "results"


def main() -> int:
    # Ended from outside, it still removes its directories and stops its servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    options = parse()
    if options.step:
        return measure.run_step(*options.step)
    trouble = trouble_of(options.names, peers.CHOICES if options.peers else CASES)
    if trouble:
        print(trouble, file=sys.stderr)
        return 2
    names = options.names or runnable()
    if options.quick:
        os.environ[measure.QUICK_VARIABLE] = "1"
    parent = options.dir or default_parent()
    if options.peers:
        return compare(options, parent)
    report = {"machine": machine(parent), "quick": options.quick, "figures": []}
    if not options.json:
        print(describe(report["machine"]), flush=True)
        if options.quick:
            print("quick: sizes are too small for the figures to mean anything", flush=True)
    measured: dict[str, measure.Measured] = {}
    for name in [case for case in CASES if case in names]:
        started = time.monotonic()
        found = run_case(name, parent, options)
        measured |= found
        if options.json:
            continue
        print(f"\n{name}, {time.monotonic() - started:.0f} s", flush=True)
        for row in rows_of(name, measured):
            print(as_markdown(row) if options.markdown else shown(row), flush=True)
    if options.json:
        report["figures"] = [row for name in names for row in rows_of(name, measured)]
        print(json.dumps(report, indent=2, ensure_ascii=False))
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./run bench", description="Measure the engine and the server.", allow_abbrev=False
    )
    parser.add_argument("names", nargs="*", help=f"cases, all by default: {', '.join(CASES)}")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument("--markdown", action="store_true", help="a table for docs/internals")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, only to see that it runs")
    parser.add_argument(
        "--peers",
        action="store_true",
        help="ours beside other servers, and the goals beside them;"
        f" which cases (goals): {', '.join(peers.CHOICES)}",
    )
    parser.add_argument(
        "--no-install", action="store_true", help="--peers with those that are installed already"
    )
    parser.add_argument(
        "--save",
        action="store_true",
        help="--peers: keep the report, with what the machine is, in bench/results/",
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="how long http_soak runs (10)")
    parser.add_argument("--wrk", action="store_true", help="http_append with wrk as the generator")
    parser.add_argument("--dir", help="where the data goes; a disk, not memory (/var/tmp)")
    parser.add_argument("--step", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def trouble_of(names: list[str], cases: Sequence[str] = CASES) -> str:
    """Why these cases cannot run; empty when they can."""
    unknown = [name for name in names if name not in cases]
    if unknown:
        return f"no case {', '.join(unknown)}; there are {', '.join(cases)}"
    missing = [name for name in names if name.startswith(SPARK_CASES) and not has_spark()]
    if missing:
        return f"{missing[0]} needs requirements/spark.txt; `./run bench {missing[0]}` installs it"
    return ""


def runnable() -> list[str]:
    """All cases, those of Spark only where it is installed: it is large."""
    if has_spark():
        return list(CASES)
    print("without the cases of Spark, which is not installed", file=sys.stderr, flush=True)
    return [name for name in CASES if not name.startswith(SPARK_CASES)]


def has_spark() -> bool:
    return importlib.util.find_spec("pyspark") is not None


def compare(options: argparse.Namespace, parent: str) -> int:
    """Other servers beside ours, and the goals beside them."""
    about = machine(parent)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    rows = peers.run(parent, options.quick, say, options.names, not options.no_install)
    judgements = peer_goals.judged(rows, peers.GOALS)
    load_after = round(os.getloadavg()[0], 2)
    report = {
        "machine": about,
        "load_after": load_after,
        "quick": options.quick,
        "cases": peers.chosen(options.names),
        "peers": rows,
        "goals": judgements,
    }
    if options.save:
        path = save(report, options.names or [peer_goals.NAME])
        say(f"saved to {path}")
    if options.json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
        return 0
    print(describe(about))
    print(f"load {load_after} after the last case")
    if options.quick:
        print("quick: one short round, too little for the figures to mean anything")
    print(f"\n{peers.EXPLAINED}\n\n{peers.table(rows, options.markdown)}")
    if names := peers.limited(rows):
        print(f"\nthe generator was at its limit, so that rates may be its own: {', '.join(names)}")
    if judgements:
        text = peers.goals_table(judgements, options.markdown)
        print(f"\n{peers.GOALS_EXPLAINED}\n\n{text}")
    return 0


def save(report: dict[str, Any], names: Sequence[str]) -> Path:
    """Keep a report with the others, by what was asked for, in place of an older one."""
    path = RESULTS / f"{'-'.join(names)}.json"
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def run_case(name: str, parent: str, options: argparse.Namespace) -> dict[str, measure.Measured]:
    more: dict[str, Any] = {}
    if name == "http_soak":
        more["minutes"] = options.minutes
    if name == "http_append":
        more["with_wrk"] = options.wrk
    directory = tempfile.mkdtemp(prefix="headrace-bench-", dir=parent)
    try:
        found: dict[str, measure.Measured] = measure.step(
            f"case_{name}:run", directory=directory, quick=options.quick, **more
        )
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    wanted = {figure.name for figure in FIGURES if figure.case == name}
    assert found.keys() == wanted, found.keys() ^ wanted
    return found


def value_of(figure: Figure, measured: measure.Measured) -> float:
    """The best round where there are several: the cheapest cost, the highest rate."""
    if not isinstance(measured, list):
        return measured
    return max(measured) if figure.is_rate else min(measured)


def rows_of(case: str, measured: dict[str, measure.Measured]) -> list[dict[str, Any]]:
    """The figures of a case as they are printed, goals computed."""
    figures = [figure for figure in FIGURES if figure.name in measured]
    values = {figure.name: value_of(figure, measured[figure.name]) for figure in figures}
    rows = []
    for figure in figures:
        if figure.case != case:
            continue
        samples = measured[figure.name]
        row: dict[str, Any] = {
            "name": figure.name,
            "case": case,
            "value": values[figure.name],
            "median": median(samples) if isinstance(samples, list) else None,
            "unit": figure.unit,
            "about": figure.about,
            "goal": None,
            "bound": None,
            "met": None,
        }
        if figure.goal is not None:
            row["goal"] = figure.goal.text
            row["bound"] = figure.goal.bound(values)
            row["met"] = figure.goal.met(values[figure.name], values)
        rows.append(row)
    return rows


def shown(row: dict[str, Any]) -> str:
    value = f"{number(row['value'])} {row['unit']}"
    beside = f" (median {number(row['median'])})" if row["median"] is not None else ""
    goal = ""
    if row["goal"] is not None:
        computed = f" = {number(row['bound'])}" if " x " in row["goal"] else ""
        goal = f"{'met' if row['met'] else 'NOT MET'}: {row['goal']}{computed}"
    return f"  {row['name']:34} {value + beside:42} {goal:26} {row['about']}".rstrip()


def as_markdown(row: dict[str, Any]) -> str:
    goal = f"{row['goal']}: {'met' if row['met'] else 'not met'}" if row["goal"] else ""
    cells = (f"`{row['name']}`", f"{number(row['value'])} {row['unit']}", goal, row["about"])
    return f"| {' | '.join(cells)} |"


def number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def default_parent() -> str:
    """The first place that is on a disk."""
    for candidate in ("/var/tmp", str(measure.ROOT), os.path.expanduser("~")):
        if os.access(candidate, os.W_OK) and filesystem_of(candidate) not in IN_MEMORY:
            return candidate
    raise SystemExit("every usual place is in memory; name a directory on a disk with --dir")


def filesystem_of(path: str) -> str:
    """The type of the filesystem that holds a path."""
    real = os.path.realpath(path)
    best = ("", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split(" ")
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best[0]):
            best = (mount, kind)
    return best[1]


def machine(parent: str) -> dict[str, Any]:
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "loop": measure.loop_name(),
        "filesystem": filesystem_of(parent),
        "load": round(os.getloadavg()[0], 2),
        "loop_step_ns": round(measure.loop_step_ns(), 1),
    }


def describe(found: dict[str, Any]) -> str:
    return (
        f"{found['cores']} x {found['cpu']}, Linux {found['kernel']}, Python {found['python']}, "
        f"{found['loop']}, {found['filesystem']}\n"
        f"load {found['load']} before the first case, and an empty loop takes "
        f"{found['loop_step_ns']} ns a step; on a busy machine both are higher, and so is all below"
    )
