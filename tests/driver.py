"""What `./run test` runs: lint, format, types, then every test and every documented example.

Quiet unless something fails, but for what each part took.  What runs Spark shares one session,
which takes 10 s to start and 1 GB, and so runs in one process, beside the workers that share
everything else.  The long sweeps get their seed from the commit, so that each commit explores other
states and each failure can be repeated.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests import changed, timing  # noqa: E402 - the checkout is on the path only now
from tests.campaigns import command as campaigns  # noqa: E402
from tests.parts import Beside, Parts  # noqa: E402
from tests.support import turn_modes  # noqa: E402

WORKERS_MAX = 8
CHANGED_SECONDS = 60.0
SWEEP_MINUTES = 15.0
PYTEST_NOTHING_COLLECTED = 5
# What has to pass however a server handles the requests of a turn.
WIRE = "tests/wire"
# A browser sends few requests, which other tests send too, and takes longer than any of those.
WIRE_IN_THE_USUAL_WAY = ("tests/wire/test_browser.py",)
# What runs Spark: these share one session.
SPARK = ("tests/spark", "src/headrace/spark", "docs/guides/spark.md")
DOCTESTS = ("--doctest-modules", "--doctest-glob=*.md", "-p", "tests.support.example_files")
EVERYTHING = ("tests", "src/headrace", "README.md", "docs")
DEFAULT = "not long and not slow"
# What a test of fixed work may take that is `slow` or `long`; a sweep is bound by its share of the
# time (tests/conftest.py).
FIXED_SECONDS_MAX = 600
# What mypy checks, by pyproject.toml.
TYPED = ("src/", "bench/", "tools/", "tests/harness/", "tests/support/")

EPILOG = """\
Other arguments go to pytest, and then only pytest runs: ./run test tests/unit/core -k clock -x

--turns has each server that a test starts handle the requests of a turn one by one (split), or all
of them together, each waiting for others (forced); without other arguments it runs tests/wire.

--changed compares with where this branch left `main`, new files included, and runs lint, format
and types of what changed, the tidy rules, and then the tests that import it, directly or through
other modules: the nearest first, about a minute of them.  It says how many it left out; those are
for ./run test.
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./run test",
        description="Lint, format, types, tests and documented examples.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--changed", action="store_true", help="what the change can break")
    parser.add_argument(
        "--long",
        action="store_true",
        help="only the tests marked `slow`, tests/wire in both ways of --turns, the `long` sweeps",
    )
    parser.add_argument(
        "--minutes", type=float, help="what the sweeps (15) or the seeded bugs (all) may spend"
    )
    parser.add_argument(
        "--turns", choices=turn_modes.MODES, help="how servers handle the requests of a turn"
    )
    parser.add_argument(
        "--mutants",
        action="store_true",
        help="each seeded bug must be noticed; with --changed, those of what changed",
    )
    parser.add_argument(
        "--times", action="store_true", help="measure, and rewrite docs/internals/test-times.md"
    )
    parser.add_argument(
        "--campaign",
        metavar="NAME",
        help="run a campaign for hours, resumable; `--campaign list` names them",
    )
    options, rest = parser.parse_known_args()
    os.chdir(ROOT)
    # A developer's own settings must not change what a test sees.
    for variable in [v for v in os.environ if v.startswith("HEADRACE_")]:
        if not variable.startswith("HEADRACE_TEST_"):
            del os.environ[variable]
    # Thousands of processes start here: each would compile all that it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if options.turns:
        os.environ[turn_modes.VARIABLE] = options.turns
    if options.campaign:
        return campaigns.main([options.campaign, *rest])
    if options.mutants:
        rest += ["--changed"] * options.changed
        if options.minutes is not None:
            rest += ["--minutes", f"{options.minutes:g}"]
        return run_mutants(rest)
    if options.long:
        return run_long(SWEEP_MINUTES if options.minutes is None else options.minutes, rest)
    if options.changed:
        return run_changed(rest)
    if options.times:
        return run_times()
    if options.turns and not rest:
        return run_wire()
    return run_all(rest)


def run_all(rest: list[str]) -> int:
    if rest:
        return pytest(["-q", "-m", DEFAULT, *rest])
    started, parts = time.monotonic(), Parts()

    def checks() -> list[str]:
        with parts.part("lint, format and types (beside the others)"):
            return failed_checks(["."], [])

    # Types are checked by one process, which takes most of a minute.
    with ThreadPoolExecutor(1) as pool:
        checking = pool.submit(checks)
        failed = run_suite(DEFAULT, [], parts)
        failed = checking.result() + failed
    print(parts.summary())
    return verdict(failed, started)


def run_suite(mark: str, more: list[str], parts: Parts) -> list[str]:
    """Run the tests with this mark, those of Spark beside the others; what failed."""
    with spark_tests(mark, more, parts) as spark:
        with parts.part("tests without Spark"):
            others = run_without_spark(mark, more)
        codes = {"pytest": others, "pytest of Spark": spark.code()}
    return [name for name, code in codes.items() if code not in (0, PYTEST_NOTHING_COLLECTED)]


def spark_tests(mark: str, more: list[str], parts: Parts) -> Beside:
    """Start the tests of Spark with this mark, in one process."""
    command = pytest_command(["-q", "-m", mark, *DOCTESTS, *more, "-p", "no:xdist", *only_spark()])
    if mark != DEFAULT:
        # It takes a minute to make, and pays where Spark starts again and again.
        command = [sys.executable, "-m", "tests.support.spark_classes", *command]
    return Beside("tests of Spark", command, parts)


