"""One unit of the campaign `power`: a server on a disk that loses its power again and again.

`python -m tests.campaigns.power_unit NUMBER DIRECTORY`, in a process of its own: all that it mounts
and starts is gone with it.  Its standard output is lines of JSON: `say` now and then, at the end
the outcome.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from headrace.client import Client
from headrace.core.errors import HeadraceError
from headrace.testing.process import ServerProcess
from tests.harness.events import Violation
from tests.harness.power_actors import (
    CAP_RECORDS,
    PATIENCE_MS,
    Actor,
    ConfigActor,
    QueueActor,
    SharedTopic,
    SharedWriter,
    TopicActor,
)
from tests.harness.power_lake import ArchivedTopic
from tests.harness.power_machine import (
    FILESYSTEMS,
    DyingPopen,
    Machine,
    NotMounted,
    die_with_parent,
)
from tests.harness.power_stream_actors import DurableStreamsActor, S2Actor
from tests.harness.write_log import DISK_MODES
from tests.support.checkout import ROOT

CUTS: Final = 8  # of one unit
DISK_BYTES: Final = 320 << 20  # the least that xfs takes is 300 MiB
LAKE_EVERY: Final = 3  # one unit in so many has a lake
LOAD_SECONDS: Final = (0.3, 2.5)
LOAD_SECONDS_LAKE: Final = (3.0, 7.0)
CUT_AFTER_MAX: Final = 60  # writes and syncs between the decision and the cut
CUT_PENDING: Final = (0, 1, 1, 2, 3, 5, 9)  # so many of them that no sync covers yet
CUT_PATIENCE_SECONDS: Final = 1.0
# Of a start, how many writes and syncs it may do before the power goes again.
START_WRITES_MAX: Final = 30
START_SECONDS: Final = 3.0
JOIN_SECONDS_MAX: Final = 120.0
CHECK_SECONDS_MAX: Final = 120.0

# Rotation, checkpoints and merges all the time.
SETTINGS: Final[dict[str, str | int]] = {
    "log": "error",
    "wal_file_bytes": "256KiB",
    "wal_batch_bytes_max": "64KiB",
    "wal_pending_bytes_max": "1MiB",
    "checkpoint_wal_bytes": "256KiB",
    "checkpoint_age_ms": 1_000,
    "memory_budget_bytes": "8MiB",
    "read_cache_bytes": "1MiB",
    "tag_index_bytes_max": "256KiB",
    "replay_memory_bytes": "1MiB",
    "disk_reserve_bytes": "1MiB",
    "segment_max_events": 400,
    "reader_threads": 1,
}


class Unit:
    """One directory over several power losses."""

    def __init__(self, number: int, directory: Path) -> None:
        self.number = number
        self.chance = random.Random(f"power {number}")
        self.kind = FILESYSTEMS[(number - 1) % len(FILESYSTEMS)]
        self.counts: Counter[str] = Counter()
        self.machine = Machine(directory, self.kind, DISK_BYTES)
        self.data = self.machine.root / "data"
        self.with_lake = number % LAKE_EVERY == 0
        self.archived = ArchivedTopic("archived", number, self.machine.root / "lake")
        self.shared = [SharedTopic("shared-fsync", "fsync"), SharedTopic("shared-disk", "disk")]
        self.actors = self._actors(number)
        self._errors = open(directory / "stderr", "w+b")  # noqa: SIM115 - closed with the process
        shards = 1 + number % 2
        self._settings = SETTINGS | {"wal_shards": shards}
        self.server: ServerProcess | None = None

    def _actors(self, seed: int) -> list[Actor]:
        writers: list[Actor] = [
            SharedWriter(topic, number, seed) for topic in self.shared for number in range(3)
        ]
        return [
            TopicActor("ledger", seed, "fsync"),
            TopicActor("capped", seed, "fsync", cap=CAP_RECORDS),
            TopicActor("orders", seed, "disk"),
            TopicActor("clicks", seed, "memory"),
            *writers,
            QueueActor("jobs", seed, leases_durable=False),
            QueueActor("leases", seed, leases_durable=True),
            ConfigActor("config", seed),
            DurableStreamsActor("ds-one", seed),
            DurableStreamsActor("ds-two", seed),
            S2Actor("s2-actor", seed),
            *([self.archived] if self.with_lake else []),
        ]

    def run(self) -> None:
        self.machine.make_filesystem()
        self.data.mkdir()
        if self.with_lake:
            self.archived.lake.mkdir()
        server = self._started()
        for cut in range(CUTS):
            say(f"unit {self.number} ({self.kind.name}): power loss {cut + 1} of {CUTS}")
            self._load_and_cut(server)
            self._come_back()
            if self.chance.random() < 0.35:
                self._cut_the_start()
            server = self._started()
            self._judge(server)
        code = server.stop()
        if code:
            raise Violation(f"the server ended with {code}: {self._said()}")
        self._check()
        self.counts["steps lost of classes that do not sync"] += sum(
            actor.lost for actor in (*self.shared, *self.actors) if hasattr(actor, "lost")
        )
        self.counts["lake rows compared"] += self.archived.rows
        self.counts["lake tables cut off"] += self.archived.mended

    # A life

    def _launched(self) -> ServerProcess:
        how: dict[str, Any] = dict(self._settings)
        return ServerProcess(self.data, stderr=self._errors, **how)

    def _started(self) -> ServerProcess:
        try:
            server = self.server = self._launched()
            with Client(server.url, deadline_ms=PATIENCE_MS) as client:
                client.ready()
        except HeadraceError as error:
            raise Violation(f"the server does not start: {error}; {self._said()}") from None
        return server

    def _load_and_cut(self, server: ServerProcess) -> None:
        seconds = LOAD_SECONDS_LAKE if self.with_lake else LOAD_SECONDS
        stop = threading.Event()
        threads = [
            threading.Thread(target=actor.live, args=(server, stop)) for actor in self.actors
        ]
        before = sum(actor.steps for actor in self.actors)
        with self._syncing(server):
            for thread in threads:
                thread.start()
            time.sleep(self.chance.uniform(*seconds))
            self.machine.arm(self.chance.randrange(CUT_AFTER_MAX), self.chance.choice(CUT_PENDING))
            at = self.machine.wait_for_cut(CUT_PATIENCE_SECONDS)
            stop.set()
            server.kill()
        for thread in threads:
            thread.join(JOIN_SECONDS_MAX)
            assert not thread.is_alive(), "an actor hangs"
        self._count_cut(at)
        self.counts["calls answered"] += sum(actor.steps for actor in self.actors) - before
        for actor in self.actors:
            if actor.failed is None:
                continue
            when, error = actor.failed
            if isinstance(error, Violation) or when < at["at_ns"]:
                raise Violation(f"{actor.name}: {type(error).__name__}: {error}")

    @contextlib.contextmanager
    def _syncing(self, server: ServerProcess) -> Iterator[None]:
        if not self.with_lake:
            yield
            return
        self.archived.create(server)
        process = self.archived.syncing(server, self.chance.randrange(1 << 30))
        try:
            yield
        finally:
            process.kill()
            process.wait()

    def _cut_the_start(self) -> None:
        """Power is lost again while the server recovers."""
        after = self.chance.randrange(1, START_WRITES_MAX)
        over = threading.Event()

        def start() -> None:
            with contextlib.suppress(HeadraceError):
                server = self._launched()
                over.wait(JOIN_SECONDS_MAX)
                server.kill()

        thread = threading.Thread(target=start)
        self.machine.arm(after, self.chance.choice(CUT_PENDING))
        thread.start()
        at = self.machine.wait_for_cut(START_SECONDS)
        over.set()
        thread.join(JOIN_SECONDS_MAX)
        self._count_cut(at)
        self.counts["power losses of a start"] += 1
        self._come_back()

    def _count_cut(self, at: dict[str, int]) -> None:
        self.counts["power losses"] += 1
        self.counts[f"power losses on {self.kind.name}"] += 1
        self.counts["writes without a barrier"] += at["pending"]

    def _come_back(self) -> None:
        mode = self.chance.choice(DISK_MODES)
        self.counts += self.machine.come_back(mode, self.chance.randrange(1 << 30))

    def _judge(self, server: ServerProcess) -> None:
        for actor in self.actors:
            self.counts["records judged"] += actor.judge(server)

    # The end

    def _check(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "headrace", "check", "--data-dir", str(self.data)],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            capture_output=True, timeout=CHECK_SECONDS_MAX, check=False,
            preexec_fn=die_with_parent,
        )  # fmt: skip
        if done.returncode:
            raise Violation(f"headrace check: {(done.stdout + done.stderr).decode()[-2_000:]}")
        self.counts["directories checked"] += 1

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-2_000:]


def say(words: str) -> None:
    print(json.dumps({"say": words}), flush=True)


def main() -> None:
    number, directory = int(sys.argv[1]), Path(sys.argv[2])
    die_with_parent()
    ServerProcess.popen = DyingPopen
    unit = Unit(number, directory)
    finding = ""
    try:
        unit.run()
    except NotMounted as error:
        # That is between the filesystem and its disk: it is counted, and said in the report.
        unit.counts["filesystems that did not come back"] += 1
        say(f"unit {number}: {unit.kind.name} does not come back: {error}")
    except Violation as violation:
        finding = f"unit {number} ({unit.kind.name}): {violation}"
    finally:
        if unit.server is not None:
            unit.server.process.kill()
            unit.server.process.wait()
        unit.machine.close()
    print(json.dumps({"counts": unit.counts, "finding": finding}), flush=True)
    os._exit(0)  # what still runs ends with the mounts


if __name__ == "__main__":
    main()
