"""Numbers of a config that are as large as they may be: no checkpoint fails for them.

A window of idempotency keys that ends after every time a key file can name made each checkpoint
fail, and with it the stop of the server.
"""

from __future__ import annotations

import pytest

from headrace.engine.topics.config import TopicConfig
from headrace.testing.simdisk import SimDisk

U64_MAX = (1 << 64) - 1
FIELDS = (
    "ttl_ms",
    "cap_records",
    "cap_bytes",
    "idempotency_window_ms",
    "lease_ms",
    "claim_jitter_ms",
    "max_deliveries",
)


@pytest.mark.parametrize("value", [U64_MAX, 1 << 63, (1 << 63) - 1, (1 << 63) - 1_700_000_000_000])
@pytest.mark.parametrize("fields", [[field] for field in FIELDS] + [list(FIELDS)])
def test_the_largest_numbers(start, clock, fields, value) -> None:
    disk = SimDisk()
    engine = start(disk)
    engine.put_topic("t", TopicConfig(**dict.fromkeys(fields, value))).result()
    first = engine.append("t", [b"1"], idempotency_key="k").result()
    engine.close()
    clock.advance(1_000)
    engine = start(disk)
    again = engine.append("t", [b"1"], idempotency_key="k").result()
    assert (again.deduped, again.first_seq) == (True, first.first_seq)
    assert engine.topic("t").count == 1
    engine.close()
