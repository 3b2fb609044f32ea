"""A program for the crash explorer, of what S2 asks of streams: fences, trims, times, updates.

Every append names the head that it stands behind, so that one that is sent again is refused if it
was stored.
"""

from __future__ import annotations

from typing import Final

from headrace.core.errors import HeadraceError
from headrace.engine.engine import Engine
from headrace.engine.streams.trims import TRIM_DELAY_MS
from headrace.engine.topics.config import make_config
from headrace.storage.block import KIND_BYTES, KIND_COMMAND, KIND_MIXED, Batch
from tests.harness.step_sweep import Program, Seen, Step, step
from tests.support.stream_calls import spec_of, write

NAMES: Final = ("s2:basin/s", "s2:basin/t")
S, T = NAMES
DONE_BEFORE: Final = frozenset({"head_mismatch", "fence_mismatch", "topic_not_found"})
LONGER: Final = make_config({"durability": "fsync", "ttl_ms": 1 << 40})


def _records(*stamps: int) -> Batch:
    headers = [[(b"name", b"\xff%d" % stamp)] for stamp in stamps]
    return Batch([b"%d" % stamp for stamp in stamps], KIND_BYTES, None, None, None, headers,
                 timestamps=list(stamps))  # fmt: skip


def _command(name: bytes, body: bytes) -> Batch:
    headers = [[(b"a", b"b")], [(b"", name)]]
    kinds = bytes([KIND_BYTES, KIND_COMMAND])
    return Batch([b"before", body], KIND_MIXED, None, None, None, headers, kinds)


STEPS: Final[tuple[Step, ...]] = (
    step(lambda e: e.streams.create(S, spec_of(dialect="s2", own=b"1"))),
    step(lambda e: write(e, S, _records(5, 7), None, 0, fencing_token="")),
    step(lambda e: write(e, S, _command(b"fence", b"one"), None, 2, fence="one")),
    step(lambda e: e.streams.update(S, config=LONGER, own=b"2")),
    step(lambda e: e.streams.create(T, spec_of(dialect="s2", config=LONGER))),
    step(lambda e: write(e, S, b"two", None, 4, fencing_token="one", trim=1)),
    step(lambda e: e.checkpoint()),
    step(lambda e: write(e, T, _records(1, 2**62), None, 0, fence="x", trim=1)),
    step(lambda e: write(e, S, _records(2**61), None, 5, fencing_token="one", fence="")),
    step(lambda e: write(e, S, _command(b"trim", b"all"), None, 6, fencing_token="", trim=2**62)),
    step(lambda e: e.streams.update(T, own=b"3")),
    step(lambda e: e.checkpoint()),
    step(lambda e: e.streams.delete(S)),
    step(lambda e: e.streams.create(S, spec_of(dialect="s2", own=b"4"))),
    step(lambda e: write(e, S, _records(3), None, 0)),
)


def look(engine: Engine) -> Seen:
    """What a user of the streams could find out, but for times that the server gave."""
    seen: Seen = {}
    for name in NAMES:
        try:
            info = engine.streams.info(name)
        except HeadraceError as error:
            seen[name] = error.code
            continue
        records = [
            (one.seq, one.kind, bytes(one.data), [tuple(pair) for pair in one.headers or ()])
            for one in engine.read(name).result().records
        ]
        given = [one.ts for one in engine.read(name).result().records if one.ts > 2**60]
        seen[name] = (
            info.state, info.config, info.earliest_seq, info.tail.seq, info.last_ts > 2**60,
            given, records,
        )  # fmt: skip
    return seen


PROGRAM: Final = Program(STEPS, look, TRIM_DELAY_MS, DONE_BEFORE)
