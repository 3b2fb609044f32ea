"""The soak: one server under a mixed load for as long as there is, every record accounted for, and
memory, files and disk flat.

The clients of all dialects are two processes; beside them run a lake sync and a worker of
pipelines.  In the first third the server is killed and stopped in turn; the life after that is the
one whose memory is judged.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator

from headrace.core.errors import ConfigError
from headrace.spark.java import find_java
from tests.campaigns.campaign import Campaign, Finding, Outcome, Work
from tests.campaigns.soaking import lake_account
from tests.campaigns.soaking.crews import CREWS, Crew, Said
from tests.campaigns.soaking.flatness import BOUNDS, Life, measure
from tests.campaigns.soaking.lives import Lives, Program, Turnover, check, syncing, working
from tests.campaigns.soaking.native_crew import LAKE_TOPICS
from tests.campaigns.soaking.scrape import Scrapes
from tests.campaigns.soaking.site import quantile_ms

SECONDS_MIN = 150.0  # Spark needs most of a minute to begin
SAMPLE_SECONDS = 2.0
SCRAPE_SECONDS = 10.0
RESTART_PART = 1 / 3  # of the time, in which there are restarts
RESTART_SECONDS_MAX = 900.0  # between two of them
RESTARTS_MIN = 2
REASON_CHARACTERS_MAX = 3_000


def restart_times(seconds: float) -> list[float]:
    """When the server is killed, stopped, killed, …"""
    first_part = seconds * RESTART_PART
    every = min(RESTART_SECONDS_MAX, first_part / RESTARTS_MIN)
    return [every * number for number in range(1, int(first_part / every + 1e-6) + 1)]


class Soak(Campaign):
    name = "soak"
    about = "One server under a mixed load for the whole time, every record accounted for."
    goals = {"seconds": 3_600}  # noqa: RUF012 - as of the base class
    workers_max = 1
    unit_seconds_max = 26 * 3600.0

    def unit(self, work: Work) -> Outcome:
        return Soaking(work, self.repeat(work.number)).run()

    def missing(self) -> str | None:
        try:
            find_java({})
        except ConfigError as error:
            return str(error)
        return None

    def repeat(self, number: int) -> str:
        return f"./run test --campaign {self.name} --hours 1"


class Soaking:
    """One soak."""

    def __init__(self, work: Work, repeat: str) -> None:
        self._work, self._repeat = work, repeat
        self._seconds = max(work.seconds_left, SECONDS_MIN)
        self._lives = Lives(work.directory)
        self._scrapes = Scrapes(self._lives.port)
        self._turnover = Turnover(self._lives.data)
        self._begun = time.monotonic()
        self._life = Life(0.0)
        self._past: list[Life] = []
        self._findings: list[str] = []
        self._restarts: Counter[str] = Counter()
        self._rows = 0  # of the lake, all compared
        self._crews: list[Crew] = []
        self._programs: list[Program] = []

    @property
    def _now(self) -> float:
        return time.monotonic() - self._begun

    def run(self) -> Outcome:
        with self._everybody():
            self._load()
            seconds = self._now
            said = self._finish()
        return self._outcome(seconds, said)

    @contextlib.contextmanager
    def _everybody(self) -> Iterator[None]:
        directory, url = self._work.directory, self._lives.url
        try:
            self._lives.start()
            self._crews = [Crew(kind, self._lives.port) for kind in CREWS]
            self._programs = [working(directory, url), syncing(directory, url, LAKE_TOPICS)]
            yield
        finally:
            for crew in self._crews:
                crew.end()
            for program in self._programs:
                program.end()
            self._lives.end()

    def _load(self) -> None:
        """Look, and end lives, until the time is up."""
        due = restart_times(self._seconds)
        scraped = 0.0
        while self._now < self._seconds:
            time.sleep(SAMPLE_SECONDS)
            if not self._lives.alive:
                self._findings.append("the server ended by itself")
                return
            self._turnover.look()
            self._life.add(measure(self._lives.pid, self._lives.data, self._now))
            if self._now - scraped > SCRAPE_SECONDS:
                scraped = self._now
                self._scrapes.look()
            for program in list(self._programs):
                if program.process.poll() is not None:
                    self._findings.append(f"{program.name} ended: {program.tail()}")
                    self._programs.remove(program)
            self._say([crew.listen() for crew in self._crews])
            if due and self._now >= due[0]:
                due.pop(0)
                self._restart()

    def _restart(self) -> None:
        self._scrapes.look()
        self._scrapes.new_life()
        if self._lives.number % 2:
            self._lives.kill()
            self._restarts["kills"] += 1
        else:
            if (code := self._lives.stop()) != 0:
                self._findings.append(f"the server ended with {code} at a clean stop")
            self._restarts["clean restarts"] += 1
        self._past.append(self._life)
        self._lives.start()
        self._life = Life(self._now)

    def _say(self, said: list[Said]) -> None:
        counts = sum((each.counts for each in said), Counter())
        appended = sum(n for name, n in counts.items() if name.startswith("records appended"))
        read = sum(n for name, n in counts.items() if name.startswith("records read"))
        peaks, now = self._life.peaks(), max(self._now, 1.0)
        lags = {name: lag for each in said for name, lag in each.lags.items()}
        found = len(self._findings) + sum(len(each.findings) for each in said)
        resident = self._scrapes.now.get("headrace_process_resident_bytes", 0.0) / (1 << 20)
        self._work.say(
            f"{appended:,} appended ({appended / now:.0f}/s), {read:,} read ({read / now:.0f}/s), "
            f"resident {resident:.1f} MiB (peak {peaks['resident MiB']:.1f}), behind: pipeline "
            f"{lags.get('pipeline', 0):,}, lake {self._scrapes.lag(LAKE_TOPICS):,}; life "
            f"{self._lives.number}; {found} wrong so far"
        )

    def _finish(self) -> list[Said]:
        """Have everybody come to an end, and the accounts of the lake closed."""
        self._work.say("closing the accounts")
        for crew in self._crews:
            crew.stop()
        said = [crew.finish() for crew in self._crews]
        self._scrapes.look()
        heads = {name: head for each in said for name, head in each.heads.items()}
        self._work.say("comparing the lake")
        for program in self._programs:
            program.stop()
        directory, url = self._work.directory, self._lives.url
        wrong = lake_account.close(directory, url, LAKE_TOPICS, heads)
        self._findings += wrong
        if not wrong:
            self._rows = sum(heads[topic] for topic in LAKE_TOPICS)
        if (code := self._lives.stop()) != 0:
            self._findings.append(f"the server ended with {code} at its last stop")
        self._findings += check(self._lives.data)
        self._findings += self._lives.complaints()
        return said

    def _outcome(self, seconds: float, said: list[Said]) -> Outcome:
        counts = sum((each.counts for each in said), Counter()) + self._scrapes.totals()
        counts.pop("findings", None)
        counts += self._restarts
        counts["seconds"] = round(seconds)
        counts["rows of the lake"] = self._rows
        counts["files of segments made"] = self._turnover.made
        counts["files of segments removed"] = self._turnover.removed
        for kind in ("records appended", "records read"):
            counts[kind] = sum(n for name, n in counts.items() if name.startswith(f"{kind}:"))
        reasons = [*self._findings, *(reason for each in said for reason in each.findings)]
        reasons += [f"{name} is {value:.0f}" for name, value in self._scrapes.wrong.items()]
        reasons += [reason for life in (*self._past, self._life) for reason in life.wrong()]
        findings = [Finding(r[:REASON_CHARACTERS_MAX], self._repeat) for r in reasons]
        return Outcome(counts, findings, self._notes(said))

    def _notes(self, said: list[Said]) -> dict[str, object]:
        latencies = sum((each.latencies for each in said), Counter())
        rises, peaks = self._life.rises(), self._life.peaks()
        warm = self._life.warm
        judged = warm[-1].seconds - warm[0].seconds if warm else 0.0
        notes: dict[str, object] = {
            "append p50, ms": round(quantile_ms(latencies, 0.5), 2),
            "append p99, ms": round(quantile_ms(latencies, 0.99), 2),
            "seconds of the last life that the slopes are of": round(judged),
        }
        for bound in BOUNDS:
            notes[f"{bound.name}: peak"] = round(peaks[bound.name], 2)
            notes[f"{bound.name}: rise in 10 minutes"] = round(rises[bound.name], 3)
        return notes
