"""Power loss: a real server on a real filesystem, on a block device that drops what was not synced.

A unit is one data directory, with all dialects under load and with a lake in one unit of three,
that loses power several times; each time the disk keeps what a barrier covers, and of the rest what
chance says.  After each, everything that was acknowledged is looked for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

from tests.campaigns.campaign import Campaign, Finding, Outcome, Work
from tests.harness import power_machine
from tests.support.checkout import ROOT


class PowerLoss(Campaign):
    name = "power"
    about = "A server, and its lake, on a block device that loses power: ext4, xfs and btrfs."
    goals = {"power losses": 5_000}  # noqa: RUF012 - as of the base class
    workers_max = 2
    unit_seconds_max = 600.0

    def missing(self) -> str | None:
        return power_machine.missing()

    def unit(self, work: Work) -> Outcome:
        """One directory over several power losses, in a process of its own."""
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        words = ["tests.campaigns.power_unit", str(work.number), str(work.directory)]
        process = subprocess.Popen(
            [sys.executable, "-m", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, text=True,
        )  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        outcome: Outcome | None = None
        with process:
            for line in process.stdout:
                said = json.loads(line)
                if "say" in said:
                    work.say(said["say"])
                    continue
                outcome = Outcome(Counter(said["counts"]))
                if said["finding"]:
                    outcome.findings.append(Finding(said["finding"], self.repeat(work.number)))
            errors = process.stderr.read()
        if outcome is None:
            raise RuntimeError(f"the unit ended with {process.returncode}: {errors[-3_000:]}")
        return outcome
