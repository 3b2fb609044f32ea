"""What the S2 API holds in memory for its callers: basins, access tokens, inputs, usage figures."""

from __future__ import annotations

from typing import Final

from headrace.core.limits import KIB
from headrace.metrics.holders import Holder
from headrace.wire.s2.append_session import AppendSessions
from headrace.wire.s2.catalog.catalog import Catalog
from headrace.wire.s2.catalog.entries import TOKEN_ENTRY_BYTES_MAX
from headrace.wire.s2.sessions import (
    FRAME_FREE_BYTES,
    FRAMES_BYTES_MAX,
    SESSION_BYTES_MAX,
    SESSIONS_BYTES_MAX,
)
from headrace.wire.s2.usage import ENTRIES_MAX
from headrace.wire.server_context import UNBOUNDED, ServerContext

# A basin with its config, and what most tokens take.
BASIN_BYTES: Final = 2 * KIB
TOKEN_BYTES: Final = 2 * KIB
USAGE_BYTES: Final = 256


def hold_s2(context: ServerContext, catalog: Catalog, sessions: AppendSessions) -> None:
    """Say what the S2 API of one server holds."""
    settings, tokens, held = context.settings, catalog.tokens, sessions.bytes
    sessions_max = settings.max_sse_connections or UNBOUNDED
    frames_max = FRAMES_BYTES_MAX + FRAME_FREE_BYTES * sessions_max
    for holder in (
        Holder(
            "s2_basin", "Basins.", "`s2_basins_max`",
            BASIN_BYTES, BASIN_BYTES * settings.s2_basins_max,
            lambda: catalog.basins, lambda: BASIN_BYTES * catalog.basins,
        ),
        Holder(
            "s2_token", "Access tokens with their scopes.",
            "`s2_tokens_max`, `TOKEN_ENTRY_BYTES_MAX`",
            TOKEN_ENTRY_BYTES_MAX, TOKEN_ENTRY_BYTES_MAX * settings.s2_tokens_max,
            lambda: len(tokens), lambda: TOKEN_BYTES * len(tokens),
        ),
        Holder(
            "s2_input", "Inputs of append sessions that are not acknowledged.",
            "`SESSION_INPUTS_MAX`, `SESSION_BYTES_MAX`, `SESSIONS_BYTES_MAX`",
            SESSION_BYTES_MAX, SESSIONS_BYTES_MAX + SESSION_BYTES_MAX,
            None, lambda: held.held,
        ),
        Holder(
            "s2_frame", "Frames of append sessions that have begun to arrive.",
            "`FRAME_FREE_BYTES` of each, `FRAMES_BYTES_MAX`", 0, frames_max,
            None, lambda: held.frames,
        ),
        Holder(
            "s2_usage", "Figures of `/v1/metrics`.", "`ENTRIES_MAX` of minutes, and of hours",
            USAGE_BYTES, 2 * USAGE_BYTES * ENTRIES_MAX,
            lambda: catalog.usage.entries, lambda: USAGE_BYTES * catalog.usage.entries,
        ),
    ):  # fmt: skip
        holders = context.metrics.sources.holders
        holders.add(holder)
