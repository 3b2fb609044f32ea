"""What the transports hold in memory for clients: connections, bodies, answers, known heads."""

from __future__ import annotations

from typing import Final

from headrace.core.limits import KIB
from headrace.metrics.holders import Holder, Holders
from headrace.server.app import App
from headrace.server.auth import KeyRing
from headrace.server.http1.heads import (
    KNOWN_HEADS_MAX,
    LAYOUTS_MAX,
    LINES_MAX,
    WHOLE_HEADS_MAX,
    KnownHeads,
)
from headrace.server.http1.pipeline import WAITING_BYTES_MAX
from headrace.server.transport_exchange import FREE_BODY_BYTES
from headrace.wire.response_memory import PAGE_BYTES_MIN
from headrace.wire.routes import CACHED_MATCHES_MAX

# A connection at rest, with its socket's objects and the request that was last read.
CONNECTION_BYTES: Final = 12 * KIB
# What the loop reads at once from a connection.
READ_BYTES: Final = 256 * KIB
# What is remembered of a head or a path, on average and with the objects around it.
KNOWN_HEAD_BYTES: Final = 2 * KIB


def hold_app(holders: Holders, app: App, keys: KeyRing, heads: KnownHeads) -> None:
    """Say what the transports of one server hold."""
    settings = app.settings
    arriving = settings.header_bytes_max + FREE_BODY_BYTES + 2 * WAITING_BYTES_MAX
    one = CONNECTION_BYTES + arriving
    remembered = KNOWN_HEADS_MAX + WHOLE_HEADS_MAX + LINES_MAX + LAYOUTS_MAX + CACHED_MATCHES_MAX
    answers = settings.response_memory_bytes_max + settings.arrow_bytes_max
    for holder in (
        Holder(
            "connection", "Connections, with a head and a small body that are arriving.",
            "`max_connections`, `header_bytes_max`, `FREE_BODY_BYTES`, `WAITING_BYTES_MAX`",
            one, one * settings.max_connections + READ_BYTES,
            lambda: len(app.connections), lambda: CONNECTION_BYTES * len(app.connections),
        ),
        Holder(
            "request_body", "Larger bodies that arrive, wait or are worked on; messages in part.",
            "`body_bytes_max`, `websocket_message_bytes_max`, `request_memory_bytes_max`",
            settings.body_bytes_max, settings.request_memory_bytes_max + settings.body_bytes_max,
            None, lambda: app.budget.used,
        ),
        Holder(
            "parked_request", "Requests that wait for recovery; their bodies count as bodies.",
            "`parked_requests_max`", settings.header_bytes_max,
            settings.header_bytes_max * settings.parked_requests_max,
            lambda: app.parked, lambda: CONNECTION_BYTES * app.parked,
        ),
        Holder(
            "answer", "Answers that clients have not taken, as of the last second.",
            "`response_memory_bytes_max`, then `PAGE_BYTES_MIN` for each connection",
            settings.arrow_bytes_max, answers + PAGE_BYTES_MIN * settings.max_connections,
            None, lambda: app.pending_bytes,
        ),
        Holder(
            "known_head", "Heads, lines and paths of requests that came before.",
            "`KNOWN_HEADS_MAX`, `WHOLE_HEADS_MAX`, `LINES_MAX`, `LAYOUTS_MAX`,"
            " `CACHED_MATCHES_MAX`",
            KNOWN_HEAD_BYTES, KNOWN_HEAD_BYTES * remembered,
            lambda: len(heads), lambda: KNOWN_HEAD_BYTES * len(heads),
        ),
        Holder(
            "api_key", "API keys.", "`api_key_bytes_max`, `api_keys_bytes_max`",
            settings.api_key_bytes_max, settings.api_keys_bytes_max,
            None, lambda: keys.held_bytes,
        ),
    ):  # fmt: skip
        holders.add(holder)
