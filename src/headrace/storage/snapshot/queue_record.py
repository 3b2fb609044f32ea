"""What a snapshot keeps of a queue: who holds which job until when, how often each was delivered.

Only this file knows the layout (docs/formats/snapshot.md).  Times are milliseconds since 1970; each
comes with the length it was given, so that a clock that was set back cannot make it longer.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class HeldState(NamedTuple):
    """Jobs that one claim holds until `deadline_ms`."""

    token: int
    node: str
    deadline_ms: int
    held_ms: int
    bound: bool  # to a connection, so it ends with the process
    seqs: list[int]


class DelayState(NamedTuple):
    """Jobs that nobody gets before `until_ms`."""

    until_ms: int
    held_ms: int
    seqs: list[int]


class MoveState(NamedTuple):
    """Jobs on their way to another topic: copied there or not, not yet deleted here."""

    number: int
    what: int  # EVENT_BURY or EVENT_REVIVE
    topic: str
    seqs: list[int]


# On-disk field order: never change it, add only at the end and with a default.
class QueueRecord(msgspec.Struct, array_like=True, frozen=True):
    """The state of one queue.  Jobs up to `cursor` that are not named anywhere are free."""

    cursor: int = 0
    dead_lettered: int = 0
    moves: int = 0  # the number of the last move
    deliveries: list[tuple[int, bytes]] = []  # how often, a serialised 64-bit roaring bitmap
    held: list[HeldState] = []
    delays: list[DelayState] = []
    moving: list[MoveState] = []


_DECODER = msgspec.msgpack.Decoder(QueueRecord)


def encode_queue(record: QueueRecord) -> bytes:
    """
    >>> decode_queue(encode_queue(QueueRecord(7))).cursor
    7
    """
    return msgspec.msgpack.encode(record)


def decode_queue(data: bytes) -> QueueRecord:
    return _DECODER.decode(data)
