"""The form of answers of the native API: JSON with a `performance` block and `Server-Timing`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from headrace.core.clock import Clock
from headrace.wire.exchange import JSON, Exchange, Header

encode = msgspec.json.Encoder().encode
SERVER_TIMING: Final = b"server-timing"


class _Milliseconds(dict[int, str]):
    """Milliseconds by microseconds; those of most answers are ready."""

    def __missing__(self, us: int) -> str:
        return f"{us / 1000:.3f}"


# To format a float takes several times as long as to look it up, and an answer has two or three.
MILLISECONDS: Final = _Milliseconds((us, f"{us / 1000:.3f}") for us in range(10_000))


def milliseconds(ns: int) -> str:
    """Nanoseconds as milliseconds, whole microseconds of them.

    >>> milliseconds(1_234_567), milliseconds(12_345_678)
    ('1.234', '12.345')
    """
    return MILLISECONDS[ns // 1_000]


class Timing:
    """How long an answer took, as JSON and as the header `Server-Timing`."""

    __slots__ = ("header", "json")

    def __init__(self, exchange: Exchange, clock: Clock, parts: Sequence[tuple[str, int]] = ()):
        total = milliseconds(clock.monotonic_ns() - exchange.started_ns)
        self.json = f'{{"server_total_ms":{total}'
        timing = f"total;dur={total}"
        for name, ns in parts:
            taken = milliseconds(ns)
            self.json += f',"{name}_ms":{taken}'
            timing += f", {name};dur={taken}"
        self.header: Header = (SERVER_TIMING, timing.encode("ascii"))

    def close(self, more: str = "") -> bytes:
        """The `performance` object; `more` are further fields, each with its comma in front."""
        return f"{self.json}{more}}}".encode("ascii")


def answer_object(
    exchange: Exchange, status: int, fields: bytes, timing: Timing, more: str = ""
) -> None:
    """Answer with an object whose fields (encoded, with braces) get a `performance` block."""
    body = fields[:-1] + b',"performance":' + timing.close(more) + b"}"
    exchange.answer(status, body, JSON, (timing.header,))
