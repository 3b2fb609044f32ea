"""One process at a time on a directory, and a process that was frozen for a while."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

SEED = 77
HARMLESS = ("throttled", "topic_not_found")


def test_a_second_process_is_refused_by_name(workers, tmp_path: Path) -> None:
    job = {"directory": str(tmp_path), "ops": 0, "finish": "obey"}
    first = workers.start(**job)
    first.last("loaded")
    for _ in range(2):
        second = workers.start(**job)
        _, code, _, words = second.last("refused")
        assert code == "data_dir_locked"
        assert f"process {first.pid}" in words and str(tmp_path) in words, words
        assert second.end() == 3
    # The first one did not notice.
    assert first.ask("append a 3 10 fsync")[0] == "done"
    assert first.ask("count a")[2] == 3
    first.kill()
    third = workers.start(**job)
    third.last("loaded")
    assert third.ask("count a")[2] == 3
    third.tell("close")
    third.last("end")
    fourth = workers.start(**job)
    fourth.last("loaded")
    assert fourth.ask("count a")[2] == 3


def test_a_frozen_process_goes_on(make_story, workers, tmp_path: Path) -> None:
    story = make_story(SEED)
    worker = workers.start(directory=str(tmp_path), seed=SEED, run=0)
    words = story.follow(0, worker.hear("stat"))
    assert words[-1] == "stat", worker.complaints()
    for seconds in (0.05, 0.3):
        os.kill(worker.pid, signal.SIGSTOP)
        time.sleep(seconds)
        # A frozen owner is an owner.
        second = workers.start(directory=str(tmp_path), ops=0)
        assert second.last("refused")[1] == "data_dir_locked"
        os.kill(worker.pid, signal.SIGCONT)
        words = story.follow(0, worker.hear("stat"))
        words += story.follow(0, worker.hear("stat"))
        assert "ack" in words and words[-1] == "stat", (words, worker.complaints())
    worker.kill()
    story.follow(0, worker.hear())
    assert not [error for error in story.errors if error[1] not in HARMLESS], story.errors
    last = workers.start(directory=str(tmp_path), seed=SEED, run=1, ops=0, dump_first=True)
    assert story.follow(1, last.hear("end"))[-1] == "end", last.complaints()
