"""`headrace serve` without a garbage collector, which tells what one would have freed.

A server collects very rarely, so what is in a circle stays: a request, its body, its connection.
Run instead of `headrace` by `Servers`, it says on stderr which objects of ours were in circles that
nothing refers to, at its stop and ten times a second, since tests kill servers, too; `Servers`
fails the tests of such a server.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from types import CodeType, FrameType, FunctionType, GeneratorType, TracebackType
from typing import Any

from headrace.cli import serve
from headrace.cli.compose import Server
from headrace.cli.main import main
from headrace.engine.engine import Engine

MODULE = "tests.support.watched_headrace"
SAID = "circles that only a collection would free:"
PACKAGE = "headrace"
# Bytes that a circle may keep: the parts of a head, not a body.
BYTES_MAX = 16 << 10
# A look takes less than 1 ms: all that a start leaves is frozen, and not looked at.
LOOK_SECONDS = 0.1


def unreachable() -> list[object]:
    """Every object that is in a circle, or kept by one, and that nothing else refers to."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found = gc.garbage[:]
    gc.garbage.clear()
    return found


def of_ours(found: list[object]) -> Counter[str]:
    """What of it is ours, by name: objects of our classes, our frames, functions and bodies."""
    names: Counter[str] = Counter()
    for thing in found:
        name = _name(thing)
        if name:
            names[name] += 1
        for part in gc.get_referents(thing):
            if isinstance(part, bytes | bytearray) and len(part) > BYTES_MAX:
                names[f"{len(part)} bytes of {type(thing).__name__}"] += 1
    return names


def _name(thing: object) -> str:
    if isinstance(thing, type):
        return ""  # made once, by an import
    code = _code(thing)
    if code is not None:
        ours = f"/{PACKAGE}/" in code.co_filename
        return f"{type(thing).__name__} {code.co_qualname}" if ours else ""
    kind = type(thing)
    return kind.__qualname__ if kind.__module__.partition(".")[0] == PACKAGE else ""


def _code(thing: object) -> CodeType | None:
    if isinstance(thing, FrameType):
        return thing.f_code
    if isinstance(thing, TracebackType):
        return thing.tb_frame.f_code
    if isinstance(thing, GeneratorType):
        return thing.gi_code
    return thing.__code__ if isinstance(thing, FunctionType) else None


def look() -> bool:
    """Say which objects of ours are in circles; return whether there are any."""
    names = of_ours(unreachable())
    if names:
        print(SAID, dict(names), file=sys.stderr, flush=True)
    return bool(names)


def watch() -> None:
    """Have every server of this process look while it serves, and when it has drained."""
    recover: Any = serve._recover
    drain: Any = serve._drain

    async def recover_and_look(engine: Engine, signals: serve.StopSignals) -> bool:
        live: bool = await recover(engine, signals)
        look_on()
        return live

    def look_on() -> None:
        if not look():  # once is enough
            asyncio.get_running_loop().call_later(LOOK_SECONDS, look_on)

    async def drain_and_look(server: Server, timeout_ms: int) -> None:
        await drain(server, timeout_ms)
        look()

    serve._recover = recover_and_look
    serve._drain = drain_and_look
    gc.disable()


if __name__ == "__main__":
    watch()
    sys.exit(main())
