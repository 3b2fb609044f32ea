"""A transport without a socket: what a connection writes is kept, and it is told nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class MemoryTransport(asyncio.Transport):
    """A connection whose client takes everything at once."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.closed = False
        self.paused = False
        self.protocol: Any = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.closed:
            self.sent += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def is_reading(self) -> bool:
        return not self.paused

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol


def in_a_loop(work: Callable[[], T]) -> T:
    """Call it inside a loop: connections set timers when they are refused."""

    async def run() -> T:
        return work()

    return asyncio.run(run())
