"""Hostile clients that hold on: slow senders, readers that never read, floods of sessions."""

from __future__ import annotations

import base64
import json
import socket
from itertools import count as counting
from typing import ClassVar

from tests.support.hostile_clients import JSON_FIELDS, Hostile, Reply, request

BACKLOG_RECORDS = 100
BACKLOG_RECORD_BYTES = 8_000
BACKLOG_APPENDS = 4
PIPELINED_READS = 8
BASIN = "hostile-basin"
IN_BASIN = {"s2-basin": BASIN}
SESSION_FIELDS = {**IN_BASIN, "Content-Type": "s2s/proto"}
EVENT_STREAM = {"Accept": "text/event-stream"}
BODY_BYTES = "1000000"
CHUNKED = {"Transfer-Encoding": "chunked"}
GOOD = (200, 201, 204)
ALREADY_THERE = 200


def told(replies: list[Reply], *statuses: int) -> None:
    """Check that what an attack needs was made."""
    for reply in replies:
        assert reply.status in statuses, reply


class SlowHeads(Hostile):
    """Heads that never end, a byte at a time."""

    name = "slow_heads"
    holds = True

    def step(self) -> None:
        if len(self.held) < self.count:
            self.hold(b"POST /v0/topics/slow HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        else:
            self.drip(b"x")


class SlowBodies(Hostile):
    """Bodies that never end: of a known length, in chunks of a byte, and of streams."""

    name = "slow_bodies"
    holds = True
    _HEADS: ClassVar = (
        request("POST", "/v0/topics/slow", None, {**JSON_FIELDS, "Content-Length": BODY_BYTES}),
        request("POST", "/v0/topics/slow", None, {**JSON_FIELDS, **CHUNKED}),
        request("POST", "/v1/stream/hostile-slow", None, {**JSON_FIELDS, **CHUNKED}),
    )

    def step(self) -> None:
        if len(self.held) < self.count:
            self.hold(self._HEADS[len(self.held) % len(self._HEADS)])
            return
        # The same bytes are a chunk of one, and a part of a body of a known length.
        self.drip(b"1\r\nx\r\n")


class StalledReader(Hostile):
    """Asks for much and reads nothing; whom the server closes comes back."""

    holds = True

    def begin(self) -> None:
        make_backlogs(self)

    def first(self, number: int) -> bytes:
        """What a connection asks for."""
        raise NotImplementedError

    def step(self) -> None:
        if len(self.held) < self.count:
            self.hold(self.first(len(self.held)))
            return
        kept = [one for one in self.held if not _was_closed(one)]
        for connection in set(self.held) - set(kept):
            connection.close()
        self.held[:] = kept


class StalledWatches(StalledReader):
    """Watches of a backlog over SSE that are not read."""

    name = "stalled_watches"

    def first(self, number: int) -> bytes:
        watch = {"topics": {"hostile-backlog": {"from_seq": 0}}, "max_batch_bytes": 8 << 20}
        (made,) = self.ask(request("POST", "/v0/watch", watch)) or [Reply(0, b"")]
        wid = json.loads(made.body)["wid"] if made.status == 200 else "none"
        return request("GET", f"/v0/watch/{wid}", None, EVENT_STREAM)


class StalledDiffs(StalledReader):
    """Several large diffs at once, none of which is read."""

    name = "stalled_diffs"

    def first(self, number: int) -> bytes:
        asked = {"from_seq": 0, "limit": 1_000, "max_batch_bytes": 8 << 20}
        return request("POST", "/v0/topics/hostile-backlog/diff", asked) * PIPELINED_READS


class StalledStreams(StalledReader):
    """Streams of Durable Streams, caught up with and followed, that are not read."""

    name = "stalled_streams"

    def first(self, number: int) -> bytes:
        path = "/v1/stream/hostile-backlog?offset=-1"
        if number % 2:
            return request("GET", path + "&live=sse", None, EVENT_STREAM)
        return request("GET", path) * PIPELINED_READS


class StalledSessions(StalledReader):
    """Read sessions of S2, as frames and as events, that are not read."""

    name = "stalled_sessions"

    def first(self, number: int) -> bytes:
        path = "/v1/streams/backlog/records?seq_num=0"
        fields = {**IN_BASIN, **EVENT_STREAM} if number % 2 else SESSION_FIELDS
        return request("GET", path, None, fields)


def make_backlogs(kind: Hostile) -> None:
    """A topic and a stream of each dialect with something to read, unless they are there."""
    text = "x" * BACKLOG_RECORD_BYTES
    plain = {"Content-Type": "text/plain"}
    (made,) = kind.ask(request("PUT", "/v1/stream/hostile-backlog", b"", plain))
    if made.status == ALREADY_THERE:
        return
    told(kind.ask(request("POST", "/v1/basins", {"basin": BASIN})), *GOOD)
    told(kind.ask(request("POST", "/v1/streams", {"stream": "backlog"}, IN_BASIN)), *GOOD)
    records = {"records": [{"data": text}] * BACKLOG_RECORDS}
    bodies = {"records": [{"body": text}] * BACKLOG_RECORDS}
    joined = text.encode() * BACKLOG_RECORDS
    for _ in range(BACKLOG_APPENDS):
        made_of = (
            request("POST", "/v0/topics/hostile-backlog", records),
            request("POST", "/v1/streams/backlog/records", bodies, IN_BASIN),
            request("POST", "/v1/stream/hostile-backlog", joined, plain),
        )
        told(kind.ask(*made_of), *GOOD)


def _was_closed(connection: socket.socket) -> bool:
    """Whether the server has reset a connection, of which nothing is read."""
    return bool(connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))


class SessionFlood(Hostile):
    """Sessions of all kinds, opened one after another and left without a word.

    The connections are those of all kinds in turn, so each kind has its part of `count`.
    """

    name = "session_floods"
    holds = True

    def begin(self) -> None:
        make_backlogs(self)
        self._turns = counting()

    def step(self) -> None:
        number = next(self._turns)
        openings = (
            self._append_session,
            self._read_session,
            self._watch,
            self._websocket,
            self._stream_events,
            self._long_poll,
        )
        self.hold(openings[number % len(openings)]())

    def _append_session(self) -> bytes:
        path = "/v1/streams/backlog/records"
        return request("POST", path, None, {**SESSION_FIELDS, **CHUNKED})

    def _read_session(self) -> bytes:
        path = "/v1/streams/backlog/records?tail_offset=0"
        return request("GET", path, None, SESSION_FIELDS)

    def _watch(self) -> bytes:
        watch = {"topics": {"hostile-backlog": {"tail": True}}}
        (made,) = self.ask(request("POST", "/v0/watch", watch)) or [Reply(0, b"")]
        wid = json.loads(made.body)["wid"] if made.status == 200 else "none"
        return request("GET", f"/v0/watch/{wid}", None, EVENT_STREAM)

    def _websocket(self) -> bytes:
        fields = {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
        }
        return request("GET", "/v0/ws", None, fields)

    def _stream_events(self) -> bytes:
        return request("GET", "/v1/stream/hostile-backlog?offset=now&live=sse", None, EVENT_STREAM)

    def _long_poll(self) -> bytes:
        return request("GET", "/v1/stream/hostile-backlog?offset=now&live=long-poll")


HOLDERS = (
    SlowHeads,
    SlowBodies,
    StalledWatches,
    StalledDiffs,
    StalledStreams,
    StalledSessions,
    SessionFlood,
)
