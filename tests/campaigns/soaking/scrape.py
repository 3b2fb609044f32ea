"""What the server says of itself in its metrics, added up over its lives."""

from __future__ import annotations

import http.client
import re
from collections import Counter

LINE = re.compile(r"^(headrace_\w+(?:\{[^}]*\})?) (\S+)$", re.MULTILINE)
ANSWER_SECONDS_MAX = 10.0
# Counters that start at 0 with each life, and what they are called in the report.
TOTALS = {
    "headrace_checkpoints_total": "checkpoints",
    "headrace_checkpoint_failures_total": "checkpoints that failed",
    "headrace_scrub_verified_files_total": "files verified by the scrub",
    "headrace_wal_rotations_total": "log files begun",
    "headrace_wal_fsyncs_total": "syncs of the log",
}
# What has to be 0 at all times.
ZERO = (
    "headrace_checkpoint_failures_total",
    "headrace_scrub_damaged_files",
    "headrace_scrub_damage_found_total",
    "headrace_wal_read_only",
    "headrace_degraded_parts",
)


class Scrapes:
    """The newest figures, and the totals of the lives before."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.now: dict[str, float] = {}
        self._before: Counter[str] = Counter()
        self.wrong: dict[str, float] = {}

    def look(self) -> None:
        """Ask the server; one that is away is asked the next time."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_SECONDS_MAX)
        try:
            connection.request("GET", "/v0/metrics")
            text = connection.getresponse().read().decode()
        except (OSError, http.client.HTTPException):
            return
        finally:
            connection.close()
        self.now = {name: float(value) for name, value in LINE.findall(text)}
        self.wrong |= {name: self.now[name] for name in ZERO if self.now.get(name)}

    def new_life(self) -> None:
        self._before.update({name: int(self.now.get(name, 0)) for name in TOTALS})
        self.now = {}

    def totals(self) -> Counter[str]:
        return Counter(
            {
                words: self._before[name] + int(self.now.get(name, 0))
                for name, words in TOTALS.items()
            }
        )

    def lag(self, topics: tuple[str, ...]) -> int:
        """Records of these topics that are not in the lake."""
        series = (f'headrace_topic_archive_lag_records{{topic="{name}"}}' for name in topics)
        return int(sum(self.now.get(name, 0) for name in series))
