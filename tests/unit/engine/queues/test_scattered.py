"""Claims of sealed jobs that lie scattered: the same jobs, and not read on the loop."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.engine.engine import Engine
from headrace.engine.queues import job_records
from headrace.engine.queues.answers import Job
from headrace.engine.queues.job_records import RUNS_ON_LOOP_MAX
from tests.support.queue_calls import ack, add, claim, make


def every_third(engine: Engine, count: int) -> list[Job]:
    """Sealed jobs of which every third is there to be claimed; return those that were before."""
    make(engine)
    add(engine, 3 * count)
    jobs = claim(engine, 3 * count)
    given = [job for job in jobs if job.seq % 3 == 1]
    seqs, ids = [job.seq for job in given], [job.lease_id for job in given]
    engine.queues.nack("jobs", "a", seqs, 0, ids).result()
    engine.checkpoint().result()
    engine.state.forget_blocks(engine.state.topic("jobs"))
    return given


@pytest.mark.parametrize("count", [RUNS_ON_LOOP_MAX, RUNS_ON_LOOP_MAX + 1])
def test_many_runs_of_sealed_jobs_are_read_in_the_lane(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    given = every_third(engine, count)
    warm = claim(engine, count)  # the cache has all blocks from now on
    seqs, ids = [job.seq for job in warm], [job.lease_id for job in warm]
    engine.queues.nack("jobs", "a", seqs, 0, ids).result()
    take, waits = job_records._take_sealed, []

    def noted(*arguments: Any, wait: bool) -> Any:
        waits.append(wait)
        return take(*arguments, wait=wait)

    monkeypatch.setattr(job_records, "_take_sealed", noted)
    found = claim(engine, count)
    assert waits == [count > RUNS_ON_LOOP_MAX]
    assert [(job.seq, job.data) for job in found] == [(job.seq, job.data) for job in given]
    assert ack(engine, found).acked == count
