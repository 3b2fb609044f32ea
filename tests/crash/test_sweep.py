"""Every crash point of every durable operation, killed and with six kinds of power loss.

`SWEEPS` says how often each workload is run, each time with other dice, and how many states that
gives at least; the last test adds these up.  The long sweep goes on with seeds of its own.
"""

from __future__ import annotations

import pytest

from headrace.core.clock import SystemClock
from headrace.engine.sealing.sealed_files import PlannedMerge, SealedFiles
from headrace.storage.files.merge_run import MergeRun
from headrace.storage.snapshot.state import SnapshotChange
from tests.harness.crash_points import KILL, Point, Report
from tests.harness.explore import Explorer
from tests.harness.workloads import WORKLOADS, perform

STATES_MIN = 20_000
# The dearest workloads: the default suite looks at every position of theirs, but there only at one
# state in `SHARE`; a test marked `slow` looks at all of them.
DEAR = {
    "snapshots",
    "relocate",
    "merge",
    "merge_beside",
    "replay",
    "shards",
    "mixed",
    "seal_own",
    "archive",
    "closing",
    "reserve",
    "checkpoint",
    "retention",
}
SHARE = 8  # at least one at each position, and hardly more
SECOND = 5  # one recovery in so many is crashed in turn
SECOND_LONG = 2

# Workload -> (seeds, the least number of states of one sweep).
SWEEPS: dict[str, tuple[int, int]] = {
    "append_fsync": (1, 260),
    "lone": (1, 840),
    "append_disk": (1, 230),
    "append_memory": (1, 230),
    "append_ephemeral": (1, 150),
    "append_classes": (1, 300),
    "append_turns": (1, 500),
    "batch": (1, 240),
    "rotation": (1, 490),
    "rotation_beside": (1, 800),
    "reserve": (1, 270),
    "replay": (1, 1_390),
    "checkpoint": (1, 890),
    "delete": (1, 620),
    "snapshots": (1, 3_500),
    "lifecycle": (1, 730),
    "configure": (1, 700),
    "retention": (1, 760),
    "archive": (1, 1_000),
    "idempotency": (1, 620),
    "closing": (1, 1_080),
    "recovery": (1, 470),
    "automatic": (1, 780),
    "merge": (1, 1_810),
    "merge_beside": (1, 1_000),
    "seal_own": (1, 1_530),
    "relocate": (1, 1_980),
    "shards": (1, 1_470),
    "window": (1, 500),
    "mixed": (1, 1_100),
}
# Crashes of the workload `recovery`, by how far it had come, whose recovery is crashed at every
# position; and the least number of states that each of them gives.
FIRST_CRASHES = ((0.3, KILL), (0.5, "torn"), (0.6, "none"), (0.8, KILL), (0.95, "subset"))
RECOVERY_STATES_MIN = 70


def passes(report: Report, states_min: int) -> None:
    print(report)
    assert not report.findings, str(report)
    assert report.states >= states_min, f"{report.states} states, {states_min} were due"


@pytest.mark.parametrize(
    ("workload", "seed"),
    [
        pytest.param(name, seed, marks=[pytest.mark.slow] if name in DEAR else [])
        for name, (seeds, _) in SWEEPS.items()
        for seed in range(1, seeds + 1)
    ],
)
def test_every_crash_point(workload: str, seed: int) -> None:
    explorer = Explorer(workload, seed)
    passes(explorer.sweep(damage=seed, second=SECOND), SWEEPS[workload][1])


@pytest.mark.parametrize("workload", sorted(DEAR))
def test_some_crash_points_of_a_dear_workload(workload: str) -> None:
    report = Explorer(workload, 1).sweep(damage=1, second=SECOND, share=SHARE)
    passes(report, SWEEPS[workload][1] // (SHARE + 1))


@pytest.mark.parametrize(("part", "mode"), FIRST_CRASHES)
def test_recovery_is_crashed_at_every_point(part: float, mode: str) -> None:
    explorer = Explorer("recovery", 1)
    position = int(explorer.disk.position * part)
    explorer.crash_everywhere(Point(position, mode, 1))
    passes(explorer.report, RECOVERY_STATES_MIN)


@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_snapshot_and_tail_say_what_the_whole_log_says(workload: str) -> None:
    """The same calls with checkpoints and without: what is recovered is the same."""
    views = [
        perform(workload, 1, checkpoints=checkpoints, calm=True).recovered_views()
        for checkpoints in (True, False)
    ]
    assert views[0].keys() == views[1].keys()
    for name, view in views[0].items():
        if view.config.durability != "ephemeral":  # how far ahead seqs are reserved may differ
            assert view == views[1][name]


@pytest.mark.parametrize("workload", ["append_fsync", "checkpoint", "lone", "mixed"])
def test_syncs_of_the_loop_and_of_the_lane_are_both_crashed(workload: str) -> None:
    shards = [shard for d in perform(workload, 1).drivers for shard in d.engine.state.shards]
    inline = sum(shard.inline_syncs_total for shard in shards)
    assert 0 < inline < sum(shard.syncs_total for shard in shards)


def test_merges_are_crashed_that_go_on_beside_checkpoints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Snapshots are written while merges are under way."""
    merges: list[MergeRun] = []
    beside = 0
    start, write = SealedFiles.start_merge, SealedFiles.write_snapshot

    def started(files: SealedFiles, planned: PlannedMerge) -> MergeRun:
        merges.append(start(files, planned))
        return merges[-1]

    def written(files: SealedFiles, change: SnapshotChange, *, alone: bool) -> None:
        nonlocal beside
        beside += bool(merges) and merges[-1].done is None
        write(files, change, alone=alone)

    monkeypatch.setattr(SealedFiles, "start_merge", started)
    monkeypatch.setattr(SealedFiles, "write_snapshot", written)
    perform("merge_beside", 1)
    assert beside


def test_the_suite_looks_at_enough_states() -> None:
    """With the workloads marked `slow`, which a submission runs too."""
    assert SWEEPS.keys() == WORKLOADS.keys()
    states = sum(seeds * states for seeds, states in SWEEPS.values())
    states += len(FIRST_CRASHES) * RECOVERY_STATES_MIN
    print(f"at least {states} states")
    assert states >= STATES_MIN


@pytest.mark.long
def test_crash_points_for_long(sweep) -> None:  # type: ignore[no-untyped-def]
    clock = SystemClock()
    deadline_ns = clock.monotonic_ns() + int(sweep.seconds * 1e9)
    names = list(WORKLOADS)
    report = Report()
    seed = sweep.seed % 1_000_000 * 1_000
    while clock.monotonic_ns() < deadline_ns:
        seed += 1
        # A short run begins where another commit's did not, so that in time all get their turn.
        explorer = Explorer(names[(sweep.seed + seed) % len(names)], seed)
        explorer.sweep(damage=seed, second=SECOND_LONG, deadline_ns=deadline_ns)
        report.add(explorer.report)
    passes(report, 1)
