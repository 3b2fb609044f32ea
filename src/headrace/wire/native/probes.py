"""The probes and the metrics of the native API: is it alive, is it ready, how is it doing.

Only this file decides what ready means: recovery is done, the log can be written, and the server
is not on its way out.  A server some part of which does not work is ready, and degraded.

All of these are answered at any time, before recovery and while draining.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

import headrace
from headrace.api.probes import Health, Ready
from headrace.core.errors import HeadraceError, NotReady, ShuttingDown
from headrace.engine.engine import Engine
from headrace.metrics.requests import Metrics
from headrace.wire.exchange import JSON, Exchange, Key
from headrace.wire.native.metrics_snapshot import MetricsSnapshot, snapshot
from headrace.wire.routes import READ, Route

PROMETHEUS_TEXT: Final = b"text/plain; version=0.0.4"
RETRY_SECONDS: Final = 1
DISK_FULL_RETRY_SECONDS: Final = 5
_NAME_LABEL: Final = re.compile(r'[{,](?:topic|pipeline)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")

_FIXES: Final = {
    "wal_read_only": "check the disk, then restart; reads go on",
    "disk_full": "free space, or delete records or topics; writing resumes by itself, reads go on",
    "out_of_resources": "raise the limit on open files or memory; writing resumes by itself",
}


class Probes:
    """Handlers of health, ready and metrics.

    `state` says what the server is doing: `starting`, `serving` or `draining`; `problems`, which
    of its parts do not work, and why.
    """

    def __init__(
        self,
        engine: Engine,
        metrics: Metrics,
        state: Callable[[], str] = lambda: "serving",
        problems: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._metrics = metrics
        self._figures = engine.figures
        self.state = state
        self._problems = problems

    def routes(self) -> list[Route]:
        def probe(path: str, handler: Callable[[Exchange], None], summary: str) -> Route:
            return Route(
                "GET",
                path,
                handler,
                summary=summary,
                response=Health if handler == self.health else Ready,
                public=True,
                name_param=False,
                unready=True,
            )

        alive = "Whether the process is alive"
        ready = "Whether it takes writes, and if not, why"
        return [
            probe("/v0/health", self.health, alive),
            probe("/healthz", self.health, alive),
            probe("/v0/ready", self.ready, ready),
            probe("/readyz", self.ready, ready),
            Route(
                "GET",
                "/v0/metrics",
                self.metrics,
                frozenset({READ}),
                "Counters, gauges and histograms, as Prometheus text or JSON",
                response=MetricsSnapshot,
                name_param=False,
                unready=True,
            ),
        ]

    def health(self, exchange: Exchange) -> None:
        """Answer 200 while the process is alive."""
        answer = Health("ok", headrace.__version__, self._figures.uptime_ms)
        exchange.answer(200, msgspec.json.encode(answer), JSON)

    def ready(self, exchange: Exchange) -> None:
        """Answer 200 when writes are taken, else with the reason why not."""
        refusal = self.refusal()
        if refusal is not None:
            raise refusal
        figures = self._figures
        missing = figures.topics_recovering
        part = round(figures.topics_recovered_part, 3)
        problems = dict(self._problems())
        answer = Ready(
            "degraded" if problems else "ready",
            not missing,
            figures.topics,
            missing,
            part if missing else None,
            problems,
        )
        exchange.answer(200, msgspec.json.encode(answer), JSON)

    def refusal(self) -> HeadraceError | None:
        """Why the server is not ready, or None."""
        figures = self._figures
        if self.state() == "draining":
            return ShuttingDown(
                "the server is stopping",
                fix="ask another one, or this one after its restart",
                detail={"retry_after_s": RETRY_SECONDS},
            )
        if not figures.ready or self.state() == "starting":
            return NotReady(
                "recovery is running",
                fix="retry; detail.replay_progress goes from 0 to 1",
                detail={
                    "reason": "recovering",
                    "replay_progress": round(figures.recovery_progress, 3),
                    "retry_after_s": RETRY_SECONDS,
                },
            )
        failed = figures.topics_failed
        if failed is not None:
            return failed
        reason = figures.writes_blocked_by
        if not reason:
            return None
        after = RETRY_SECONDS if reason == "wal_read_only" else DISK_FULL_RETRY_SECONDS
        return NotReady(
            f"nothing can be written: {reason}",
            fix=_FIXES.get(reason, "see the server's log"),
            detail={"reason": reason, "retry_after_s": after},
        )

    def metrics(self, exchange: Exchange) -> None:
        """Answer with the metrics, as JSON where `Accept` names it, else as Prometheus text."""
        if "application/json" in exchange.header(b"accept"):
            body = msgspec.json.encode(snapshot(self._metrics, self._figures))
            exchange.answer(200, body, JSON)
        else:
            text = self._metrics.registry.text()
            if exchange.key is not None and exchange.key.has_prefixes:
                text = text_for(exchange.key, text)
            exchange.answer(200, text.encode(), PROMETHEUS_TEXT)


def text_for(key: Key, text: str) -> str:
    """Metrics without the series of topics and pipelines that a key may not know of."""

    def is_shown(line: str) -> bool:
        found = _NAME_LABEL.search(line)
        if found is None:
            return True
        name = _ESCAPED.sub(lambda escaped: {"n": "\n"}.get(escaped[1], escaped[1]), found[1])
        return key.allows_name(name)

    return "\n".join(filter(is_shown, text.split("\n")))
