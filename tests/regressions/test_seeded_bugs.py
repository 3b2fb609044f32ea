"""The list of seeded bugs fits the code as it is: their places, their tests, their page.

`./run test --mutants` puts the bugs in.  This only sees to it that it can.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
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
