"""Reading a topic of an engine to its end, page by page."""

from __future__ import annotations

from headrace.engine.engine import Engine
from headrace.storage.block import Record


def all_records(engine: Engine, name: str = "t", from_seq: int = 0) -> list[Record]:
    """The records behind `from_seq`."""
    found: list[Record] = []
    while True:
        page = engine.read(name, from_seq).result()
        found += page.records
        if page.caught_up:
            return found
        from_seq = page.next_from_seq


def all_data(engine: Engine, name: str) -> list[bytes]:
    return [record.data for record in all_records(engine, name)]