def run_without_spark(mark: str, more: list[str]) -> int:
    """Run all other tests with this mark, by workers that share them."""
    quiet = ["-q", "-m", mark, *DOCTESTS, *more]
    return pytest([*quiet, *workers(), *EVERYTHING, *without_spark()])


def run_wire() -> int:
    """Run the tests of the wire, whose servers handle turns as the environment says."""
    ignored = [f"--ignore={file}" for file in WIRE_IN_THE_USUAL_WAY]
    return pytest(["-q", "-m", DEFAULT, *workers(), WIRE, *ignored])


def run_changed(rest: list[str]) -> int:
    started = time.monotonic()
    files = changed.changed_files(ROOT)
    python = [file for file in files if file.endswith(".py") and Path(file).exists()]
    typed = [file for file in python if file.startswith(TYPED)]
    failed = failed_checks(python, typed) if python else []
    budget = CHANGED_SECONDS * worker_count()
    plan = changed.plan(ROOT, files, timing.known_costs(), budget)
    print(
        f"{len(files)} files changed: {len(plan.chosen)} test files, {len(plan.left_out)} left out"
    )
    many = workers() if plan.seconds > CHANGED_SECONDS / 4 else []
    if pytest(["-q", "-m", DEFAULT, *many, *rest, *plan.chosen]) != 0:
        failed.append("pytest")
    return verdict(failed, started)


def run_times() -> int:
    """Measure the default suite, and rewrite the page."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        os.environ[timing.VARIABLE] = directory
        failed = run_suite(DEFAULT, ["-p", "tests.timing"], Parts())
        timing.write_costs(timing.measured(Path(directory)))
    return verdict(failed, started)


def run_long(minutes: float, rest: list[str]) -> int:
    """Run what takes long; the tests of Spark beside everything else."""
    started, parts = time.monotonic(), Parts()
    seed = os.environ.setdefault("HEADRACE_TEST_SEED", str(seed_of_commit()))
    os.environ["HEADRACE_TEST_MINUTES"] = f"{minutes:g}"
    print(f"seed {seed}; repeat with HEADRACE_TEST_SEED={seed} ./run test --long", flush=True)
    more = [f"--timeout={FIXED_SECONDS_MAX}"]
    if rest:
        return pytest(["-q", "-m", "long or slow", *more, *workers(), *rest])
    codes = {}
    with spark_tests("long or slow", more, parts) as spark:
        codes |= run_modes(parts)
        # Together: each run collects all tests, in each worker.
        with parts.part("slow tests and sweeps without Spark"):
            codes["pytest"] = run_without_spark("long or slow", more)
        codes["pytest of Spark"] = spark.code()
    print(parts.summary())
    failed = [name for name, code in codes.items() if code not in (0, PYTEST_NOTHING_COLLECTED)]
    return verdict(failed, started)


def run_modes(parts: Parts) -> dict[str, int]:
    """Run the tests of the wire in each way to handle a turn but the usual; their exit codes."""
    codes = {}
    for mode in turn_modes.MODES:
        name = f"{WIRE}, turns {mode}"
        print(f"{name}; repeat with ./run test --turns {mode}", flush=True)
        os.environ[turn_modes.VARIABLE] = mode
        try:
            with parts.part(name):
                codes[name] = run_wire()
        finally:
            del os.environ[turn_modes.VARIABLE]
    return codes


def run_mutants(rest: list[str]) -> int:
    script = ROOT / "tests" / "mutants.py"
    if not script.exists():
        print("tests/mutants.py is missing, so there is no seeded bug to notice")
        return 1
    return subprocess.run([sys.executable, str(script), *rest]).returncode


def failed_checks(files: list[str], typed: list[str]) -> list[str]:
    """Lint, format and types; the names of those that failed."""
    checks = [
        ("ruff check", ["ruff", "check", "--quiet", *files]),
        ("ruff format", ["ruff", "format", "--quiet", "--check", *files]),
    ]
    if typed or files == ["."]:
        checks.append(("mypy", ["mypy", "--no-error-summary", *typed]))
    return [name for name, command in checks if not passes(name, command)]


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


def verdict(failed: list[str], started: float) -> int:
    seconds = time.monotonic() - started
    print(f"FAILED: {', '.join(failed)}" if failed else f"ok, {seconds:.0f} s")
    return 1 if failed else 0


def pytest(arguments: list[str]) -> int:
    return subprocess.run(pytest_command(arguments)).returncode


def pytest_command(arguments: list[str]) -> list[str]:
    return [sys.executable, "-m", "pytest", "--no-header", *arguments]


def without_spark() -> list[str]:
    return [f"--ignore={path}" for path in SPARK]


def only_spark() -> list[str]:
    return [path for path in SPARK if (ROOT / path).exists()]


def worker_count() -> int:
    return min(len(os.sched_getaffinity(0)), WORKERS_MAX)


def workers() -> list[str]:
    return ["-n", str(worker_count()), "--dist", "worksteal"]


def seed_of_commit() -> int:
    """The first 32 bits of the commit's hash, or 1 outside a repository."""
    with contextlib.suppress(OSError, ValueError, subprocess.CalledProcessError):
        command = ["git", "rev-parse", "HEAD"]
        found = subprocess.run(command, check=True, capture_output=True, text=True)
        return int(found.stdout[:8], 16)
    return 1


if __name__ == "__main__":
    sys.exit(main())
