"""`./run test --changed`: which tests are chosen for a change, and what they are known to cost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import changed, timing
from tests.timing import Cost

FILES = {
    "src/headrace/core/units.py": "",
    "src/headrace/engine/queue.py": "from headrace.core import units",
    "src/headrace/cli/serve.py": "import headrace.engine.queue",
    "src/headrace/testing/process.py": "",
    "src/headrace/wire/static/page.html": "<p>",
    "tests/conftest.py": "",
    "tests/test_tidy.py": "",
    "tests/test_docs.py": "",
    "tests/support/engines.py": "from headrace.engine.queue import Queue",
    "tests/unit/core/test_units.py": "def test():\n    from headrace.core.units import KIB",
    "tests/unit/core/test_clock.py": "import time",
    "tests/unit/engine/test_queue.py": "from tests.support.engines import start",
    "tests/unit/wire/conftest.py": "from tests.support import engines",
    "tests/unit/wire/test_page.py": "",
    "tests/wire/test_queues.py": "from headrace.testing.process import ServerProcess",
    "tests/spark/test_sql.py": "import headrace.engine.queue",
    "docs/README.md": "",
}
Choose = Callable[..., changed.Plan]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.fixture
def choose(checkout: Path) -> Choose:
    def choose(*files: str, seconds: float = 1_000, **costs: float) -> changed.Plan:
        by_file = {f"tests/{name.replace('__', '/')}.py": cost for name, cost in costs.items()}
        return changed.plan(checkout, files, by_file, seconds)

    return choose


def test_what_imports_a_change_is_run_nearest_first(choose: Choose) -> None:
    plan = choose("src/headrace/core/units.py")
    assert plan.chosen == [
        "tests/test_tidy.py",
        "tests/unit/core/test_units.py",
        "tests/spark/test_sql.py",  # through the queue
        "tests/unit/engine/test_queue.py",  # through the queue and the helper
        "tests/unit/wire/test_page.py",  # through the conftest of its directory
        "tests/wire/test_queues.py",  # through the server that it starts
    ]
    assert plan.left_out == []


def test_what_does_not_fit_is_left_out(choose: Choose) -> None:
    file = "src/headrace/engine/queue.py"
    plan = choose(
        file, seconds=30, unit__engine__test_queue=20, unit__wire__test_page=20, spark__test_sql=9
    )
    assert plan.chosen == [
        "tests/test_tidy.py",
        "tests/unit/engine/test_queue.py",
        "tests/wire/test_queues.py",
    ]
    assert plan.left_out == ["tests/spark/test_sql.py", "tests/unit/wire/test_page.py"]
    assert plan.seconds <= 30


def test_a_test_that_changed_is_run_whatever_it_costs(choose: Choose) -> None:
    file = "tests/unit/core/test_clock.py"
    plan = choose(file, seconds=10, unit__core__test_clock=500)
    assert plan.chosen == [file, "tests/test_tidy.py"]


@pytest.mark.parametrize(
    ("file", "test"),
    [
        ("docs/README.md", "tests/test_docs.py"),
        ("src/headrace/wire/static/page.html", "tests/unit/wire/test_page.py"),
        ("tests/conftest.py", "tests/unit/core/test_clock.py"),
        ("src/headrace/core/gone.py", "tests/test_tidy.py"),
    ],
)
def test_every_kind_of_file_has_tests(choose: Choose, file: str, test: str) -> None:
    assert test in choose(file).chosen


def test_a_file_that_does_not_parse_hides_no_other(choose: Choose, checkout: Path) -> None:
    (checkout / "tests/unit/core/test_clock.py").write_text("def")
    assert "tests/unit/core/test_units.py" in choose("src/headrace/core/units.py").chosen


@pytest.fixture
def git(checkout: Path) -> Callable[..., str]:
    """Git commands on the checkout, which is committed to `main`."""

    def git(*words: str) -> str:
        who = ["-c", "user.name=n", "-c", "user.email=e@localhost", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *who, *words], cwd=checkout, check=True, capture_output=True)
        return done.stdout.decode().strip()

    git("init", "-b", "main")
    git("add", "-A")
    git("commit", "-m", "one")
    return git


def test_changes_are_committed_ones_edits_and_new_files(
    checkout: Path, git: Callable[..., str]
) -> None:
    assert changed.changed_files(checkout) == []
    git("checkout", "-b", "work")
    (checkout / "docs/README.md").write_text("more")
    git("commit", "-am", "two")
    (checkout / "src/headrace/core/units.py").write_text("KIB = 1")
    (checkout / "new.py").write_text("")
    expected = ["docs/README.md", "new.py", "src/headrace/core/units.py"]
    assert changed.changed_files(checkout) == expected


def test_a_clone_of_main_is_compared_with_what_it_was(
    checkout: Path, git: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In CI a branch is not always what is checked out; one variable names any commit."""
    commits = [git("rev-parse", "HEAD")]
    for text in ("two", "three"):
        (checkout / "docs/README.md").write_text(text)
        git("commit", "-am", text)
        commits.append(git("rev-parse", "HEAD"))
    assert changed.earlier_point(checkout, 1) == commits[1]
    assert changed.earlier_point(checkout, 50) == commits[0], "as far back as the clone goes"
    git("checkout", "-b", "work", commits[1])
    git("commit", "--allow-empty", "-m", "four")
    assert changed.earlier_point(checkout, 50) == commits[1], "where the branch left main"
    monkeypatch.setenv(changed.BASE_VARIABLE, "main")
    assert changed.earlier_point(checkout, 50) == commits[2]
    monkeypatch.setenv(changed.BASE_VARIABLE, "absent")
    with pytest.raises(ValueError, match="HEADRACE_TEST_BASE is absent"):
        changed.earlier_point(checkout, 50)


