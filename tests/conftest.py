"""What every test shares: deterministic property tests, servers that start at once, and the budget
and the bound of a long sweep."""

from __future__ import annotations

from collections.abc import Generator

import hypothesis
import pytest

from headrace.testing.process import ServerProcess
from tests.support import sweeps
from tests.support.warm_processes import WarmPopen

ServerProcess.popen = WarmPopen

# The same examples on every run of one commit's suite; a failure prints how to repeat it.  No time
# limit for an example: the machine that runs the suite may be busy.
hypothesis.settings.register_profile(
    "suite", derandomize=True, deadline=None, database=None, print_blob=True
)
hypothesis.settings.load_profile("suite")


@pytest.fixture
def sweep(request: pytest.FixtureRequest) -> sweeps.Sweep:
    """For tests marked `long`: a fair share of `./run test --long --minutes N`."""
    return sweeps.share_of(request.session.items)


def pytest_collection_finish(session: pytest.Session) -> None:
    sweeps.bound_sweeps(session.items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Have the failure of a sweep say how to repeat it."""
    report = yield
    if report.failed and sweeps.is_sweep(item):
        report.sections.append(("repeat with", sweeps.how_to_repeat(item)))
    return report
