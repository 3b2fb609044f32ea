"""Streams on an engine, without a dialect above them."""

from __future__ import annotations

import errno

from headrace.core.errors import HeadraceError
from headrace.core.runtime import Ticket
from headrace.engine.appending.admission import Append, Records
from headrace.engine.appending.pending_append import Appended
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.engine import Engine
from headrace.engine.streams.operations import StreamCreated
from headrace.engine.streams.spec import Position, StreamSpec, StreamWrite
from headrace.engine.topics.config import TopicConfig, make_config
from headrace.storage.block import KIND_BYTES, KIND_JSON
from headrace.testing.faultfs import Fault, FaultFilesystem, FaultPlan
from headrace.testing.simdisk import SimDisk


class FullDisk:
    """A disk on which no write to the log finds room, once it is `full`."""

    def __init__(self) -> None:
        self.full = False
        plan = FaultPlan(Fault("pwritev", 1, "call", forever=True, hook=self._strike))
        self.fs = FaultFilesystem(SimDisk(), plan)

    def _strike(self, _operation: str, _path: str) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "no space left on the device")


TEXT = "text/plain"
JSON = "application/json"


def spec_of(
    content_type: str | None = TEXT,
    *,
    config: TopicConfig | None = None,
    durability: str = "fsync",
    dialect: str = "ds",
    **fields: object,
) -> StreamSpec:
    """What is asked for; a fork inherits its type unless one is given."""
    kind = KIND_JSON if content_type == JSON else KIND_BYTES
    return StreamSpec(
        dialect=dialect,
        content_type=content_type,
        kind=None if content_type is None else kind,
        config=config or make_config({"durability": durability}),
        **fields,  # type: ignore[arg-type]
    )


def create(
    engine: Engine,
    name: str,
    records: Records | None = None,
    content_type: str | None = TEXT,
    **fields: object,
) -> StreamCreated:
    """Create a stream, and wait for it."""
    spec = spec_of(content_type, **fields)  # type: ignore[arg-type]
    return engine.streams.create(name, spec, records).result()


def fork(
    engine: Engine,
    name: str,
    source: str,
    at: Position | None = None,
    records: Records | None = None,
    **fields: object,
) -> StreamCreated:
    """Create a fork, and wait for it."""
    return create(engine, name, records, None, source=source, fork_at=at, **fields)


def write(
    engine: Engine,
    name: str,
    records: Records,
    producer: ProducerClaim | None = None,
    expected_head_seq: int | None = None,
    **wanted: object,
) -> Ticket[Appended]:
    """Append as a dialect does: to a stream that is there."""
    how = Append(
        create=False,
        producer=producer,
        expected_head_seq=expected_head_seq,
        stream=StreamWrite(**wanted),  # type: ignore[arg-type]
    )
    return engine.append_batch(name, records, how)


def close(
    engine: Engine, name: str, producer: ProducerClaim | None = None, sequence: str | None = None
) -> Ticket[Appended]:
    """Close a stream without a record."""
    return engine.streams.close(name, StreamWrite(closes=True, sequence=sequence), producer)


def data_of(engine: Engine, name: str) -> list[bytes]:
    """What a reader finds in a stream."""
    return [bytes(record.data) for record in engine.read(name).result().records]


def code_of(ticket: Ticket[object]) -> str:
    """What a call is refused with, once it is answered; empty: it is not."""
    try:
        ticket.result()
    except HeadraceError as error:
        return error.code
    return ""
