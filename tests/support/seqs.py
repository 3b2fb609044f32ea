"""The seqs of what a reader or worker was given, as objects of the engine or as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from headrace.engine.engine import Engine
from headrace.engine.reading.page import Page


class _HasSeq(Protocol):
    @property
    def seq(self) -> int: ...


class _HasData(Protocol):
    @property
    def data(self) -> Any: ...


def seqs_of(records: Iterable[_HasSeq]) -> list[int]:
    """The seqs of records or jobs."""
    return [record.seq for record in records]


def seqs_of_page(page: Page) -> list[int]:
    return seqs_of(page.records)


def seqs_read(engine: Engine, name: str = "t", from_seq: int = 0) -> list[int]:
    """The seqs of the first page that a read returns."""
    return seqs_of_page(engine.read(name, from_seq).result())


def json_seqs(page: Any) -> list[int]:
    """The seqs of a diff's answer, or of an event or message with records."""
    return [record["$seq"] for record in page["records"]]


def job_event_seqs(events: Iterable[_HasData]) -> list[int]:
    """The seqs of the `job` events of a worker's stream."""
    return [event.data["$seq"] for event in events]
