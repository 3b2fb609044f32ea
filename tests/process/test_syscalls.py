"""Death and errors at an exact system call of a real process, by the injection of `strace`.

Each case starts from a copy of a directory that a killed process left, so that recovery, load,
checkpoints and the clean stop are all within reach of a fault.  Afterwards the directory is opened
without faults, and the ledger says whether anything acknowledged is missing.
"""

from __future__ import annotations

import copy
import random
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from headrace.core.runtime import StepRuntime
from headrace.engine.engine import Engine
from headrace.storage.fs import RealFilesystem
from tests.harness.traffic import CHECKPOINT, dump, small_policy, small_settings
from tests.support.strace import QUICKLY, STRACE, strace_works

SEED = 5
# The points are taken from a shorter run than the one they are used in, so that each is reached.
OPS_TRIAL = 200
OPS = 400
OPS_STOP = 25
# Which of the two a vectored write is depends on the C library.
VECTORED = "pwritev,pwritev2"
WRITES = f"pwrite64,{VECTORED}"
TRACED = f"{WRITES},fdatasync,fsync,rename,unlink"
# How many of the forty points each call gets; one in four is in the default suite.
POINTS = {
    VECTORED: 10,
    "pwrite64": 7,
    "fdatasync": 10,
    "fsync": 7,
    "rename": 3,
    "unlink": 3,
}
FIRST_OF = 4

pytestmark = pytest.mark.skipif(
    not strace_works(), reason="strace is not installed, or may not trace here"
)


class Start(NamedTuple):
    """A directory that a killed process left, what was acknowledged, and what a run calls."""

    directory: Path
    story: object
    calls: dict[str, int]  # the most that one thread makes


def copied(start: Start, tmp_path: Path) -> tuple[Path, object]:
    """A copy that can be spoilt."""
    directory = tmp_path / "data"
    shutil.copytree(start.directory, directory)
    return directory, copy.deepcopy(start.story)


@pytest.fixture(scope="module")
def start(make_workers, make_story, tmp_path_factory: pytest.TempPathFactory) -> Start:
    scratch = tmp_path_factory.mktemp("start")
    directory = scratch / "data"
    workers = make_workers()
    story = make_story(SEED)
    worker = workers.start(directory=str(directory), seed=SEED, run=0, finish="obey", ops=400)
    story.follow(0, worker.hear("loaded"))
    worker.kill()
    story.ledger.compare(look(directory))

    log = scratch / "calls"
    trial = scratch / "trial"
    shutil.copytree(directory, trial)
    worker = workers.spawn(*STRACE, QUICKLY, "-o", str(log), "-e", f"trace={TRACED}")
    worker.tell({"directory": str(trial), "seed": SEED, "run": 1, "ops": OPS_TRIAL})
    worker.last("end")
    assert worker.end() == 0, worker.complaints()
    return Start(directory, story, most_by_thread(log))


def most_by_thread(log: Path) -> dict[str, int]:
    """How often each call was made by the thread that made it most; strace counts by thread."""
    text = log.read_text().replace("pwritev2(", "pwritev(")
    by_thread = Counter(re.findall(r"^(\d+) +(\w+)\(", text, flags=re.MULTILINE))
    calls: dict[str, int] = {}
    for (_, name), count in by_thread.items():
        name = VECTORED if name == "pwritev" else name
        calls[name] = max(calls.get(name, 0), count)
    return calls


def look(directory: Path) -> dict:
    """What is in a directory, by recovering it in this process; then let go of it."""
    settings = small_settings()
    fs = RealFilesystem(directory)
    engine = Engine(fs, StepRuntime(), settings, policy=small_policy())
    try:
        engine.recover()
        return dump(engine)
    finally:
        engine.abandon()


def run_with(workers, directory: Path, inject: list[str], **job: object):
    """A process under strace, with its job."""
    calls = sorted({name for rule in inject for name in rule.partition(":")[0].split(",")})
    rules = [word for rule in inject for word in ("-e", f"inject={rule}")]
    speed = [] if any("signal=" in rule for rule in inject) else [QUICKLY]
    output = ["-o", "/dev/null", "-e", f"trace={','.join(calls)}"]
    worker = workers.spawn(*STRACE, *speed, *output, *rules)
    worker.tell({"directory": str(directory), "seed": SEED, "run": 1, "ops": OPS, **job})
    return worker


def spread(count: int, last: int, seed: int) -> list[int]:
    """So many of 1..last, the first and the last among them."""
    chance = random.Random(seed)
    if last <= count:
        return list(range(1, last + 1))
    inner = chance.sample(range(2, last), count - 2)
    return sorted([1, last, *inner])


@pytest.mark.parametrize("part", ["some", pytest.param("others", marks=pytest.mark.slow)])
@pytest.mark.parametrize("call", POINTS)
def test_death_at_an_exact_call(
    call: str, part: str, start: Start, workers, tmp_path: Path
) -> None:
    points = spread(POINTS[call], start.calls[call], SEED)
    assert len(points) == POINTS[call], (call, start.calls)
    some = points[::FIRST_OF]
    for point in some if part == "some" else [point for point in points if point not in some]:
        directory, story = copied(start, tmp_path / str(point))
        worker = run_with(workers, directory, [f"{call}:signal=SIGKILL:when={point}"])
        words = story.follow(1, worker.hear())
        assert "end" not in words, f"{call} {point} was not reached"
        worker.kill()
        story.ledger.compare(look(directory))
        story.ledger.compare(look(directory))
        shutil.rmtree(directory)


