"""Runs a campaign: hands its units to processes until the time is up, and keeps what came of them.

What is known is on disk after every unit, so the command may be stopped at any time and started
again.  Only this file starts processes of a campaign.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from multiprocessing.connection import Connection, wait
from pathlib import Path

from tests.campaigns import report
from tests.campaigns.campaign import Campaign, Finding, Outcome, Work
from tests.campaigns.record import Record, Run, load, save

LINE_SECONDS = 1.0  # how often a terminal is told
LOG_SECONDS = 60.0  # how often anything else is
REASON_CHARACTERS_MAX = 4_000


class Progress:
    """The live line."""

    def __init__(self, campaign: Campaign, record: Record, seconds: float) -> None:
        self._campaign, self._record, self._seconds = campaign, record, seconds
        self._begun = time.monotonic()
        self._told = 0.0
        self._said = ""
        self._live = sys.stderr.isatty()

    def say(self, words: str) -> None:
        self._said = words

    def tell(self, *, last: bool = False) -> None:
        """Write the line, if it is due."""
        now = time.monotonic()
        if not last and now - self._told < (LINE_SECONDS if self._live else LOG_SECONDS):
            return
        self._told = now
        took = now - self._begun
        counts = Counter(self._record.runs[-1].counts)
        figures = ", ".join(
            f"{count:,} {name} ({count / max(took, 1e-9):,.1f}/s)"
            for name, count in counts.most_common(3)
        )
        line = (
            f"{self._campaign.name} {report.clock(took)} of {report.clock(self._seconds)}: "
            f"{figures or 'begins'}; {self._record.findings_total} findings"
            f"{'; ' + self._said if self._said else ''}"
        )
        width = shutil.get_terminal_size().columns - 1
        sys.stderr.write(f"\r{line[:width]:<{width}}" if self._live else line + "\n")
        if last and self._live:
            sys.stderr.write("\n")
        sys.stderr.flush()


class Worker:
    """A process that does one unit at a time, in a session of its own: what it starts ends with
    it."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        self.number = 0  # of the unit it does; 0: none
        self.deadline = 0.0
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve_units, args=(self._campaign, theirs))
        self._process.start()
        theirs.close()

    def begin(self, number: int, seconds_left: float) -> None:
        self.number = number
        self.deadline = time.monotonic() + self._campaign.unit_seconds_max
        self.pipe.send((number, seconds_left))

    def end(self) -> None:
        """Have the process and all that it started end."""
        if self._process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
        self._process.join()
        self.pipe.close()

    def renew(self) -> None:
        self.end()
        self.number = 0
        self._start()


def serve_units(campaign: Campaign, pipe: Connection) -> None:
    """The loop of a worker's process."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            number, seconds_left = pipe.recv()
        except EOFError:
            return
        pipe.send((number, do_unit(campaign, number, seconds_left, lambda w: pipe.send((0, w)))))


def do_unit(campaign: Campaign, number: int, seconds_left: float, say: object) -> Outcome:
    """Do one unit here; whatever it raises is a finding."""
    with tempfile.TemporaryDirectory(prefix=f"{campaign.name}-") as directory:
        work = Work(number, seconds_left, Path(directory), say)  # type: ignore[arg-type]
        try:
            return campaign.unit(work)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            reason = f"unit {number}: {type(error).__name__}: {error}"[:REASON_CHARACTERS_MAX]
            return Outcome(findings=[Finding(reason, campaign.repeat(number))])


class Runner:
    """One start of a campaign."""

    def __init__(self, campaign: Campaign, directory: Path, commit: str) -> None:
        self._campaign = campaign
        self._path = directory / campaign.name / "record.json"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self.record = load(self._path)
        self._commit = commit

    def run(self, seconds: float, workers: int) -> Record:
        """Hand out units until the time is up, then wait for those under way."""
        campaign, record = self._campaign, self.record
        workers = min(workers, campaign.workers_max)
        started = datetime.now(UTC).isoformat(timespec="seconds")
        record.runs.append(Run(self._commit, started, workers=workers))
        # First what an earlier run did not finish.
        again, record.unfinished = record.unfinished, []
        progress = Progress(campaign, record, seconds)
        begun = time.monotonic()
        with started_workers(campaign, workers) as crew:
            try:
                while True:
                    took = record.runs[-1].seconds = time.monotonic() - begun
                    left = seconds - took
                    for worker in crew:
                        if worker.number or left <= 0:
                            continue
                        if again:
                            record.unfinished.append(number := again.pop(0))
                        elif (number := record.take(campaign.units) or 0) == 0:
                            continue
                        worker.begin(number, left)
                    if not any(worker.number for worker in crew):
                        break
                    self._wait(crew, progress)
                    progress.tell()
            finally:
                record.unfinished += again
                self._keep()
        progress.tell(last=True)
        return record

    def _wait(self, crew: list[Worker], progress: Progress) -> None:
        """Take what the workers say, and end those that hang or have ended."""
        busy = {worker.pipe: worker for worker in crew if worker.number}
        for pipe in wait(list(busy), timeout=LINE_SECONDS):
            worker = busy[pipe]  # type: ignore[index]
            try:
                number, said = worker.pipe.recv()
            except (EOFError, OSError):
                self._lost(worker, "the process that did it ended")
                continue
            if number == 0:
                progress.say(said)
                continue
            worker.number = 0
            self._done(number, said)
        for worker in crew:
            if worker.number and time.monotonic() > worker.deadline:
                self._lost(worker, f"took more than {self._campaign.unit_seconds_max:.0f} s")

    def _lost(self, worker: Worker, why: str) -> None:
        number = worker.number
        finding = Finding(f"unit {number}: {why}", self._campaign.repeat(number))
        worker.renew()
        self._done(number, Outcome(findings=[finding]))

    def _done(self, number: int, outcome: Outcome) -> None:
        self.record.add(number, outcome)
        for finding in outcome.findings:
            print(f"\n{finding.reason}\n    {finding.repeat}", flush=True)
        self._keep()

    def _keep(self) -> None:
        save(self._path, self.record)
        self._path.with_name("report.md").write_text(report.text(self._campaign, self.record))


@contextlib.contextmanager
def started_workers(campaign: Campaign, count: int) -> Iterator[list[Worker]]:
    crew = [Worker(campaign) for _ in range(count)]
    try:
        yield crew
    finally:
        for worker in crew:
            worker.end()
