"""Deadlines of requests that wait: one that fails takes none of the others with it."""

from __future__ import annotations

import pytest

from headrace.core.clock import ManualClock
from headrace.core.runtime import StepRuntime
from headrace.wire.deadlines import STEP_MS, Deadlines


def fail() -> None:
    raise ZeroDivisionError


def test_a_deadline_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    runtime = StepRuntime(clock)
    deadlines = Deadlines(runtime)
    heard: list[str] = []
    deadlines.add(10, fail)
    deadlines.add(10, lambda: heard.append("same time"))
    deadlines.add(40, lambda: heard.append("later"))
    for _ in range(20):
        clock.advance(STEP_MS)
        runtime.run()
    assert heard == ["same time", "later"]
    # And after a rest.
    deadlines.add(10, lambda: heard.append("again")).cancel()
    deadlines.add(10, lambda: heard.append("once more"))
    for _ in range(5):
        clock.advance(STEP_MS)
        runtime.run()
    assert heard == ["same time", "later", "once more"]
    assert "ZeroDivisionError" in caplog.text