def test_a_test_stands_on_what_it_is_made_of(checkout: Path) -> None:
    found = changed.tests_on_other_ground(checkout, ["tests/support/engines.py"])
    assert found == {"tests/unit/engine/test_queue.py", "tests/unit/wire/test_page.py"}
    assert changed.tests_on_other_ground(checkout, ["src/headrace/core/units.py"]) == set()


def test_this_checkout_is_understood() -> None:
    """A server process is reached from the engine, and support from every side."""
    file = "src/headrace/engine/engine.py"
    far = changed.distances(timing.ROOT, [file])
    assert far["tests/unit/engine/test_engine.py"] <= 2
    assert "tests/wire/test_append.py" in far
    assert all((timing.ROOT / starter).is_file() for starter in changed.STARTS)
    assert all((timing.ROOT / first).is_file() for first in changed.STARTS.values())


# What tests cost


def test_processes_that_run_on_are_counted() -> None:
    """As Java does, which all tests of Spark share."""
    program = "import time; sum(range(3_000_000)); print(1, flush=True); time.sleep(60)"
    before = timing.cpu_seconds()
    command = ["sh", "-c", f"{sys.executable} -S -c '{program}'; true"]  # a child of a child
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None and process.stdout.readline() == b"1\n"
        used = timing.cpu_seconds() - before
        os.killpg(process.pid, signal.SIGKILL)
    assert used > 0.03


def test_the_page_adds_up_and_names_the_slowest(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text(
        '["tests/unit/core/test_a.py::test_x[1]", 1.0, 2.0]\n'
        '["tests/unit/core/deep/test_b.py::test_y", 0.5, 0.5]\n'
    )
    (tmp_path / "2.jsonl").write_text('["src/headrace/core/units.py::units", 0.1, 0.1]\n')
    costs = timing.measured(tmp_path)
    assert timing.by_file(costs)["tests/unit/core/test_a.py"] == Cost(1, 1.0, 2.0)
    page = timing.page_of(costs).splitlines()
    assert "| tests/unit/core | 2 | 2 | 2 |" in page
    assert "| examples in src and docs | 1 | 0 | 0 |" in page
    assert "| **all** | 3 | 2 | 3 |" in page
    rows = [line for line in page if line.startswith("| `")]
    assert rows[0] == "| `tests/unit/core/test_a.py::test_x[1]` | 1.0 | 2.0 |"
    assert len(rows) == 3