@pytest.mark.parametrize(
    "call",
    ["fsync", *(pytest.param(call, marks=pytest.mark.slow) for call in ("rename", "unlink"))],
)
def test_death_during_a_clean_stop(call: str, start: Start, workers, tmp_path: Path) -> None:
    few = {"ops": OPS_STOP, "window": 1}
    directory, _ = copied(start, tmp_path / "trial")
    log = tmp_path / "calls"
    worker = workers.spawn(*STRACE, QUICKLY, "-o", str(log), "-e", f"trace={call}")
    worker.tell({"directory": str(directory), "seed": SEED, "run": 1, **few})
    assert worker.last("end") and worker.end() == 0, worker.complaints()
    last = most_by_thread(log)[call]
    for point in range(max(1, last - 2), last + 1):
        directory, story = copied(start, tmp_path / str(point))
        rule = f"{call}:signal=SIGKILL:when={point}"
        worker = run_with(workers, directory, [rule], **few)
        story.follow(1, worker.hear())
        worker.kill()
        story.ledger.compare(look(directory))


def test_the_points_are_forty() -> None:
    assert sum(POINTS.values()) >= 40


# Of a refused append: its topic is not there for others, its producer's next number is a gap.
CONSEQUENCES = {("topic_not_found", ""), ("producer_gap", "")}


def errors_of(story) -> set[tuple[str, str]]:
    """What clients were told; a checkpoint may fail in its own way."""
    return {(code, why) for op, code, why, _ in story.errors if op.kind != CHECKPOINT}


@pytest.mark.parametrize(
    "part", [0.0, 0.75, *(pytest.param(part, marks=pytest.mark.slow) for part in (0.6, 0.9))]
)
def test_a_failed_sync_ends_writing(part: float, start: Start, workers, tmp_path: Path) -> None:
    directory, story = copied(start, tmp_path)
    point = 1 + int(part * (start.calls["fdatasync"] - 1))
    rule = f"fdatasync:error=EIO:when={point}"
    worker = run_with(workers, directory, [rule], dump_last=True)
    words = story.follow(1, worker.hear(), live=True)
    if "refused" in words:
        assert part < 0.5, words  # recovery itself could not sync, and said so
    else:
        # Whoever waited does not know; whoever comes later is told why; nobody is acknowledged.
        assert ("not_ready", "wal_read_only") in errors_of(story), errors_of(story)
        assert errors_of(story) <= {
            ("internal", "unknown"),
            ("not_ready", "wal_read_only"),
            *CONSEQUENCES,
        }, errors_of(story)
        after = words[words.index("err") :]
        assert not {"ack", "del"} & set(after), after
        assert "dumped" in after  # reading went on, and agreed with what was acknowledged
        assert words[-1] == "end" and worker.end() == 0, worker.complaints()
    story.ledger.compare(look(directory))


@pytest.mark.parametrize(
    "part", [0.5, *(pytest.param(part, marks=pytest.mark.slow) for part in (0.1, 0.8))]
)
def test_a_full_disk_refuses_and_keeps(part: float, start: Start, workers, tmp_path: Path) -> None:
    directory, story = copied(start, tmp_path)
    point = 2 + int(part * start.calls[VECTORED])
    rules = [f"{WRITES}:error=ENOSPC:when={point}+"]
    worker = run_with(workers, directory, rules, dump_last=True)
    words = story.follow(1, worker.hear(), live=True)
    if "refused" not in words:
        assert ("not_ready", "disk_full") in errors_of(story), errors_of(story)
        assert errors_of(story) <= {
            ("not_ready", "disk_full"),
            *CONSEQUENCES,
        }, errors_of(story)
        assert "dumped" in words
        assert words[-1] == "end" and worker.end() == 0, worker.complaints()
    story.ledger.compare(look(directory))


def test_writing_resumes_when_there_is_room_again(start: Start, workers, tmp_path: Path) -> None:
    directory, story = copied(start, tmp_path)
    point = start.calls[VECTORED] // 3
    rules = [f"{VECTORED}:error=ENOSPC:when={point}..{point + 6}"]
    worker = run_with(workers, directory, rules, dump_last=True)
    words = story.follow(1, worker.hear(), live=True)
    assert ("not_ready", "disk_full") in errors_of(story), errors_of(story)
    after = words[words.index("err") :]
    assert after.count("ack") > OPS // 5, Counter(after)
    assert words[-1] == "end" and worker.end() == 0, worker.complaints()
    story.ledger.compare(look(directory))


@pytest.mark.parametrize(
    "rule", ["fdatasync,fsync:retval=0", "fdatasync:delay_enter=20000"], ids=["lying", "slow"]
)
def test_a_lying_or_slow_sync_survives_a_kill(rule, start: Start, workers, tmp_path: Path) -> None:
    directory, story = copied(start, tmp_path)
    for run, seconds in ((1, 0.1), (2, 0.3)):
        worker = run_with(workers, directory, [rule], run=run, ops=None, dump_first=True)
        words = story.follow(run, worker.hear("stat"))
        assert words[-1] == "stat", worker.complaints()
        story.follow(run, worker.hear(seconds=seconds))
        worker.kill()
        story.follow(run, worker.hear())
    story.ledger.compare(look(directory))
