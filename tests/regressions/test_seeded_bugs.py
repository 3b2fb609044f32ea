"""The list of seeded bugs fits the code as it is: their places, their tests, their page.

`./run test --mutants` puts the bugs in.  This only sees to it that it can.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.checkout import ROOT

SEEDED_BUGS_MIN = 24


def load_runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "tests" / "mutants.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module  # Where its dataclasses look for themselves.
    spec.loader.exec_module(module)
    return module


RUNNER = load_runner()
MUTANTS = RUNNER.load()


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= SEEDED_BUGS_MIN
    assert len({mutant.file for mutant in MUTANTS}) > 10


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_seeded_bug_can_be_put_in(mutant: RUNNER.Mutant) -> None:
    fix = "move its text in tests/mutants/ along with the code"
    assert RUNNER.obstacle(mutant) is None, f"{RUNNER.obstacle(mutant)}; {fix}"
    for test in mutant.tests:
        path, _, name = test.partition("[")[0].partition("::")
        source = (ROOT / path).read_text(encoding="utf-8")
        found = not name or re.search(rf"^def {re.escape(name)}\(", source, re.MULTILINE)
        assert found, f"{path} has no {name}; name the test that notices {mutant.name} now"


def test_the_page_lists_them() -> None:
    page = (ROOT / "docs" / "internals" / "mutants.md").read_text(encoding="utf-8")
    assert page == RUNNER.page(MUTANTS), "run `python tests/mutants.py --page`"


# What a run says, and what it takes first


def verdict(mutant: RUNNER.Mutant, *, noticed: bool) -> RUNNER.Verdict:
    return RUNNER.Verdict(mutant, noticed, 1.0, "what")


def test_the_closing_line_tells_the_truth(capsys: pytest.CaptureFixture[str]) -> None:
    """205 of 206 are not 100 %."""
    many = [replace(MUTANTS[0], name=f"bug-{number}") for number in range(206)]
    verdicts = {mutant.name: verdict(mutant, noticed=True) for mutant in many}
    assert RUNNER.conclude(many, verdicts, 7) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "206 of 206 seeded bugs noticed; 7 s",
        "206 passed, 0 failed",
    ]
    verdicts["bug-9"] = verdict(many[9], noticed=False)
    assert RUNNER.conclude(many, verdicts, 7) == 1
    *_, said, count = capsys.readouterr().out.splitlines()
    assert said == "205 of 206 seeded bugs noticed; not noticed: bug-9; 7 s"
    assert count == "205 passed, 1 failed"


def test_what_the_time_did_not_allow_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    many = [replace(MUTANTS[0], name=f"bug-{number}") for number in range(3)]
    assert RUNNER.conclude(many, {"bug-1": verdict(many[1], noticed=True)}, 7) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-3] == "the time was up before 2: bug-0 bug-2"
    assert said[-2] == "1 of 1 seeded bugs noticed; 2 not tried; 7 s"


def test_the_bugs_of_a_change_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of changed sources, then new entries, then those whose tests changed."""
    source = replace(MUTANTS[0], name="source", file="engine/a.py", tests=("tests/x.py::t",))
    entry = replace(source, name="entry", file="engine/b.py")
    tests = replace(entry, name="tests", tests=("tests/crash/test_sweep.py::t[1]",))
    other = replace(entry, name="other")
    files = ["src/headrace/engine/a.py", "tests/harness/workloads.py"]
    monkeypatch.setattr(RUNNER.changed, "changed_files", lambda _root, _base: files)
    monkeypatch.setattr(RUNNER, "listed_at", lambda _root, _base: {source, tests, other})
    found = RUNNER.touched(ROOT, [other, tests, entry, source], "base")
    assert [mutant.name for mutant in found] == ["source", "entry", "tests"]
    assert RUNNER.in_order(ROOT, [other, tests, entry, source], "base", "seed") == [*found, other]


def test_the_lists_of_an_earlier_commit_are_read(tmp_path: Path) -> None:
    assert RUNNER.listed_at(tmp_path, "HEAD") == set(), "no repository, so all of them are new"
    lists = sorted((ROOT / "tests" / "mutants").glob("*.toml"))
    texts = [path.read_text(encoding="utf-8") for path in lists]
    assert [mutant for text in texts for mutant in RUNNER.parse(text)] == MUTANTS
