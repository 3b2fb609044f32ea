"""A program that opens an engine on a directory and does what one line of JSON tells it.

It reads the line only after its imports, so that a test can have the next one ready.  Each line it
prints is one JSON array, written at once: `go` before an operation is begun, `ack`, `del`, `drop`
or `err` only after its ticket was resolved.  A whole line is true, even if the process is
killed right after it.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import msgspec

from headrace.core.errors import HeadraceError
from headrace.core.thread_runtime import ThreadRuntime
from headrace.engine.engine import Engine
from headrace.storage.fs import RealFilesystem
from tests.harness.traffic import (
    APPEND,
    CHECKPOINT,
    DELETE_BEFORE,
    DELETE_TAG,
    DROP,
    READ,
    Answer,
    Op,
    Traffic,
    begin,
    dump_topic,
    place_of,
    small_policy,
    small_settings,
)

STAT_EVERY = 20


class Job(msgspec.Struct):
    """What to do."""

    directory: str
    seed: int = 1
    run: int = 0
    settings: dict[str, int] = {}
    ops: int | None = None  # None: until killed
    window: int = 16  # operations in flight
    dump_first: bool = False
    dump_last: bool = False
    retries: list[tuple[int, int]] = []
    finish: str = "close"  # or "abandon", or "obey": do what further lines say


def say(*words: object) -> None:
    """One whole line, past every buffer."""
    line = msgspec.json.encode(words) + b"\n"
    while line:
        line = line[os.write(1, line) :]


def describe(error: BaseException) -> tuple[str, str, str]:
    """The code of an error, what it says about its cause, and its words."""
    if isinstance(error, HeadraceError):
        why = error.detail.get("outcome") or error.detail.get("reason") or ""
        return error.code, str(why), str(error)
    return type(error).__name__, "", str(error)


class Worker:
    """Runs one job."""

    def __init__(self, job: Job, engine: Engine) -> None:
        self.job = job
        self.engine = engine
        self._flying: deque[tuple[Op, Answer]] = deque()

    def dump(self) -> None:
        for info in self.engine.topics():
            try:
                say("dump", dump_topic(self.engine, info.topic))
            except HeadraceError as error:
                say("unreadable", info.topic, *describe(error))
        say("dumped")

    def retry(self) -> None:
        """Send appends of earlier runs again, as a client without an answer would."""
        by_run: dict[int, Traffic] = {}
        for run, number in self.job.retries:
            traffic = by_run.setdefault(run, Traffic(self.job.seed, run))
            say("again", run, number)
            done: Any = begin(self.engine, traffic[number]).result()
            answer = (done.epoch, done.first_seq, done.last_seq, done.ts, done.deduped)
            say("retry", run, number, answer)

    def load(self) -> None:
        traffic = Traffic(self.job.seed, self.job.run)
        number = 0
        while self.job.ops is None or number < self.job.ops:
            self.one(traffic[number])
            number += 1
            if number % STAT_EVERY == 0:
                self.stat()
        self.settle()
        self.stat()

    def stat(self) -> None:
        checkpointer = self.engine.checkpointer
        say("stat", checkpointer.checkpoints_total, checkpointer.files.merges_total)

    def one(self, op: Op) -> None:
        if op.kind not in (APPEND, CHECKPOINT):
            # What a delete means depends on what is visible, so that has to be certain.
            while any(other.topic == op.topic for other, _ in self._flying):
                self._wait()
        place = place_of(self.engine, op)
        say("go", op.number, place)
        ticket = begin(self.engine, op, place)
        ticket.when_done(lambda done: self.report(op, done))
        self._flying.append((op, ticket))
        if op.kind == DROP:
            self.settle()
        while len(self._flying) >= self.job.window:
            self._wait()

    def report(self, op: Op, done: Answer) -> None:
        if done.error is not None:
            say("err", op.number, *describe(done.error))
            return
        got: Any = done.result()
        if op.kind == APPEND:
            say("ack", op.number, (got.epoch, got.first_seq, got.last_seq, got.ts, got.deduped))
        elif op.kind in (DELETE_BEFORE, DELETE_TAG):
            say("del", op.number, got.deleted)
        elif op.kind == DROP:
            say("drop", op.number, got.deleted)
        elif op.kind == READ:
            seqs = [record.seq for record in got.records]
            assert seqs == sorted(set(seqs)), (op, seqs)

    def _wait(self) -> None:
        ticket: Any = self._flying.popleft()[1]
        if not ticket.done:
            self.engine.runtime.wait(ticket)

    def settle(self) -> None:
        while self._flying:
            self._wait()

    def obey(self) -> None:
        """Do what further lines say, one answer a line."""
        for line in sys.stdin:
            verb, *words = line.split()
            if verb == "close":
                return
            try:
                say("done", verb, self.command(verb, words))
            except (HeadraceError, OSError) as error:
                say("failed", verb, *describe(error))

    def command(self, verb: str, words: list[str]) -> object:
        engine = self.engine
        if verb == "append":
            topic, count, size, durability = words
            data = [b"x" * int(size)] * int(count)
            done = engine.append(topic, data, config={"durability": durability}).result()
            return done.first_seq, done.last_seq, done.ts
        if verb == "count":
            return len(dump_topic(engine, words[0]).records)
        if verb == "drop":
            return engine.delete_topic(words[0]).result().deleted
        if verb == "trim":
            return engine.delete(words[0], before_seq=int(words[1])).result().count
        if verb == "checkpoint":
            engine.checkpoint().result()
        elif verb == "limit":
            limit(words[0], words[1])
        elif verb == "fill":
            Path(self.job.directory, words[0]).write_bytes(bytes(int(words[1])))
        elif verb == "unlink":
            Path(self.job.directory, words[0]).unlink()
        elif verb == "drain":
            engine.runtime.drain()
        elif verb == "rest":
            # Timers of a synchronous program run only while it calls in.
            for _ in range(10):
                time.sleep(2 * engine.settings.sync_interval_ms / 1000)
                engine.runtime.drain()
                engine.read("ledger", last=1).result()
        elif verb == "state":
            return [shard.state for shard in engine.state.shards]
        elif verb == "reopen":
            engine.abandon()
            self.engine = open_engine(self.job)
        else:
            raise SystemExit(f"no such command: {verb}")
        return None


def limit(name: str, value: str) -> None:
    """Lower a limit of this process; `+n` descriptors means n more than are open."""
    which = {"files": resource.RLIMIT_NOFILE, "size": resource.RLIMIT_FSIZE}[name]
    hard = resource.getrlimit(which)[1]
    if value.startswith("+"):
        soft = len(os.listdir("/proc/self/fd")) - 1 + int(value)
    else:
        soft = hard if value == "off" else int(value)
    resource.setrlimit(which, (soft, hard))


def open_engine(job: Job) -> Engine:
    fs = RealFilesystem(job.directory)
    fs.mkdir("")
    runtime = ThreadRuntime(threads={"read": 1})
    engine = Engine(fs, runtime, small_settings(**job.settings), policy=small_policy())
    engine.recover()
    return engine


def main() -> int:
    # Without this an overlong file ends the process instead of the write.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    say("started", os.getpid())
    job = msgspec.json.decode(sys.stdin.readline(), type=Job)
    try:
        engine = open_engine(job)
    except (HeadraceError, OSError) as error:
        say("refused", *describe(error))
        return 3
    worker = Worker(job, engine)
    assert engine.recovered is not None
    say("ready", engine.recovered._asdict())
    if job.dump_first:
        worker.dump()
    worker.retry()
    worker.load()
    if job.dump_last:
        worker.dump()
    say("loaded")
    if job.finish == "obey":
        worker.obey()
    if job.finish == "abandon":
        worker.engine.abandon()
    else:
        worker.engine.close()
    say("end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
