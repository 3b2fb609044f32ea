"""A mixed load for minutes: memory has to stay flat, and no collection may take long.

Appends and reads of capped topics, watchers of a live one, and topics that come and go.  Memory
rises until the first checkpoints have run, so the second quarter is what the last is held against.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping

from bench.measure import Measured, Partner, step
from bench.served import Round, Served, column, serving

APPEND_RATE = 5_000.0
READ_RATE = 200.0
LIVE_RATE = 20.0
WATCHERS = 20
WINDOW_SECONDS = 10.0
QUICK_MINUTES = 0.04
GC_PAUSE = re.compile(r"^headrace_gc_pause_longest_seconds (\S+)", re.MULTILINE)


def run(directory: str, quick: bool, minutes: float) -> dict[str, Measured]:
    minutes = QUICK_MINUTES if quick else minutes
    window = min(WINDOW_SECONDS, minutes * 60)
    windows = max(1, round(minutes * 60 / window))
    seconds = window * windows
    with serving(directory) as server:
        server.call("PUT", "/v0/topics/orders", {"cap_records": 100_000})
        server.call("PUT", "/v0/topics/live", {"cap_records": 10_000})
        loads = Loads(server, window, windows)
        appends = int(LIVE_RATE * seconds)
        live = {"port": server.port, "topics": ["live"] * WATCHERS, "appends": appends}
        with Partner("streams:watch", **live) as watchers:
            watchers.ask()
            loads.start(appends)
            resident, pause = observe(server, seconds)
            appended, read = loads.finish()
            watchers.ask()
    quarter = max(1, len(resident) // 4)
    second, last = resident[quarter : 2 * quarter] or resident, resident[-quarter:]
    requests = sum(column(appended, "requests")) + sum(column(read, "requests"))
    return {
        "http_soak_growth": (sum(last) / len(last)) / (sum(second) / len(second)),
        "http_soak_resident": resident[-1],
        "http_soak_rate": requests / seconds,
        "http_soak_p99": max(column(appended, "p99")) / 1e3,
        "http_soak_gc_pause": pause * 1e3,
        "http_soak_minutes": seconds / 60,
    }


class Loads:
    """Generators side by side, each waited for by a thread of its own."""

    def __init__(self, server: Served, window: float, windows: int) -> None:
        self.server = server
        self.window = window
        self.windows = windows
        self.found: dict[str, list[Round]] = {}
        self.failures: list[BaseException] = []
        self.over = threading.Event()
        self.threads: list[threading.Thread] = []

    def start(self, live_appends: int) -> None:
        append = {"wire": "append", "topic": "orders"}
        diff = {"wire": "diff", "topic": "orders", "from_seq": 0, "limit": 100}
        live = {"port": self.server.port, "topic": "live", "rate": LIVE_RATE}
        self._begin(lambda: self._load("append", append, 16, APPEND_RATE))
        self._begin(lambda: self._load("read", diff, 4, READ_RATE))
        self._begin(lambda: step("streams:write", **live, appends=live_appends))
        self._begin(self._come_and_go)

    def _begin(self, work: Callable[[], object]) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised again by `finish`
                self.failures.append(error)

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        self.threads.append(thread)

    def _load(self, name: str, plan: Mapping[str, object], connections: int, rate: float) -> None:
        self.found[name] = self.server.load(
            plan, connections, self.window, self.windows, rate=rate, warm_up=0.1
        )

    def _come_and_go(self) -> None:
        """Topics that live a second."""
        number = 0
        while not self.over.wait(0.2):
            name = f"/v0/topics/passing-{number % 5}"
            self.server.call("POST", name, {"records": [{"data": number, "tag": f"t-{number}"}]})
            self.server.call("POST", f"{name}/diff", {})
            self.server.call("DELETE", f"/v0/topics/passing-{(number + 1) % 5}")
            number += 1

    def finish(self) -> tuple[list[Round], list[Round]]:
        for thread in self.threads[:-1]:
            thread.join()
        self.over.set()
        self.threads[-1].join()
        if self.failures:
            raise self.failures[0]
        return self.found["append"], self.found["read"]


def observe(server: Served, seconds: float) -> tuple[list[float], float]:
    """Resident memory each second, and the longest garbage collection, as the server says it."""
    resident, pause = [], 0.0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(1.0, seconds / 20))
        resident.append(server.resident_mb)
        longest = GC_PAUSE.search(server.call("GET", "/v0/metrics"))
        pause = max(pause, float(longest[1]) if longest else 0.0)
    return resident, pause
