"""The catalog of the S2 API on an engine without sockets; time moves when the clock is told to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.core.clock import ManualClock
from headrace.core.runtime import StepRuntime
from headrace.engine.engine import Engine
from headrace.storage.block import KIND_BYTES, Batch
from headrace.testing.simdisk import SimDisk
from headrace.wire.s2.catalog.catalog import Catalog
from headrace.wire.s2.configs import BasinConfig, DeleteOnEmpty, OptionalStreamConfig
from headrace.wire.s2.usage import Usage

TICK_MS = 1_000
BASIN = "my-basin"


class CatalogServer:
    """A catalog that is loaded, and what a server does with it."""

    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        self.engine = engine
        self._clock = clock
        self.usage = Usage(engine.clock)
        self.catalog = Catalog(engine, self.usage)
        self.failures: list[BaseException | None] = []
        self.catalog.when_ready(self.failures.append)
        self.run()

    def run(self) -> None:
        assert isinstance(self.engine.runtime, StepRuntime)
        self.engine.runtime.run()

    def pass_time(self, ms: int, step_ms: int = TICK_MS) -> None:
        """Let time pass, with a tick at the end of each step."""
        while ms > 0:
            self._clock.advance(min(ms, step_ms))
            ms -= step_ms
            self.catalog.tick(self._clock.monotonic_ns() // 1_000_000)
            self.run()

    def create_basin(self, name: str = BASIN, **config: Any) -> None:
        self.catalog.create_basin(name, BasinConfig(**config), None, "").result()

    def create_stream(self, stream: str, basin: str = BASIN, min_age_secs: int = 0) -> None:
        given = OptionalStreamConfig(delete_on_empty=DeleteOnEmpty(min_age_secs))
        self.catalog.streams.create(basin, stream, given, b"").result()

    def append(self, stream: str, body: bytes = b"x", basin: str = BASIN) -> None:
        self.engine.append(f"s2:{basin}/{stream}", Batch([body], KIND_BYTES)).result()

    def streams(self, basin: str = BASIN) -> list[str]:
        return [listed.name for listed in self.catalog.streams.after(basin, "", "")]

    def basins(self) -> list[str]:
        return [basin.name for basin in self.catalog.basins_after("", "")]


def after_power_loss(disk: SimDisk) -> SimDisk:
    """What is left of a disk on which all that was not synced is lost."""
    return disk.image(disk.position, "none", 1)


StartCatalog = Callable[..., CatalogServer]
