"""Model runs: random sequences of calls, with restarts and kills between them, against the models.

A unit is many short sequences on an engine whose disk is in memory, and one on a server process
with streams; each answer and each read must be what the model says.
"""

from __future__ import annotations

from collections import Counter

from tests.campaigns.campaign import Campaign, Finding, Outcome, Work
from tests.harness import stream_lockstep, topic_lockstep

SEQUENCES = 200  # of topics, in a unit
CALLS = 60
STREAM_CALLS = 120
SEED_OF_UNIT_ONE = 10_000_000  # the suite has the seeds below
FINDINGS_MAX = 5  # of a unit; what is so broken is seen well enough


class ModelRuns(Campaign):
    name = "model"
    about = "Random sequences of calls with restarts, on topics and streams, against their models."
    goals = {"sequences": 100_000}  # noqa: RUF012 - as of the base class

    def unit(self, work: Work) -> Outcome:
        """The sequences of topics, and then that of streams."""
        outcome = Outcome()
        first = SEED_OF_UNIT_ONE + work.number * SEQUENCES
        for seed in range(first, first + SEQUENCES):
            try:
                restarts = topic_lockstep.run(seed, CALLS).lives - 1
            except AssertionError as error:
                outcome.findings.append(Finding(str(error), self.repeat(work.number)))
                if len(outcome.findings) >= FINDINGS_MAX:
                    break
                continue
            outcome.counts += Counter(sequences=1, calls=CALLS, restarts=restarts)
        with stream_lockstep.lockstep(first, work.directory) as run:
            run.run(STREAM_CALLS)
        outcome.counts += Counter({"sequences of streams": 1, "calls": STREAM_CALLS})
        return outcome
