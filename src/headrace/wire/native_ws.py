"""`GET /v0/ws`: following and publishing over one WebSocket.

Only this file runs its commands.  Each is one JSON text; each answer has the `request_id` of its
command.  A publisher hears of its append before the record itself comes to it.  What a key may do
is checked command by command.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Raw

from headrace.core.errors import Forbidden, HeadraceError, Internal, InvalidRequest, Throttled
from headrace.core.runtime import Ticket
from headrace.core.settings import Settings
from headrace.engine.admission import Append
from headrace.engine.append import Appended
from headrace.engine.live import Shared
from headrace.engine.topic_config import FSYNC
from headrace.wire.exchange import Exchange, Key, Outlet
from headrace.wire.live_json import deleted_message, error_message, messages_of, paced_message
from headrace.wire.live_stream import Common, Followed, LiveStream, Place
from headrace.wire.metrics import Metrics
from headrace.wire.native import (
    TOPICS,
    check_dead_letter,
    check_not_own,
    check_u64,
    decode_json,
    encode,
)
from headrace.wire.native_append import AppendApi
from headrace.wire.native_live_types import TopicStart, WatchedTopic
from headrace.wire.native_watch import Views, place_in, positions_of
from headrace.wire.native_ws_types import (
    NULL,
    Command,
    Ping,
    Publish,
    Subscribe,
    Unknown,
    Unsubscribe,
)
from headrace.wire.routes import ADMIN, READ, WRITE
from headrace.wire.slots import StreamSlots
from headrace.wire.websocket_frames import (
    BROKEN,
    INVALID_TEXT,
    TOO_SLOW,
    Incoming,
    handshake,
    text_frame,
)

log = logging.getLogger("headrace.wire")

LIMIT_DEFAULT: Final = 1_000
BYTES_DEFAULT: Final = 1 << 20
# Topics that one connection follows.
SUBSCRIPTIONS_MAX: Final = 4_096
# Appends of one connection that are not acknowledged yet.
PUBLISHES_MAX: Final = 1_000
# Answers that wait for a client that sends commands and reads nothing.
REPLIES_UNREAD_MAX: Final = 1_000

_DECODER: Final = msgspec.json.Decoder(Command)
_UNKNOWN: Final = msgspec.json.Decoder(Unknown)
_ERROR: Final = b'{"op":"error",'
_SEE: Final = "docs/reference/http.md#websocket has the commands and their fields"


class WebSocketApi:
    """WebSockets of one engine."""

    def __init__(
        self,
        common: Common,
        settings: Settings,
        metrics: Metrics,
        slots: StreamSlots,
        views: Views,
    ) -> None:
        self.common = common
        self.settings = settings
        self.metrics = metrics
        self.views = views
        self.append = AppendApi(common.hub.engine, settings, metrics, TOPICS)
        self.connections: dict[WebSocket, None] = {}
        self._slots = slots

    def open(self, exchange: Exchange) -> None:
        """`GET /v0/ws`."""
        headers = handshake(exchange)
        self._slots.take(exchange.key)
        try:
            outlet = exchange.tunnel(headers)
        except BaseException:
            self._slots.release(exchange.key)
            raise
        connection = WebSocket(self, outlet, exchange.key)
        self.connections[connection] = None
        connection.begin()

    def closed(self, connection: WebSocket, key: Key | None) -> None:
        """A connection has ended."""
        del self.connections[connection]
        self._slots.release(key)


class WebSocket(LiveStream):
    """One connection."""

    __slots__ = (
        "_api",
        "_incoming",
        "_key",
        "_publishing",
        "_replies_unread",
        "_subscriptions",
        "_waiting",
    )

    def __init__(self, api: WebSocketApi, outlet: Outlet, key: Key | None) -> None:
        super().__init__(api.common, outlet)
        self._api = api
        self._key = key
        self._incoming = Incoming(api.settings.websocket_message_bytes_max)
        self._subscriptions: dict[str, Followed] = {}
        self._waiting: list[dict[str, TopicStart | None]] = []  # for what routers owe their topics
        self._publishing = 0
        self._replies_unread = 0
        outlet.on_data = self._data

    @property
    def beat_ms(self) -> int:
        return self._api.settings.heartbeat_ms_default

    # Commands

    def _data(self, data: bytes) -> None:
        for is_text, message in self._incoming.feed(data):
            if self.closed:
                return
            if is_text:
                self._message(message)
            else:
                self._refuse(NULL, "unsupported_message", "send JSON as text, not as binary")
        self._flush()

    def _flush(self) -> None:
        """Send what the protocol itself has to say: pongs, and the closing handshake."""
        data, ends = self._incoming.to_send()
        if data:
            self.write(data)
        if ends or not self._incoming.open:
            self.finish()

    def _message(self, message: bytes) -> None:
        started_ns = self._common.hub.turns.monotonic_ns()
        try:
            str(message, "utf-8")
        except UnicodeDecodeError:
            self._close(INVALID_TEXT, "the text is not UTF-8")
            return
        try:
            command = decode_json(message, _DECODER, fix=_SEE)
        except InvalidRequest as error:
            self._refuse(_request_id(message), "invalid_json", str(error))
            return
        try:
            self._run(command, len(message), started_ns)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client hears of it
            self._refuse_error(command.request_id, error)

    def _run(self, command: Command, size: int, started_ns: int) -> None:
        if isinstance(command, Publish):
            self._publish(command, size, started_ns)
        elif isinstance(command, Subscribe):
            self._subscribe(command)
        elif isinstance(command, Unsubscribe):
            self._unsubscribe(command)
        else:
            assert isinstance(command, Ping)
            self._reply(b"pong", command.request_id, b"}")

    def _check(self, scope: str, names: Iterable[str] = ()) -> None:
        key = self._key
        if key is None:
            return
        if not key.allows_scope(scope):
            raise Forbidden(f"this needs the scope {scope}", fix="use another key")
        for name in names:
            if not key.allows_name(name):
                raise Forbidden(
                    f"this key may not use {name!r}",
                    fix="name only what the key's prefixes allow",
                    detail={"topic": name},
                )

    # Following

    def _subscribe(self, command: Subscribe) -> None:
        api, hub = self._api, self._common.hub
        starts = dict(command.topics or {})
        if command.topic is not None:
            starts[command.topic] = command.start
        if not starts:
            raise InvalidRequest("no topic is named", fix="send `topic` or `topics`")
        if len(starts) > api.settings.topics_per_watch_max:
            raise InvalidRequest(
                f"{len(starts)} topics are named",
                fix=f"name at most {api.settings.topics_per_watch_max} at a time",
            )
        self._check(READ, starts)
        waiting = sum(map(len, self._waiting))
        if len(self._subscriptions.keys() | starts.keys()) + waiting > SUBSCRIPTIONS_MAX:
            raise InvalidRequest(
                "too many subscriptions", fix=f"follow at most {SUBSCRIPTIONS_MAX} topics"
            )
        # They have what routers owe them first, so that `tail` leaves out all that was before.
        drained = hub.engine.routers.drain_all(starts)
        if drained is None:
            self._follow(command, starts)
            return
        self._waiting.append(starts)

        def follow(_: object) -> None:
            self._waiting = [other for other in self._waiting if other is not starts]
            if self.closed:
                return
            try:
                self._follow(command, starts)
            except Exception as error:  # noqa: BLE001 - whatever it is, the client hears of it
                self._refuse_error(command.request_id, error)

        drained.when_done(follow)

    def _follow(self, command: Subscribe, starts: dict[str, TopicStart | None]) -> None:
        api, hub = self._api, self._common.hub
        view = api.views.of(
            TOPICS, command, limit_default=LIMIT_DEFAULT, bytes_default=BYTES_DEFAULT
        )
        told = positions_of(command)
        found: list[tuple[Place, WatchedTopic]] = []
        for name, start in starts.items():
            if command.lenient and hub.find(name) is None:
                continue
            found.append(place_in(hub, name, start or TopicStart(), view, told))
        shown = {place.name: topic for place, topic in found}
        self._reply(b"subscribed", command.request_id, b',"topics":' + encode(shown) + b"}")
        for place, _ in found:
            before = self._subscriptions.pop(place.name, None)
            if before is not None:
                self.leave(before)
            followed = self.follow(place, view, hub.find(place.name))
            self._subscriptions[place.name] = followed

    def _unsubscribe(self, command: Unsubscribe) -> None:
        names = [*(command.topics or ())]
        if command.topic is not None and command.topic not in names:
            names.insert(0, command.topic)
        left = []
        for name in names:
            asked = [starts.pop(name, False) for starts in self._waiting]
            followed = self._subscriptions.pop(name, None)
            if followed is not None:
                self.leave(followed)
            if followed is not None or any(start is not False for start in asked):
                left.append(name)
        self._reply(b"unsubscribed", command.request_id, b',"topics":' + encode(left) + b"}")

    def send_page(self, followed: Followed, shared: Shared) -> None:
        key = (followed.view, "websocket")
        data = shared.encoded.get(key)
        if data is None:
            said = messages_of(shared.page, followed.view, followed.place.cursor)
            parts = (
                (b'{"op":"tombstone",', said.tombstone),
                (b'{"op":"record",', said.record),
                (b'{"op":"caught_up",', said.caught_up),
            )
            data = b"".join(text_frame(start + rest) for start, rest in parts if rest)
            shared.encoded[key] = data
        assert isinstance(data, bytes)
        if data:
            self._send(data)

    def send_gone(self, followed: Followed, head_seq: int) -> None:
        name = followed.place.name
        if self._subscriptions.get(name) is followed:
            del self._subscriptions[name]
        told = deleted_message(name, 0, TOPICS)
        self._send(text_frame(b'{"op":"topic_deleted",' + told))

    def send_paced(self, followed: Followed, ms_max: int) -> None:
        told = paced_message(followed.place.name, ms_max, TOPICS)
        self._send(text_frame(_ERROR + b'"request_id":null,' + told))

    # Publishing

    def _publish(self, command: Publish, size: int, started_ns: int) -> None:
        api, name = self._api, command.topic
        self._check(WRITE, (name,))
        config = None
        if command.config and command.config != NULL:
            self._check(ADMIN)
            config = TOPICS.read_config(bytes(command.config))
            check_dead_letter(config, self._key)
        if self._publishing >= PUBLISHES_MAX:
            raise Throttled(
                f"{PUBLISHES_MAX} appends of this connection are in progress",
                fix="wait for some to be acknowledged",
            )
        how = Append(
            config=config,
            create=command.create,
            idempotency_key=command.idempotency_key or None,
            expected_head_seq=check_u64("expected_head_seq", command.expected_head_seq),
            disable_backpressure=bool(command.disable_backpressure),
        )
        batch = api.append.batch_of(command)
        if name not in self._common.hub.engine.core.by_name:
            api.append.check_new(name, batch, how)
        check_not_own(name)
        self._publishing += 1
        with_seqs = command.return_seqs is not False
        request_id = Raw(bytes(command.request_id))  # not a view of the whole message

        def done(ticket: Ticket[Appended]) -> None:
            self._publishing -= 1
            if ticket.error is not None:
                self._refuse_error(request_id, ticket.error)
            else:
                ns = self._common.hub.turns.monotonic_ns() - started_ns
                self._acknowledge(request_id, ticket.result(), with_seqs, ns, size)

        self._common.hub.engine.append_batch(name, batch, how).when_done(done)

    def _acknowledge(
        self, request_id: Raw, done: Appended, with_seqs: bool, ns: int, size: int
    ) -> None:
        topic = self._common.hub.engine.core.by_name.get(done.topic)
        durability = str(topic.config.durability) if topic is not None else ""
        fsync_ns = done.sync_ns if durability == FSYNC else 0
        performance = {
            "server_total_ms": round(ns / 1e6, 3),
            "wal_append_ms": round(done.write_ns / 1e6, 3),
            "fsync_ms": round(fsync_ns / 1e6, 3),
        }
        if done.throttle_ns:
            performance["throttle_wait_ms"] = round(done.throttle_ns / 1e6, 3)
        answer = {
            "topic": done.topic,
            "first_seq": done.first_seq,
            "last_seq": done.last_seq,
            "seqs": list(range(done.first_seq, done.last_seq + 1)) if with_seqs else None,
            "head_seq": done.head_seq,
            "count": done.count,
            "created": done.created,
            "deduped": done.deduped,
            "performance": performance,
        }
        self._reply(b"ack", request_id, b"," + encode(answer)[1:])
        if durability and not done.deduped:
            self._api.metrics.appended(durability, "native", done.count, size, ns)

    # Answers

    def _reply(self, op: bytes, request_id: Raw, rest: bytes) -> None:
        said = b'{"op":"%b","request_id":%b%b' % (op, bytes(request_id), rest)
        self._send(text_frame(said))
        if self.closed or self._outlet.room:
            self._replies_unread = 0
            return
        self._replies_unread += 1
        if self._replies_unread > REPLIES_UNREAD_MAX:
            self._close(TOO_SLOW, "too many answers are unread")

    def _refuse(self, request_id: Raw, code: str, message: str, **more: object) -> None:
        told = encode({"code": code, "message": message, **more})[1:]
        self._reply(b"error", request_id, b"," + told)

    def _refuse_error(self, request_id: Raw, error: BaseException) -> None:
        if not isinstance(error, HeadraceError):
            log.error("a WebSocket command failed", exc_info=error)
            error = Internal("the server met an error of its own", fix="see the server's log")
        # There is no header to say it in.
        after = {k: v for k, v in error.detail.items() if k == "retry_after_ms"}
        self._refuse(request_id, error.code, str(error), **after)

    def _send(self, frames: bytes) -> None:
        if self._incoming.open:
            self.write(frames)

    def send_beat(self) -> None:
        self._incoming.ping()
        self._flush()

    # The end

    def fail(self, error: BaseException) -> None:
        if not self.closed:
            self.say_error(error_message(error, TOPICS), BROKEN)

    def say_error(self, told: bytes, code: int) -> None:
        """Send an error of no command, and end."""
        self._send(text_frame(_ERROR + b'"request_id":null,' + told))
        self._close(code, "")

    def _close(self, code: int, reason: str) -> None:
        self._incoming.close(code, reason)
        self._flush()

    def ended(self) -> None:
        self._subscriptions.clear()
        self._api.closed(self, self._key)


def _request_id(message: bytes) -> Raw:
    """The `request_id` of something that is no command, if it has one."""
    try:
        return _UNKNOWN.decode(message).request_id
    except (msgspec.MsgspecError, RecursionError):
        return NULL
