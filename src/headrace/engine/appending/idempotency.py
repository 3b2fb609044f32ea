"""Once and only once: idempotency keys with a window, and what is logged beside records.

Only this file decides whether a key was seen before.  Keys are remembered for the topic's window,
by their XXH3-128 digest, in generations of a quarter window that are dropped whole; at most
`entries_max` are kept, and a full index refuses rather than forgets.  They travel, as producers do
(`producers.py`), in the log entry of the data they guard (the *sidecar*), so that they are exactly
as durable as the records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec
from xxhash import xxh3_128_digest

from headrace.core.errors import Throttled
from headrace.storage.snapshot.key_files import KeyRow

GENERATIONS_PER_WINDOW = 4


class Sidecar(msgspec.Struct, array_like=True, frozen=True):
    """What is committed with the records of an append, beside them."""

    key: bytes = b""
    producer_id: str = ""
    producer_epoch: int = 0
    producer_sequence: int = 0
    state: bytes | None = None
    forward: bytes = b""  # of copies whose source is not in the log: the fields of that entry

    def encode(self) -> bytes:
        return encode_sidecar(self)


encode_sidecar: Final[Callable[[Sidecar], bytes]] = msgspec.msgpack.Encoder().encode
decode_sidecar: Final[Callable[[bytes], Sidecar]] = msgspec.msgpack.Decoder(Sidecar).decode


def digest(key: str) -> bytes:
    return xxh3_128_digest(key.encode())


class _TopicKeys:
    """Keys of one topic, in generations; the newest is last."""

    __slots__ = ("generations", "newest_ms", "window_ms")

    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms
        self.newest_ms = 0  # of the keys; looked at by every append, so not searched for
        self.generations: deque[tuple[int, dict[bytes, KeyRow]]] = deque()


class KeyIndex:
    """Every remembered key of every topic."""

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._topics: dict[int, _TopicKeys] = {}
        self._unsaved: list[KeyRow] = []
        self.entries = 0

    def find(self, topic_id: int, key: bytes, window_ms: int, now_ms: int) -> KeyRow | None:
        """What was stored under this key within the window."""
        keys = self._topics.get(topic_id)
        if keys is None:
            return None
        self._expire(topic_id, keys, window_ms, now_ms)
        for _, rows in reversed(keys.generations):
            row = rows.get(key)
            if row is not None:
                return row if now_ms - row.time_ms <= window_ms else None
        return None

    def refuse_if_full(self, now_ms: int, in_flight: int = 0) -> None:
        """Raise unless one more key fits, beside those that are on their way."""
        if self.entries + in_flight < self._entries_max:
            return
        for topic_id, keys in list(self._topics.items()):
            self._expire(topic_id, keys, keys.window_ms, now_ms)
        if self.entries + in_flight >= self._entries_max:
            raise Throttled(
                f"{self.entries} idempotency keys are within their windows, the most allowed",
                fix="retry later, shorten idempotency_window_ms, or raise "
                "HEADRACE_IDEMPOTENCY_ENTRIES_MAX",
                detail={"limit": "idempotency_entries_max", "max": self._entries_max},
            )

    def add(self, row: KeyRow, window_ms: int, *, saved: bool = False) -> None:
        """Remember a stored append.  A row added twice counts once."""
        keys = self._topics.get(row.topic_id)
        if keys is None:
            keys = self._topics[row.topic_id] = _TopicKeys(window_ms)
        keys.window_ms = max(keys.window_ms, window_ms)
        keys.newest_ms = max(keys.newest_ms, row.time_ms)
        span = max(1, window_ms // GENERATIONS_PER_WINDOW)
        if not keys.generations or row.time_ms >= keys.generations[-1][0] + span:
            keys.generations.append((row.time_ms, {}))
        for _, rows in keys.generations:
            known = rows.get(row.key)
            if known is not None and known.first_seq == row.first_seq:
                return  # replayed from the log, and in a key file as well
        rows = keys.generations[-1][1]
        if row.key not in rows:
            self.entries += 1
        rows[row.key] = row
        if not saved:
            self._unsaved.append(row)

    def forget_topic(self, topic_id: int) -> None:
        keys = self._topics.pop(topic_id, None)
        if keys is not None:
            self.entries -= sum(len(rows) for _, rows in keys.generations)

    def take_unsaved(self) -> list[KeyRow]:
        """Rows no key file holds yet; the caller writes them, or puts them back."""
        rows, self._unsaved = self._unsaved, []
        return rows

    def save_again(self, topic_id: int, window_ms: int) -> None:
        """The window of a topic has grown: files that hold its keys would be dropped too early."""
        keys = self._topics.get(topic_id)
        if keys is not None:
            keys.window_ms = max(keys.window_ms, window_ms)
            self._unsaved.extend(row for _, rows in keys.generations for row in rows.values())

    def put_back(self, rows: Iterable[KeyRow]) -> None:
        self._unsaved[:0] = rows

    def window_of(self, topic_id: int) -> int:
        keys = self._topics.get(topic_id)
        return keys.window_ms if keys is not None else 0

    def rows(self) -> Iterator[KeyRow]:
        """Every remembered row, in no order."""
        for keys in self._topics.values():
            for _, rows in keys.generations:
                yield from rows.values()

    def _expire(self, topic_id: int, keys: _TopicKeys, window_ms: int, now_ms: int) -> None:
        generations = keys.generations
        while generations:
            rows = generations[0][1]
            newest = generations[1][0] if len(generations) > 1 else keys.newest_ms
            if now_ms - newest <= window_ms:
                break
            self.entries -= len(rows)
            generations.popleft()
        if not generations:
            del self._topics[topic_id]
