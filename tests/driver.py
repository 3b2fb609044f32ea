"""What `./run test` runs: lint, format, types, then every test and every documented example.

Quiet unless something fails.  What runs Spark comes last and in one process, because a session
takes 10 s to start and 1 GB; everything else is spread over the cores.  The long sweeps get their
seed from the commit, so that each commit explores other states and each failure can be repeated.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORKERS_MAX = 8
PYTEST_NOTHING_COLLECTED = 5
# What runs Spark: these share one session.
SPARK = ("tests/spark", "src/headrace/spark", "docs/guides/spark.md")
DOCTESTS = ("--doctest-modules", "--doctest-glob=*.md")

EPILOG = """\
Other arguments go to pytest, and then only pytest runs: ./run test tests/unit/core -k clock -x
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./run test",
        description="Lint, format, types, tests and documented examples.",
        epilog=EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument("--long", action="store_true", help="only the sweeps marked `long`")
    parser.add_argument("--minutes", type=float, default=15.0, help="what --long may spend (15)")
    parser.add_argument("--mutants", action="store_true", help="each seeded bug must be noticed")
    options, rest = parser.parse_known_args()
    os.chdir(ROOT)
    # A developer's own settings must not change what a test sees.
    for variable in [v for v in os.environ if v.startswith("HEADRACE_")]:
        if not variable.startswith("HEADRACE_TEST_"):
            del os.environ[variable]
    if options.mutants:
        return run_mutants(rest)
    if options.long:
        return run_long(options.minutes, rest)
    return run_all(rest)


def run_all(rest: list[str]) -> int:
    if rest:
        return pytest(["-q", "-m", "not long", *rest])
    started = time.monotonic()
    checks = (
        ("ruff check", ["ruff", "check", "--quiet", "."]),
        ("ruff format", ["ruff", "format", "--quiet", "--check", "."]),
        ("mypy", ["mypy", "--no-error-summary"]),
    )
    failed = [name for name, command in checks if not passes(name, command)]
    paths = ["tests", "src/headrace", "README.md", "docs"]
    if pytest(["-q", "-m", "not long", *workers(), *paths, *DOCTESTS, *without_spark()]) != 0:
        failed.append("pytest")
    if pytest(["-q", "-m", "not long", "-p", "no:xdist", *only_spark(), *DOCTESTS]) != 0:
        failed.append("pytest of Spark")
    seconds = time.monotonic() - started
    print(f"FAILED: {', '.join(failed)}" if failed else f"ok, {seconds:.0f} s")
    return 1 if failed else 0


def run_long(minutes: float, rest: list[str]) -> int:
    seed = os.environ.setdefault("HEADRACE_TEST_SEED", str(seed_of_commit()))
    print(f"seed {seed}; repeat with HEADRACE_TEST_SEED={seed} ./run test --long", flush=True)
    long = ["-q", "-m", "long", f"--timeout={minutes * 60 + 600:.0f}"]
    if rest:
        return sweep(minutes, [*long, *workers(), *rest])
    runs = [[*workers(), *without_spark()]]
    if any(
        "mark.long" in path.read_text() for path in (ROOT / "tests" / "spark").glob("test_*.py")
    ):
        runs.append(["-p", "no:xdist", "tests/spark"])
    codes = [sweep(minutes / len(runs), [*long, *run]) for run in runs]
    codes = [code for code in codes if code != PYTEST_NOTHING_COLLECTED]
    if not codes:
        print("0 passed, 0 failed")
    return max(codes, default=0)


def sweep(minutes: float, arguments: list[str]) -> int:
    os.environ["HEADRACE_TEST_MINUTES"] = f"{minutes:g}"
    return pytest(arguments)


def run_mutants(rest: list[str]) -> int:
    script = ROOT / "tests" / "mutants.py"
    if not script.exists():
        print("tests/mutants.py is missing, so there is no seeded bug to notice")
        return 1
    return subprocess.run([sys.executable, str(script), *rest]).returncode


def passes(name: str, command: list[str]) -> bool:
    """Run one checker; what it says is shown only when it fails."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        print(f"{name} failed:\n{done.stdout}", flush=True)
    return done.returncode == 0


def pytest(arguments: list[str]) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", "--no-header", *arguments]).returncode


def without_spark() -> list[str]:
    return [f"--ignore={path}" for path in SPARK]


def only_spark() -> list[str]:
    return [path for path in SPARK if (ROOT / path).exists()]


def workers() -> list[str]:
    return ["-n", str(min(len(os.sched_getaffinity(0)), WORKERS_MAX)), "--dist", "worksteal"]


def seed_of_commit() -> int:
    """The first 32 bits of the commit's hash, or 1 outside a repository."""
    with contextlib.suppress(OSError, ValueError, subprocess.CalledProcessError):
        command = ["git", "rev-parse", "HEAD"]
        found = subprocess.run(command, check=True, capture_output=True, text=True)
        return int(found.stdout[:8], 16)
    return 1


if __name__ == "__main__":
    sys.exit(main())
