"""What a store of files is for, so that messages about it say so."""

from __future__ import annotations

from typing import Final, NamedTuple


class Purpose(NamedTuple):
    """How a person knows a store."""

    name: str
    setting: str
    unreachable: str  # `detail.reason` when it does not answer
    meanwhile: str  # what goes on all the same


COLD_TIER: Final = Purpose(
    "the cold tier", "HEADRACE_COLD_URL", "cold_unreachable", "hot data is not affected"
)
