"""What every test shares: deterministic property tests, servers that start at once, and the budget
of a long sweep."""

from __future__ import annotations

import math
import os

import hypothesis
import pytest

from headrace.testing.process import ServerProcess
from tests.support.sweeps import BUDGET_FRACTION, Sweep
from tests.support.warm_processes import WarmPopen

ServerProcess.popen = WarmPopen

# The same examples on every run of one commit's suite; a failure prints how to repeat it.  No time
# limit for an example: the machine that runs the suite may be busy.
hypothesis.settings.register_profile(
    "suite", derandomize=True, deadline=None, database=None, print_blob=True
)
hypothesis.settings.load_profile("suite")


@pytest.fixture
def sweep(request: pytest.FixtureRequest) -> Sweep:
    """For tests marked `long`: a fair share of `./run test --long --minutes N`.

    The long tests run side by side on as many workers as there are, so that together they take
    about N minutes.
    """
    sweeps = sum(1 for item in request.session.items if item.get_closest_marker("long"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    rounds = max(1, math.ceil(sweeps / workers))
    minutes = float(os.environ.get("HEADRACE_TEST_MINUTES", "1"))
    seed = int(os.environ.get("HEADRACE_TEST_SEED", "1"))
    return Sweep(minutes * 60 * BUDGET_FRACTION / rounds, seed)
