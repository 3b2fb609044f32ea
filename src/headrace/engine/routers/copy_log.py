"""How copies get into the log: one entry without payloads for many, or whole where they must be.

Only this file stages the entries of a pass.  `forwarding.py` decides what they say.
"""

from __future__ import annotations

import msgspec

from headrace.engine.appending.idempotency import Sidecar
from headrace.engine.routers.copied_records import (
    Copy,
    ForwardCommit,
    Picked,
    Settled,
    Window,
    encode_seqs,
    target_of,
)
from headrace.engine.state import EngineState
from headrace.engine.topics.topic import Topic
from headrace.storage.block_encoding import encode_block
from headrace.storage.wal.frame import ENTRY_FORWARD, Forward, encode_control


class CopyLog:
    """Stages copies; `settled` hears when their entry has met its class, or has failed."""

    def __init__(self, state: EngineState, settled: Settled) -> None:
        self._state = state
        self._settled = settled

    def shard_number(self, dest: Topic) -> int:
        """Return the number of the shard that has the entries of a destination."""
        state = self._state
        return 0 if len(state.shards) == 1 else state.shards.index(state.shard_of(dest.id))

    def stage(
        self, topic: Topic, cursor: int, last: int, skip: bytes, flags: int, now: int,
        copies: list[Copy], shard: int, synced: bool,
    ) -> None:  # fmt: skip
        """Stage one entry that says which records of a source were copied where."""
        entry = Forward(
            topic.id, topic.epoch, cursor + 1, last, skip, flags, now, [*copies[0].hops],
            [target_of(copy, flags) for copy in copies],
        )  # fmt: skip
        for copy in copies:
            copy.router.busy = True
        raw = encode_control(ENTRY_FORWARD, topic.id, entry)
        self._state.shards[shard].forwards_staged += 1
        self._state.shards[shard].stage(ForwardCommit(raw, synced, copies, self._settled))

    def stage_whole(
        self, window: Window, picked: Picked, flags: int, now: int, copy: Copy, synced: bool
    ) -> None:
        """Stage the copies themselves: the log does not have the records of their source."""
        topic, block = window.topic, copy.block
        assert block is not None
        skip = encode_seqs(window.skipped(picked, copy.cursor))
        entry = Forward(
            topic.id, topic.epoch, window.cursor + 1, copy.cursor, skip, flags, now, [*copy.hops],
            [target_of(copy, flags)],
        )  # fmt: skip
        dest = copy.router.dest
        sidecar = Sidecar(forward=msgspec.msgpack.encode(entry)).encode()
        batch = window.batch(picked, flags, copy.router.name)
        whole = encode_block(batch, dest.id, block.first_seq, block.ts, now, copy.reserve, sidecar)
        copy.router.busy = True
        commit = ForwardCommit(whole.raw, synced, [copy._replace(block=whole)], self._settled)
        self._state.shard_of(dest.id).stage(commit)
