"""The soak of `./run test --campaign soak`, as short as it gets: all of its parts work together."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns.campaign import Work
from tests.campaigns.soak import Soak

# Each kind of load, by a count that shows that it was there.
LOADS = (
    "records appended: native, plain",
    "records appended: native, with keys",
    "records appended: native, by producers",
    "records appended: native, as Arrow",
    "records appended: WebSocket",
    "records appended: Durable Streams",
    "records appended: S2, JSON",
    "records appended: S2, protobuf",
    "records appended: S2, sessions",
    "records read: diff",
    "records read: Arrow",
    "records read: watch",
    "records read: WebSocket",
    "records read: Durable Streams",
    "records read: Durable Streams, events",
    "records read: S2, unary",
    "records read: S2, events",
    "records read: S2, sessions",
    "records of the pipeline",
    "rows of the lake",
    "requests over HTTP/2",
    "jobs done",
    "jobs: nack",
    "jobs: extend",
    "jobs forgotten",
    "dead letters",
    "records deleted",
    "topics deleted",
    "forks",
    "streams deleted",
    "streams expired",
    "checkpoints",
    "files verified by the scrub",
    "kills",
    "clean restarts",
)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_short_soak_accounts_for_everything(tmp_path: Path) -> None:
    said: list[str] = []
    outcome = Soak().unit(Work(1, 0.0, tmp_path, said.append))
    assert not outcome.findings
    assert not [load for load in LOADS if not outcome.counts[load]], outcome.counts
    assert any("resident" in words for words in said)
