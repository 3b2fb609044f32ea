"""A campaign of six units, each with its own fate, for the tests of the runner."""

from __future__ import annotations

import os
import time
from collections import Counter

from tests.campaigns.campaign import Campaign, Finding, Outcome, Work

RAISES, FINDS, DIES, HANGS = 2, 3, 4, 5


class Small(Campaign):
    name = "small"
    about = "Six units: one raises, one finds something, one dies, one hangs."
    goals = {"done": 3, "more": 10}  # noqa: RUF012 - as of the base class
    units = 6
    unit_seconds_max = 1.0

    def unit(self, work: Work) -> Outcome:
        work.say(f"unit {work.number}")
        (work.directory / "file").write_text("removed with the unit")
        if work.number == RAISES:
            raise ValueError("raised")
        if work.number == DIES:
            os._exit(1)
        if work.number == HANGS:
            time.sleep(600)
        findings = [Finding("found", "do it again")] if work.number == FINDS else []
        return Outcome(Counter(done=1), findings, {"last": work.number})
