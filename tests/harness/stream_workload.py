"""A program of streams for the crash explorer: every call that has to survive, one after the other.

Each step can be sent again, as a client does that heard nothing: the answer, or the refusal, then
says that it was done before.  What is right after each of them is seen on an engine that nothing
happens to.
"""

from __future__ import annotations

from typing import Final

from headrace.core.errors import HeadraceError
from headrace.core.runtime import Ticket
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.engine import Engine
from headrace.engine.streams.removal import SWEEP_MS
from headrace.engine.streams.spec import Position
from headrace.storage.block import json_payloads
from tests.harness.step_sweep import Program, Seen, Step, step
from tests.support.stream_calls import JSON, close, spec_of, write

NAMES: Final = ("s", "j", "f", "g", "h")
# What a call that was done before the crash is refused with.
DONE_BEFORE: Final = frozenset(
    {"stream_conflict", "stream_closed", "stream_deleted", "topic_not_found", "invalid_request"}
)


def _fork(name: str, source: str, seq: int, body: bytes | None, more: int = 0) -> Step:
    def create(engine: Engine) -> Ticket[object]:
        at = Position(engine.streams.position(source, seq).incarnation, seq)
        spec = spec_of(None, source=source, fork_at=at, sub_offset=more)
        return engine.streams.create(name, spec, body)  # type: ignore[return-value]

    return create


STEPS: Final[tuple[Step, ...]] = (
    step(lambda engine: engine.streams.create("s", spec_of(), b"first")),
    step(lambda engine: write(engine, "s", b"second", ProducerClaim("p", 0, 0))),
    step(lambda engine: write(engine, "s", b"third", ProducerClaim("p", 0, 1), sequence="a")),
    step(
        lambda engine: engine.streams.create("j", spec_of(JSON, ttl_s=9_000), json_payloads([b"1"]))
    ),
    _fork("f", "s", 1, b"own", more=3),
    step(lambda engine: engine.checkpoint()),
    step(lambda engine: write(engine, "f", b"more", ProducerClaim("p", 0, 0), closes=True)),
    _fork("g", "s", 2, None),
    step(lambda engine: close(engine, "s", ProducerClaim("p", 0, 2), sequence="b")),
    step(lambda engine: engine.streams.delete("s")),
    _fork("h", "g", 2, b"of a fork"),
    step(lambda engine: engine.streams.delete("g")),
    step(lambda engine: engine.streams.delete("f")),
    step(lambda engine: engine.checkpoint()),
    step(lambda engine: engine.streams.delete("h")),
    step(lambda engine: engine.streams.create("s", spec_of("text/html"), b"anew")),
)


def look(engine: Engine) -> Seen:
    """What a user of the streams could find out."""
    seen: Seen = {}
    for name in NAMES:
        try:
            info = engine.streams.info(name)
        except HeadraceError as error:
            seen[name] = error.code
            continue
        records = engine.read(name).result().records
        producers = engine.state.topic(name).producers
        newest = producers.newest("p") if producers is not None else None
        number = None if newest is None else (newest.epoch, newest.sequence)
        seen[name] = (info.state, info.tail, [bytes(record.data) for record in records], number)
    return seen


PROGRAM: Final = Program(STEPS, look, SWEEP_MS, DONE_BEFORE)
