"""Whether a server runs, and whether it takes calls."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from headrace.api.base import LEFT_OUT, documented


class Health(msgspec.Struct, frozen=True):
    """The process is alive."""

    status: Annotated[str, documented(Literal["ok"])]
    version: str
    uptime_ms: Annotated[int, Meta(ge=0)]


class Ready(msgspec.Struct, frozen=True, omit_defaults=True):
    """The server takes writes.

    `topics_recovering` and `replay_progress` are there while topics of class `memory` come back,
    which are refused until then; `degraded` while parts of the server do not work, and why.
    """

    status: Annotated[str, documented(Literal["ready", "degraded"])]
    wal_replay_complete: bool
    topics: Annotated[int, Meta(ge=0)]
    topics_recovering: Annotated[int, Meta(ge=0), LEFT_OUT] = 0
    replay_progress: Annotated[Annotated[float, Meta(ge=0, le=1)] | None, LEFT_OUT] = None
    degraded: Annotated[dict[str, str], LEFT_OUT] = {}
