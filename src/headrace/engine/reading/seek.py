"""Finding where to begin by time: the first live record that is not older.

Only this file looks for a time, among the records of a topic and those that it inherits.  What
memory says is settled when the search begins; the files may be asked later, in a lane.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from headrace.core.errors import HeadraceError, typed
from headrace.core.runtime import Ticket
from headrace.engine.removal import retention
from headrace.engine.removal.retention import LANE
from headrace.engine.state import EngineState
from headrace.engine.topics.topic import Topic
from headrace.storage.files.block_cache import WouldBlock
from headrace.storage.files.catalog import runs_in
from headrace.storage.segment.run import Run

RunsOf = Callable[[int], list[Run]]  # by the id of a topic


def seek_ts(state: EngineState, topic: Topic, ts: int) -> Ticket[int]:
    """Find the first live record with a timestamp of at least `ts`; the seq behind the head: none.

    It is looked up in memory and in the indexes of files; no record is read on the way.
    """
    retention.enforce(state, topic)
    ticket: Ticket[int] = Ticket(state.runtime)
    seek, catalog = Seek(topic, ts), state.catalog

    def sought(value: object, error: BaseException | None) -> None:
        if error is not None:
            ticket.fail(typed(error))
            return
        assert isinstance(value, int)
        older = topic.live_between(topic.base + 1, value)
        ticket.resolve(topic.nth_live(older + 1) if older < topic.count else topic.head + 1)

    try:
        sought(seek.find(lambda topic_id: catalog.runs(topic_id, False), wait=False), None)
    except WouldBlock:
        files = {topic_id: catalog.files_of(topic_id) for topic_id in seek.owner_ids}

        def look() -> int:
            return seek.find(lambda topic_id: runs_in(files[topic_id], topic_id), wait=True)

        state.runtime.submit(LANE, look, sought)
    except (HeadraceError, OSError) as error:
        ticket.fail(typed(error))
    return ticket


class Seek:
    """One search, in a topic as it was when it began."""

    __slots__ = ("_base", "_head", "_places", "_ts")

    def __init__(self, topic: Topic, ts: int) -> None:
        self._ts = ts
        self._base = base = topic.base
        self._head = head = topic.head
        self._places = [
            _Place(owner, base, last, ts) for owner, _, last in topic.shares if last > base
        ]
        self._places.append(_Place(topic, max(base, topic.parent_to), head, ts))

    @property
    def owner_ids(self) -> list[int]:
        """The topics whose files may be asked."""
        return [place.owner_id for place in self._places]

    def find(self, runs_of: RunsOf, *, wait: bool) -> int:
        """The cursor before the first live record with a timestamp of at least `ts`."""
        for place in self._places:
            found = place.find(runs_of, self._ts, wait)
            if found is not None:
                return found
        return self._head


class _Place:
    """The records after `base` up to `last` that one topic holds."""

    __slots__ = ("_base", "_in_memory", "_later", "owner_id")

    def __init__(self, owner: Topic, base: int, last: int, ts: int) -> None:
        self.owner_id = owner.id
        self._base = base
        self._in_memory = min(in_memory_from(owner), last + 1)
        self._later = _cursor_in_memory(owner, base, last, ts)

    def find(self, runs_of: RunsOf, ts: int, wait: bool) -> int | None:
        if self._in_memory > self._base + 1:
            runs = runs_of(self.owner_id)
            found = _cursor_in_runs(runs, self._base, self._in_memory, ts, wait)
            if found is not None:
                return found
        return self._later


def in_memory_from(topic: Topic) -> int:
    """The first seq that memory holds."""
    oldest = topic.blocks.first
    return oldest.first_seq if oldest is not None else topic.head + 1


def _cursor_in_memory(topic: Topic, base: int, last: int, ts: int) -> int | None:
    """The cursor before the first record in memory with a timestamp of at least `ts`."""
    block = topic.blocks.from_ts(ts, base + 1)
    if block is None:
        return None
    stamps = block.timestamps(0, block.count)
    older = 0 if isinstance(stamps, int) else bisect_left(stamps, ts)
    found = max(base, block.first_seq - 1 + older)
    return found if found < last else None


def _cursor_in_runs(
    runs: Sequence[Run], base: int, in_memory: int, ts: int, wait: bool
) -> int | None:
    """The same among sealed rows before `in_memory`; None when there is none."""
    for run in runs:
        if run.first_seq >= in_memory:
            break
        if run.last_seq > base and run.max_ts >= ts:
            row = run.row_at_ts(ts, wait)
            seq = run.rows(row, row + 1, wait).seqs[0]
            return max(base, seq - 1) if seq < in_memory else None
    return None
