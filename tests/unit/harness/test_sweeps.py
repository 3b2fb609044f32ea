"""The share of a sweep, and what happens to one that goes on for longer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.checkout import ROOT

# A sweep that obeys its share, one that never ends, and one of fixed work with its own bound.
TESTS = """
import time
import pytest
from tests.support import sweeps

pytestmark = pytest.mark.long

def test_share(sweep):
    assert sweep == (0.9, 7), sweep

def test_hangs(sweep):
    time.sleep(60)

@pytest.mark.timeout(50)
def test_fixed(sweep, request):
    assert request.node.get_closest_marker("timeout").args == (50,)
"""
CONFTEST = """
from tests.support import sweeps

sweeps.HANG_SECONDS = 1
from tests.conftest import *
"""


def test_a_sweep_that_hangs_fails_and_says_its_seed(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    # Three seconds for three sweeps, of which nine tenths are theirs.
    given = {"HEADRACE_TEST_SEED": "7", "HEADRACE_TEST_MINUTES": "0.05"}
    given["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "long", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        env={name: text for name, text in os.environ.items() if "XDIST" not in name} | given,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout
    assert "1 failed, 2 passed" in done.stdout
    assert "Timeout (>1.9s)" in done.stdout
    assert "HEADRACE_TEST_SEED=7 ./run test --long 'test_it.py::test_hangs'" in done.stdout
