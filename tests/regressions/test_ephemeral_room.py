"""An append that memory has no room for creates no topic on its way."""

from __future__ import annotations

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.errors import Throttled
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.testing.simdisk import SimDisk


def test_a_refused_ephemeral_append_leaves_no_topic_behind() -> None:
    settings = Settings(memory_budget_bytes=1 << 20, read_cache_bytes=0, tag_index_bytes_max=0)
    engine = Engine(SimDisk(), StepRuntime(ManualClock()), settings, random=SeededRandom(1))
    engine.recover()
    ephemeral = {"durability": "ephemeral"}
    engine.append("full", [b"x" * 500_000], config=ephemeral).result()
    refused = engine.append("new", [b"x" * 100_000], config=ephemeral)
    assert isinstance(refused.error, Throttled)
    assert engine.append("stored", [b"x" * 100_000]).result().first_seq == 1
    assert [info.topic for info in engine.topics()] == ["full", "stored"]
