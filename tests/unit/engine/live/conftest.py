"""A hub on an engine that has one topic, `jobs`, of two records."""

from __future__ import annotations

import pytest

from headrace.engine.engine import Engine
from headrace.engine.live.hub import LiveHub


@pytest.fixture
def hub(engine: Engine) -> LiveHub:
    engine.append("jobs", [1, 2]).result()
    return LiveHub(engine)
