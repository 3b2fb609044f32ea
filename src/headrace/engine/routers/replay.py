"""Recovery of routers: their options, their cursors, and every copy as it was before.

Only this file replays the entries of routers.  A forward entry names records of the source, which
are in files, or in the log and so in memory; the same code that made the copies first
(`copied_records.py`) makes them again.  Two things may be out of order while replaying:

* a record may be dead already, because the entry that removed it was staged before the copy was;
  so dead rows of sources are kept until the log has been read (`EngineState.pin_dead_rows`);
* with several shards, the log of a destination may be read before that of its source; then the
  entries of the destination are put aside, in order, until the source is there.  When they are more
  than fit into `replay_memory_bytes`, the log of the destination waits for the others (`Waiting`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol

import msgspec
from pyroaring import BitMap64

from headrace.engine.routers.copied_records import Window, joined
from headrace.engine.routers.directory import RouterDirectory
from headrace.engine.routers.snapshot import HOPS, KEYS, NEXT_ID, PART, KeyRows
from headrace.engine.routers.state import CopiedKeys, HopRuns
from headrace.engine.sealing.seal import Capture
from headrace.engine.state import EngineState
from headrace.engine.topics.topic import Topic
from headrace.storage.block import Block, Rows
from headrace.storage.wal.frame import (
    ENTRY_FORWARD,
    ENTRY_ROUTER,
    FORWARD_KEY,
    FORWARD_LOST,
    FORWARD_STORED,
    CopyTarget,
    Forward,
    RouterDelete,
    RouterPut,
    decode_control,
)
from headrace.storage.wal.scan_shards import Waiting

# About how much memory a forward entry that was put aside takes.
FORWARD_ASIDE_BYTES = 512

PutAside = tuple[int, bytes] | tuple[Forward, CopyTarget]

log = logging.getLogger("headrace.recovery")


class Replayer(Protocol):
    """What recovery does for routers."""

    def append(self, topic: Topic, block: Block) -> None: ...
    def given_out(self, topic: Topic, seq: int) -> None: ...
    def apply(self, kind: int, entry: bytes) -> None: ...


class RouterReplay:
    """The routers of an engine that recovers."""

    def __init__(self, state: EngineState, routers: RouterDirectory, replayer: Replayer) -> None:
        self._state = state
        self._routers = routers
        self._replayer = replayer
        self._states: dict[int, RouterPut] = {}
        self._early: dict[int, tuple[int, int]] = {}  # cursor and total before the put
        self._gone: set[int] = set()
        self._hops: dict[int, HopRuns] = {}
        self._keys: dict[int, dict[tuple[str, int, int], CopiedKeys]] = {}
        self._next_id = 1
        self._stored_parts: set[str] = set()
        self._dead: dict[int, tuple[Topic, list[Block]]] = {}  # deleted sources
        # Entries of a destination, from the first one on whose source is not there yet.
        self.aside: dict[int, deque[PutAside]] = {}
        self.waiting = Waiting(state.settings.replay_memory_bytes)
        self._waiting_for: dict[int, set[int]] = {}  # by source: destinations that wait for it
        self._window: tuple[Forward, Window] | None = None  # of the last entry
        self.several = False  # several logs: records of a topic may be needed after its delete

    # The snapshot

    def restore(self, extra: dict[str, bytes]) -> None:
        """Take over what a snapshot says of routers."""
        decode = msgspec.msgpack.decode
        for name, part in extra.items():
            if name.startswith(PART):
                for state in decode(part, type=list[RouterPut]):
                    self._states[state.router_id] = state
                    self._state.pin_dead_rows(state.source_id)
            elif name.startswith(KEYS):
                dest_id = int(name[len(KEYS) :])
                rows = decode(part, type=KeyRows)
                self._keys[dest_id] = {(n, s, e): CopiedKeys(pairs) for n, s, e, pairs in rows}
            elif name == HOPS:
                flat = decode(part, type=dict[int, list[int]])
                self._hops = {topic_id: HopRuns(runs) for topic_id, runs in flat.items()}
            elif name == NEXT_ID:
                self._next_id = decode(part, type=int)
            else:
                continue
            self._stored_parts.add(name)

    # The log

    def entry(self, kind: int, entry: bytes) -> None:
        """Apply an entry of a router."""
        if kind == ENTRY_ROUTER:
            self._put(decode_control(entry, RouterPut)[1])
        elif kind == ENTRY_FORWARD:
            forward = decode_control(entry, Forward)[1]
            for target in forward.targets:
                self._forward(forward, target)
        else:
            router_id = decode_control(entry, RouterDelete)[1].router_id
            self._states.pop(router_id, None)
            self._gone.add(router_id)

    def connected(self) -> Iterator[int]:
        """The topics that the routers known so far read from and write to."""
        for state in self._states.values():
            yield from (state.source_id, state.dest_id)

    def named(self, kind: int, entry: bytes) -> Iterable[int]:
        """The topics that an entry connects; those of a copy are connected by an earlier entry,
        unless that is in another log."""
        if kind == ENTRY_ROUTER:
            put = decode_control(entry, RouterPut)[1]
            return (put.source_id, put.dest_id)
        if kind == ENTRY_FORWARD and self.several:
            forward = decode_control(entry, Forward)[1]
            return (forward.source_id, *(target.dest_id for target in forward.targets))
        return ()

    def _put(self, state: RouterPut) -> None:
        self._next_id = max(self._next_id, state.router_id + 1)
        self._state.pin_dead_rows(state.source_id)
        if state.router_id in self._gone:
            return
        known = self._states.get(state.router_id)
        cursor, total = self._early.pop(state.router_id, (0, 0))
        if known is not None and known.cursor > cursor:
            cursor, total = known.cursor, known.forwarded_total
        if cursor > state.cursor:
            state = msgspec.structs.replace(state, cursor=cursor, forwarded_total=total)
        self._states[state.router_id] = state

    def _advance(self, forward: Forward, target: CopyTarget) -> None:
        state = self._states.get(target.router_id)
        if state is None:
            self._early[target.router_id] = (forward.last, target.forwarded_total)
        elif forward.last > state.cursor:
            self._states[target.router_id] = msgspec.structs.replace(
                state, cursor=forward.last, forwarded_total=target.forwarded_total
            )

    def whole(self, topic: Topic, encoded: bytes, block: Block) -> None:
        """Note an append entry whose records are copies of records that the log does not have."""
        forward = msgspec.msgpack.decode(encoded, type=Forward)
        target = forward.targets[0]
        self._advance(forward, target)
        self._note(forward, target, topic, block)

    # Destinations that wait for their source

    def put_aside(self, kind: int, topic_id: int, entry: bytes) -> bool:
        """Put an entry aside if its topic has others that wait; return whether it was."""
        waiting = self.aside.get(topic_id)
        if waiting is None:
            return False
        waiting.append((kind, entry))
        self.waiting.bytes += len(entry)
        return True

    def _forward(self, forward: Forward, target: CopyTarget) -> None:
        if target.dest_id in self.aside:
            self.aside[target.dest_id].append((forward, target))
        elif not self._apply(forward, target):
            self._wait(forward, target, deque([(forward, target)]))
        else:
            return
        self.waiting.bytes += FORWARD_ASIDE_BYTES

    def _wait(self, forward: Forward, target: CopyTarget, entries: deque[PutAside]) -> None:
        self.aside[target.dest_id] = entries
        self._waiting_for.setdefault(forward.source_id, set()).add(target.dest_id)

    def appended(self, topic_id: int) -> None:
        """Go on with the destinations that wait for records of this topic: it has more."""
        for dest_id in self._waiting_for.pop(topic_id, ()):
            self._go_on(dest_id)

    def _go_on(self, dest_id: int, *, give_up: bool = False) -> None:
        """Apply what was put aside for a destination, as far as it goes."""
        waiting = self.aside.pop(dest_id, None)
        while waiting:
            first, second = waiting.popleft()
            if isinstance(first, Forward):
                assert isinstance(second, CopyTarget)
                if not self._apply(first, second, give_up=give_up):
                    waiting.appendleft((first, second))
                    self._wait(first, second, waiting)
                    return
                self.waiting.bytes -= FORWARD_ASIDE_BYTES
                give_up = False
            else:
                assert isinstance(second, bytes)
                self.waiting.bytes -= len(second)
                self._replayer.apply(first, second)

    def finish_log(self) -> None:
        """Apply what still waits at the end of the log: a power loss took its sources."""
        while self.aside:
            self._go_on(self._next_to_give_up(), give_up=True)

    def _next_to_give_up(self) -> int:
        """Return a destination to give up on, if possible one whose source does not wait itself."""
        for dest_id, entries in self.aside.items():
            first = entries[0][0]
            if isinstance(first, Forward) and first.source_id not in self.aside:
                return dest_id
        return next(iter(self.aside))

    # Copies

    def _apply(self, forward: Forward, target: CopyTarget, *, give_up: bool = False) -> bool:
        """Make the copies of one destination again; return False if their source is not there."""
        dest = self._state.by_id.get(target.dest_id)
        if dest is None or not target.first_seq:
            self._advance(forward, target)
            return True
        if target.first_seq <= dest.head:
            dest.reservation.raise_to(target.reserved_to)
            self._advance(forward, target)
            self._note(forward, target, dest, None)
            return True
        if forward.flags & FORWARD_LOST:
            self._replayer.given_out(dest, target.first_seq - 1)
            dest.add_trim(target.first_seq, target.first_seq + _count(forward) - 1)
            dest.mark_changed()
            self._note(forward, target, dest, None)
        elif not forward.flags & FORWARD_STORED:
            self._replayer.given_out(dest, target.first_seq + _count(forward) - 1)
            dest.replay_ts(target.ts)
            self._note(forward, target, dest, None)
        else:
            window = self._window_of(forward)
            if window is None and not give_up:
                return False
            self._copy(forward, target, dest, window)
        dest.reservation.raise_to(target.reserved_to)
        self._advance(forward, target)
        return True

    def _copy(
        self, forward: Forward, target: CopyTarget, dest: Topic, window: Window | None
    ) -> None:
        if window is None:
            log.warning("copies in %r are lost with their source", dest.name)
            self._replayer.given_out(dest, target.first_seq + _count(forward) - 1)
            return
        made = window.make(None, forward.flags & ~FORWARD_STORED, target.name)
        block = made.block(target.first_seq, target.ts, forward.arrived_ms)
        self._replayer.append(dest, block)
        self._note(forward, target, dest, block)

    def _note(self, forward: Forward, target: CopyTarget, dest: Topic, block: Block | None) -> None:
        """Note the hops of copies, and their keys."""
        count = block.count if block is not None else _count(forward)
        runs = self._hops.setdefault(dest.id, HopRuns())
        runs.add(target.first_seq, forward.hops or [count, 1])
        if forward.flags & FORWARD_KEY and target.first_seq + count - 1 > dest.base:
            key = (target.name, forward.source_id, forward.epoch)
            keys = self._keys.setdefault(dest.id, {}).setdefault(key, CopiedKeys())
            keys.add(_copied(forward), target.first_seq)

    def _window_of(self, forward: Forward) -> Window | None:
        """Return the records of an entry, which all its targets share; None: they are not there."""
        if self._window is not None and self._window[0] is forward:
            return self._window[1]
        topic = self._state.by_id.get(forward.source_id)
        blocks = topic.blocks.since(forward.first) if topic is not None else []
        if topic is None:
            topic, blocks = self._dead.get(forward.source_id, (None, []))
        seqs = _copied(forward)
        if topic is None or topic.head < seqs[-1]:
            return None
        rows = self._rows(forward.source_id, blocks, seqs)
        if rows is None:
            return None
        window = Window(topic, forward.first - 1, forward.last, None, rows)
        self._window = (forward, window)
        return window

    def _rows(self, topic_id: int, blocks: list[Block], seqs: list[int]) -> Rows | None:
        """Return these records of a source, dead or alive; None: some are not there."""
        first, last = seqs[0], seqs[-1]
        in_memory = blocks[0].first_seq if blocks else last + 1
        parts: list[Rows] = []
        if first < in_memory:
            for run in self._state.catalog.runs(topic_id):
                if run.first_seq < in_memory and run.first_seq <= last and run.last_seq >= first:
                    low, high = run.row_of(first), run.row_of(min(last, in_memory - 1) + 1)
                    if high > low:
                        parts.append(run.rows(low, high))
        for block in blocks:
            if block.first_seq > last:
                break
            low = max(0, first - block.first_seq)
            high = min(block.count, last - block.first_seq + 1)
            if high > low:
                parts.append(block.rows(low, high))
        if not parts:
            return None
        rows = joined(parts)
        wanted = set(seqs)
        positions = [i for i, seq in enumerate(rows.seqs) if seq in wanted]
        if len(positions) != len(seqs):
            return None
        return rows if len(positions) == len(rows) else rows.pick(positions)

    # Pinned rows

    def dropped(self, topic: Topic) -> None:
        """Keep the blocks of a topic that is being forgotten, for copies in logs not read yet."""
        if self._state.is_pinned(topic.id) and self.several:
            self._dead[topic.id] = (topic, list(topic.blocks))

    def sealed_with_dead(self, captured: Capture) -> Capture:
        """Return what to seal in the middle of a replay, with dead rows that copies may need."""
        topic = captured.topic
        if not self._state.is_pinned(topic.id):
            return captured
        return msgspec.structs.replace(
            captured, blocks=topic.blocks.since(topic.sealed_to + 1), base=topic.sealed_to
        )

    def finish(self) -> None:
        """Hand the routers over to the directory: everything was replayed."""
        self._state.unpin()
        self._dead.clear()
        self._window = None
        self._routers.adopt(
            self._states.values(), self._hops, self._keys, self._next_id, self._stored_parts
        )


def _copied(forward: Forward) -> list[int]:
    """Return the seqs of the records that were copied."""
    everything = range(forward.first, forward.last + 1)
    if not forward.skip:
        return list(everything)
    skip = BitMap64.deserialize(forward.skip)
    return [seq for seq in everything if seq not in skip]


def _count(forward: Forward) -> int:
    """Return how many records were copied."""
    skipped = len(BitMap64.deserialize(forward.skip)) if forward.skip else 0
    return forward.last - forward.first + 1 - skipped
