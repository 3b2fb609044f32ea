"""Is it alive, is it ready, how is it doing: the probes and the metrics of the native API.

Only this file decides what ready means: recovery is done, the log can be written, and the server
is not on its way out.  All of these are answered at any time, before recovery and while draining.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Final, Literal

import msgspec

import headrace
from headrace.core.errors import HeadraceError, NotReady, ShuttingDown
from headrace.engine.engine import Engine
from headrace.wire.exchange import JSON, Dialect, Exchange, Key
from headrace.wire.metrics import Metrics
from headrace.wire.metrics_engine import MetricsSnapshot, snapshot, watch_engine
from headrace.wire.routes import READ, Route

PROMETHEUS_TEXT: Final = b"text/plain; version=0.0.4"
RETRY_SECONDS: Final = 1
DISK_FULL_RETRY_SECONDS: Final = 5
_TOPIC_LABEL: Final = re.compile(r'[{,]topic="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")

_FIXES: Final = {
    "wal_read_only": "check the disk, then restart; reads go on",
    "disk_full": "free space; writing resumes by itself, reads go on",
    "out_of_resources": "raise the limit on open files or memory; writing resumes by itself",
}


class Health(msgspec.Struct):
    """The process is alive."""

    status: Literal["ok"]
    version: str
    uptime_ms: Annotated[int, msgspec.Meta(ge=0)]


class Ready(msgspec.Struct):
    """The server takes writes."""

    status: Literal["ready"]
    wal_replay_complete: bool
    topics: Annotated[int, msgspec.Meta(ge=0)]


class Probes:
    """Handlers of health, ready and metrics.

    `state` is set by whoever owns the port: `starting`, `serving` or `draining`.
    """

    def __init__(self, engine: Engine, metrics: Metrics, dialect: Dialect) -> None:
        self._metrics = metrics
        self._figures = watch_engine(metrics, engine)
        self._dialect = dialect
        self.state: Callable[[], str] = lambda: "serving"

    def routes(self) -> list[Route]:
        def probe(path: str, handler: Callable[[Exchange], None], summary: str) -> Route:
            return Route(
                "GET",
                path,
                handler,
                self._dialect,
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
                self._dialect,
                frozenset({READ}),
                "Counters, gauges and histograms, as Prometheus text or JSON",
                response=MetricsSnapshot,
                name_param=False,
                unready=True,
            ),
        ]

    def health(self, exchange: Exchange) -> None:
        """200 as long as somebody is there to say so."""
        answer = Health("ok", headrace.__version__, self._figures.uptime_ms)
        exchange.answer(200, msgspec.json.encode(answer), JSON)

    def ready(self, exchange: Exchange) -> None:
        refusal = self.refusal()
        if refusal is not None:
            raise refusal
        answer = Ready("ready", True, self._figures.topics)
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
                    "replay_progress": round(figures.progress, 3),
                    "retry_after_s": RETRY_SECONDS,
                },
            )
        reason = figures.blocked_by
        if not reason:
            return None
        after = RETRY_SECONDS if reason == "wal_read_only" else DISK_FULL_RETRY_SECONDS
        return NotReady(
            f"nothing can be written: {reason}",
            fix=_FIXES.get(reason, "see the server's log"),
            detail={"reason": reason, "retry_after_s": after},
        )

    def metrics(self, exchange: Exchange) -> None:
        """As text for a Prometheus server; as JSON for whoever asks for that."""
        if "application/json" in exchange.header(b"accept"):
            body = msgspec.json.encode(snapshot(self._metrics, self._figures))
            exchange.answer(200, body, JSON)
        else:
            text = self._metrics.registry.text()
            if exchange.key is not None and exchange.key.has_prefixes:
                text = text_for(exchange.key, text)
            exchange.answer(200, text.encode(), PROMETHEUS_TEXT)


def text_for(key: Key, text: str) -> str:
    """Metrics without the series of topics that a key may not know of."""

    def is_shown(line: str) -> bool:
        found = _TOPIC_LABEL.search(line)
        if found is None:
            return True
        name = _ESCAPED.sub(lambda escaped: {"n": "\n"}.get(escaped[1], escaped[1]), found[1])
        return key.allows_name(name)

    return "\n".join(filter(is_shown, text.split("\n")))
