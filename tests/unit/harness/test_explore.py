"""The explorer finds what it is for: each seeded bug, with a line that repeats the very state."""

from __future__ import annotations

import shlex

import pytest

from headrace.engine.recovery import log_replay, recovery
from headrace.engine.recovery.recovery import Recovery
from headrace.storage.snapshot.files import SnapshotStore
from headrace.testing.simdisk import MODES, SimDisk
from headrace.testing.simfile import SimFile
from tests.harness import explore
from tests.harness.crash_points import CUT, KILL, Known, Point, images_at
from tests.harness.explore import Explorer
from tests.harness.planted_bugs import Break, acknowledged_early


def lying_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimFile, "sync_data", lambda self: None)


def names_never_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimDisk, "sync_dir", lambda self, path: None)


def losses_not_announced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Recovery, "_announce_losses", lambda self, scans, clean: {})


def deletes_not_replayed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log_replay, "apply_delete", lambda state, topic, floor, seqs, elsewhere: 0)


def recovered_log_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "make_durable", lambda fs, found, scans: None)


def old_snapshots_never_pruned_but_their_log_is(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SnapshotStore, "replay_positions", lambda self: [])


@pytest.mark.parametrize(
    ("workload", "bug"),
    [
        ("append_fsync", lying_sync),
        ("rotation", names_never_synced),
        ("append_fsync", acknowledged_early),
        ("append_disk", losses_not_announced),
        ("delete", deletes_not_replayed),
        ("append_disk", recovered_log_not_synced),
    ],
)
def test_a_seeded_bug_is_found(workload: str, bug: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    report = Explorer(workload, 1).sweep(damage=1, second=1, stride=1)
    assert report.findings, f"{report.states} states, and none is wrong"


def test_a_finding_names_a_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lying_sync(monkeypatch)
    report = Explorer("append_fsync", 1).sweep(damage=1, second=2)
    once = next(f for f in report.findings if len(f.state.crashes) == 1)
    for finding in (once, *[f for f in report.findings if len(f.state.crashes) == 2][:1]):
        words = shlex.split(finding.state.replay())
        assert words[:3] == ["python", "-m", "tests.harness.explore"]
        assert explore.main(words[3:]) == 1
        assert finding.reason in capsys.readouterr().out


def test_the_same_arguments_look_at_the_same_states() -> None:
    first, second = (Explorer("lifecycle", 3) for _ in range(2))
    assert first.disk.trace == second.disk.trace
    assert str(first.disk.marks_until(10**9)) == str(second.disk.marks_until(10**9))
    point = Point(30, "garbage", 5)
    assert point.image(first.disk).contents() == point.image(second.disk).contents()


def test_the_command_line_sweeps(capsys: pytest.CaptureFixture[str]) -> None:
    assert explore.main(["--workload", "append_disk", "--stride", "9"]) == 0
    assert "states" in capsys.readouterr().out


@pytest.mark.parametrize("share", [2, 5, 7, 20])
def test_a_share_of_the_states_has_every_position_and_every_mode(share: int) -> None:
    disk = Explorer("append_disk", 1).disk
    every = [point for k in range(disk.crash_points) for point, _ in images_at(disk, k, MODES, 1)]
    some = [
        point for k in range(disk.crash_points) for point, _ in images_at(disk, k, MODES, 1, share)
    ]
    assert {point.position for point in some} == set(range(disk.crash_points))
    assert {point.mode for point in some} == {KILL, CUT, *MODES}
    assert set(some) < set(every) and len(some) <= len(every) // share + disk.crash_points


def test_a_state_is_judged_again_when_more_was_answered() -> None:
    """What is left out equals a state before it, with as much asked and answered."""
    disk = Explorer("append_disk", 1).disk
    known = Known(disk)
    judged: set[str] = set()
    left_out = 0
    for k in range(disk.crash_points):
        for point, image in images_at(disk, k, MODES, 1):
            events = len(disk.marks_until(k))
            state = f"{point.loss} {events} {image.contents()}"
            if known.is_new(point, image):
                judged.add(state)
            else:
                assert state in judged
                left_out += 1
    assert left_out > 50
