"""The form of answers of the native API: JSON with a `performance` block and `Server-Timing`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.core.clock import Clock
from headrace.wire.exchange import JSON, Exchange, Header

encode = msgspec.json.Encoder().encode


class Timing:
    """How long an answer took, as JSON and as the header `Server-Timing`."""

    __slots__ = ("header", "json")

    def __init__(self, exchange: Exchange, clock: Clock, parts: Sequence[tuple[str, int]] = ()):
        total = (clock.monotonic_ns() - exchange.started_ns) / 1e6
        self.json = f'{{"server_total_ms":{total:.3f}'
        timing = f"total;dur={total:.3f}"
        for name, ns in parts:
            self.json += f',"{name}_ms":{ns / 1e6:.3f}'
            timing += f", {name};dur={ns / 1e6:.3f}"
        self.header: Header = (b"server-timing", timing.encode("ascii"))

    def close(self, more: str = "") -> bytes:
        """The `performance` object; `more` are further fields, each with its comma in front."""
        return f"{self.json}{more}}}".encode("ascii")


def answer_object(
    exchange: Exchange, status: int, fields: bytes, timing: Timing, more: str = ""
) -> None:
    """Answer with an object whose fields (encoded, with braces) get a `performance` block."""
    body = fields[:-1] + b',"performance":' + timing.close(more) + b"}"
    exchange.answer(status, body, JSON, (timing.header,))
