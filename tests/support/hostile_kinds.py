"""Every kind of hostile client, by its name."""

from __future__ import annotations

from tests.support.hostile_clients import Hostile
from tests.support.hostile_holders import HOLDERS
from tests.support.hostile_http2 import FLOODS
from tests.support.hostile_storms import STORMS

KINDS: dict[str, type[Hostile]] = {kind.name: kind for kind in (*HOLDERS, *FLOODS, *STORMS)}
