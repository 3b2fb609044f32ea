"""What all dialects of one server share: the engine, the figures, the bounds, and the readers' hub.

Only this file makes these parts, once for each server, so that a bound holds for all dialects
together and a page that readers of several dialects want is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from headrace.core.limits import KIB
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.engine.live.hub import LiveHub
from headrace.metrics.holders import Holder, Holders
from headrace.metrics.requests import Metrics
from headrace.wire.long_poll import LongPolls
from headrace.wire.open_streams import OpenStreams
from headrace.wire.request_memory import Budget
from headrace.wire.response_memory import ResponseMemory

# A read that waits with its request; a stream or a session, beside what is pending.
POLL_BYTES: Final = 6 * KIB
STREAM_BYTES: Final = 12 * KIB
UNBOUNDED: Final = 100_000  # what is reckoned with where a bound is 0


class ServerContext:
    """The parts that a dialect is made with."""

    def __init__(self, engine: Engine, settings: Settings, metrics: Metrics) -> None:
        self.engine = engine
        self.settings = settings
        self.metrics = metrics
        self.memory = ResponseMemory(settings.response_memory_bytes_max)
        self.request_memory = Budget(settings.request_memory_bytes_max)
        self.polls = LongPolls(engine)
        self.open_streams = OpenStreams(LiveHub(engine), settings, metrics, self.request_memory)
        metrics.sources.longpoll_connections.add(lambda: len(self.polls.waiting))
        self._hold(metrics.sources.holders)
        # By name, the parts that may stop working while all else goes on; each says why it has
        # stopped, or nothing.
        self.parts: dict[str, Callable[[], str]] = {"storage": engine.scrub.problem}
        metrics.sources.degraded_parts.add(lambda: len(self.problems()))

    def _hold(self, holders: Holders) -> None:
        """Say what is held in memory for readers."""
        settings, polls, streams = self.settings, self.polls, self.open_streams
        polls_max = settings.max_long_polls or UNBOUNDED
        holders.add(
            Holder(
                "long_poll", "Reads that wait for records.", "`max_long_polls`",
                POLL_BYTES, POLL_BYTES * polls_max,
                lambda: len(polls.waiting), lambda: POLL_BYTES * len(polls.waiting),
            )
        )  # fmt: skip
        # What is pending, and a page that was put behind it while there was room.
        one = STREAM_BYTES + 2 * settings.stream_pending_bytes
        most = one * (settings.max_sse_connections or UNBOUNDED)
        kinds = (
            ("sse", "Event streams, of every dialect, with what their clients have not taken."),
            ("ws", "WebSockets, without the topics they name and messages in part."),
            ("session", "Sessions of S2, without the inputs they hold."),
        )
        for kind, what in kinds:
            holders.add(
                Holder(
                    kind, what, "`max_sse_connections` of all three, `stream_pending_bytes`",
                    one, most if kind == "sse" else 0,
                    partial(streams.of_kind.__getitem__, kind),
                    partial(_bytes_of_streams, streams, kind),
                )
            )  # fmt: skip
        journal = streams.hub.journal
        holders.add(
            Holder(
                "journal", "Publishes that watches of many topics can resume from.",
                "`watch_journal_bytes`", 16, settings.watch_journal_bytes,
                None, lambda: journal.bytes,
            )
        )  # fmt: skip

    def problems(self) -> Mapping[str, str]:
        """The parts that do not work, and why."""
        found = {name: problem() for name, problem in self.parts.items()}
        return {name: why for name, why in found.items() if why}

    def drain(self) -> None:
        """End every stream and every wait: the server is stopping."""
        self.open_streams.stop()
        self.polls.drain()


def _bytes_of_streams(streams: OpenStreams, kind: str) -> int:
    return STREAM_BYTES * streams.of_kind[kind]
