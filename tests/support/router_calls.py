"""What the tests of routers share: short ways to ask for one, to write and to read."""

from __future__ import annotations

from collections.abc import Callable

from headrace.engine.engine import Engine
from headrace.engine.routers.operations import RouterPutResult
from headrace.engine.routers.state import RouterOptions
from headrace.storage.block import Batch
from headrace.storage.wal.shard import WalShard
from tests.support.engine_reads import all_records

Restart = Callable[..., Engine]
LITTLE = {
    "memory_budget_bytes": 1 << 20,
    "read_cache_bytes": 1 << 18,
    "tag_index_bytes_max": 1 << 16,
}
CLASSES = ("ephemeral", "memory", "disk", "fsync")


def route(engine: Engine, name: str, source: str, dest: str, **options: object) -> RouterPutResult:
    asked = RouterOptions(source=source, dest=dest, **options)  # type: ignore[arg-type]
    return engine.routers.put(name, asked).result()


def write(engine: Engine, topic: str, *data: str, tags: list[str | None] | None = None) -> None:
    engine.append(topic, Batch([d.encode() for d in data], tags=tags)).result()


def data(engine: Engine, topic: str) -> list[str]:
    return [record.data.decode() for record in all_records(engine, topic)]


def shard(engine: Engine) -> WalShard:
    return engine.state.shards[0]


def run(engine: Engine) -> None:
    engine.runtime.run()  # type: ignore[attr-defined]
