"""`GET /v0/ws`: following and publishing over one WebSocket.

Only this file runs its commands.  Each is one JSON text; each answer has the `request_id` of its
command.  What a key may do is checked command by command.  What is published goes its way in
`websocket_publish.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Raw

from headrace.api.base import NULL
from headrace.api.watch import TopicStart, WatchedTopic
from headrace.api.websocket import Command, Ping, Publish, Subscribe, Unknown, Unsubscribe
from headrace.core.bounds import ByteBound
from headrace.core.errors import (
    BatchTooLarge,
    Forbidden,
    InvalidRequest,
    OutOfResources,
)
from headrace.core.settings import Settings
from headrace.engine.live.follower import Position, Subscription
from headrace.engine.live.patterns import PatternPosition, PatternReader
from headrace.wire.bodies import decode_json
from headrace.wire.exchange import Exchange, Key, Outlet
from headrace.wire.live_stream import StreamClient
from headrace.wire.native.answers import encode
from headrace.wire.native.append import AppendApi
from headrace.wire.native.append_records import check_count
from headrace.wire.native.live_json import View
from headrace.wire.native.vocabulary import TOPICS
from headrace.wire.native.watch import Views, place_of, positions_of, start_in
from headrace.wire.native.websocket_bytes import HeldBytes
from headrace.wire.native.websocket_messages import WebSocketMessages
from headrace.wire.native.websocket_publish import WebSocketPublishes, refusal, refusal_of
from headrace.wire.open_streams import OpenStreams
from headrace.wire.routes import READ
from headrace.wire.websocket_frames import BROKEN, handshake
from headrace.wire.websocket_stream import WebSocketStream

LIMIT_DEFAULT: Final = 1_000
BYTES_DEFAULT: Final = 1 << 20
# Topics that one connection follows.
SUBSCRIPTIONS_MAX: Final = 4_096

_DECODER: Final = msgspec.json.Decoder(Command)
_UNKNOWN: Final = msgspec.json.Decoder(Unknown)
_SEE: Final = "docs/reference/http.md#websocket has the commands and their fields"


class WebSocketApi:
    """WebSockets of one engine."""

    def __init__(
        self, open_streams: OpenStreams, settings: Settings, views: Views, held: ByteBound
    ) -> None:
        self.open_streams = open_streams
        self.settings = settings
        self.views = views
        self.held = held  # by watch sessions and by what WebSockets subscribe to
        engine, metrics = open_streams.hub.engine, open_streams.metrics
        append = AppendApi(engine, settings, metrics, TOPICS)
        self.publishes = WebSocketPublishes(engine, settings, metrics, append)

    def open(self, exchange: Exchange) -> None:
        """`GET /v0/ws`."""
        headers = handshake(exchange)
        key = exchange.key
        outlet = self.open_streams.limits.admit(key, lambda: exchange.tunnel(headers))
        WebSocket(self, outlet, key).begin()


class WebSocket(WebSocketStream[View]):
    """One connection."""

    __slots__ = ("_api", "_held", "_patterns", "_subscribed", "_waiting", "publishing")

    def __init__(self, api: WebSocketApi, outlet: Outlet, key: Key | None) -> None:
        super().__init__(
            api.open_streams,
            WebSocketMessages(),
            StreamClient(outlet, key, api.settings.heartbeat_ms_default),
            message_bytes_max=api.settings.websocket_message_bytes_max,
        )
        self._api = api
        self._subscribed: dict[str, Subscription[View]] = {}
        self._waiting: list[dict[str, TopicStart | None]] = []  # for what routers owe their topics
        self._patterns: dict[str, tuple[PatternReader[View], View]] = {}
        self.publishing = 0  # appends that are not acknowledged yet
        self._held = HeldBytes(api.held)

    # Commands

    def binary_message(self, message: bytes) -> None:
        self._refuse(NULL, "unsupported_message", "send JSON as text, not as binary")

    def text_message(self, message: bytes) -> None:
        started_ns = self._hub.turns.monotonic_ns()
        try:
            check_count(message, self._api.settings.records_per_append_max)
            command = decode_json(message, _DECODER, fix=_SEE)
        except BatchTooLarge as error:
            self._refuse_error(_request_id(message), error)
            return
        except InvalidRequest as error:
            self._refuse(_request_id(message), "invalid_json", str(error))
            return
        except OutOfResources as error:
            self.fail(error)
            return
        try:
            self._run(command, len(message), started_ns)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client hears of it
            self._refuse_error(command.request_id, error)

    def _run(self, command: Command, size: int, started_ns: int) -> None:
        if isinstance(command, Publish):
            self._api.publishes.publish(self, command, size, started_ns)
        elif isinstance(command, Subscribe):
            self._subscribe(command)
        elif isinstance(command, Unsubscribe):
            self._unsubscribe(command)
        else:
            assert isinstance(command, Ping)
            self._reply(b"pong", command.request_id, b"}")

    def check(self, scope: str, names: Iterable[str] = ()) -> None:
        """Refuse what the key of the connection may not do."""
        key = self.key
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
        api, hub = self._api, self._hub
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
        self.check(READ, (name.removesuffix("*") for name in starts))
        waiting = sum(map(len, self._waiting)) + len(self._patterns)
        if len(self._subscribed.keys() | starts.keys()) + waiting > SUBSCRIPTIONS_MAX:
            raise InvalidRequest(
                "too many subscriptions", fix=f"follow at most {SUBSCRIPTIONS_MAX} topics"
            )
        # Routers first deliver what they owe to these topics, so that `tail` leaves that out.
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
        api, hub = self._api, self._hub
        view = api.views.of(
            TOPICS, command, limit_default=LIMIT_DEFAULT, bytes_default=BYTES_DEFAULT
        )
        given = positions_of(command)
        self._held.check([name for name in starts if name not in self._subscribed], view)
        patterns = {n: s for n, s in starts.items() if n.endswith("*") and hub.find(n) is None}
        self._refuse_overlap(patterns)
        places = {name: place_of(hub, {name: start}, given) for name, start in patterns.items()}
        found: list[tuple[Position, WatchedTopic]] = []
        for name, start in starts.items():
            if name in patterns:
                continue
            if command.lenient and hub.find(name) is None:
                continue
            found.append(start_in(hub, name, start or TopicStart(), view, given))
        shown = {position.name: topic for position, topic in found}
        matched = b',"patterns":' + encode(list(patterns)) if patterns else b""
        said = b',"topics":' + encode(shown) + matched + b"}"
        self._reply(b"subscribed", command.request_id, said)
        for position, _ in found:
            name = position.name
            before = self._forget(name)
            if before is not None:
                self.leave(before)
            topic = hub.find(name)
            self._subscribed[name] = self.follow(
                position, view.options, view, topic, view.of_messages
            )
            self._held.add(name, view)
        for name, place in places.items():
            self._end_pattern(name)
            prefix = name.removesuffix("*")
            reader = PatternReader(
                hub,
                self,
                [prefix],
                view.options,
                view,
                self._subscribed.__contains__,
                self._held.room,
            )
            self._patterns[name] = (reader, view)
            self._held.add(name, view)
            reader.begin(place)

    def _refuse_overlap(self, patterns: Iterable[str]) -> None:
        """Refuse patterns that match what others do: each record comes once."""
        prefixes = [name.removesuffix("*") for name in {*self._patterns, *patterns}]
        for one in prefixes:
            if any(one != other and other.startswith(one) for other in prefixes):
                raise InvalidRequest(
                    f"`{one}*` matches what another pattern of this connection does",
                    fix="unsubscribe the other one first, or use two connections",
                )

    def _end_pattern(self, name: str) -> bool:
        reader, view = self._patterns.pop(name, (None, None))
        if reader is None or view is None:
            return False
        reader.close()
        self._held.remove(name, view)
        return True

    def _forget(self, name: str) -> Subscription[View] | None:
        """Take a topic out of what is subscribed to; return its subscription, if there was one."""
        subscription = self._subscribed.pop(name, None)
        if subscription is None:
            return None
        self._held.remove(name, subscription.view)
        return subscription

    def _unsubscribe(self, command: Unsubscribe) -> None:
        names = [*(command.topics or ())]
        if command.topic is not None and command.topic not in names:
            names.insert(0, command.topic)
        left = []
        for name in names:
            asked = [starts.pop(name, False) for starts in self._waiting]
            subscription = self._forget(name)
            if subscription is not None:
                self.leave(subscription)
            known = self._end_pattern(name) or subscription is not None
            if known or any(start is not False for start in asked):
                left.append(name)
        self._reply(b"unsubscribed", command.request_id, b',"topics":' + encode(left) + b"}")

    def told_gone(self, subscription: Subscription[View]) -> None:
        name = subscription.position.name
        if isinstance(subscription.position, PatternPosition):
            assert subscription.pattern is not None
            subscription.pattern.ended(subscription, failed=False)
        if self._subscribed.get(name) is subscription:
            self._forget(name)

    def told_failed(self, subscription: Subscription[View]) -> None:
        if subscription.pattern is not None:
            subscription.pattern.ended(subscription, failed=True)
        else:
            self.told_gone(subscription)

    # Answers

    def _reply(self, op: bytes, request_id: Raw, rest: bytes) -> None:
        self.reply(b'{"op":"%b","request_id":%b%b' % (op, bytes(request_id), rest))

    def _refuse(self, request_id: Raw, code: str, message: str) -> None:
        self.reply(refusal(request_id, code, message))

    def _refuse_error(self, request_id: Raw, error: BaseException) -> None:
        text, known = refusal_of(request_id, error)
        self.reply(text)
        if isinstance(known, OutOfResources):
            self.out_of_memory()

    def out_of_memory(self) -> None:
        """Close the connection: what it was sent may not be all that it was owed."""
        self.close(BROKEN, "out of memory")

    def ended(self) -> None:
        super().ended()
        for name in list(self._patterns):
            self._end_pattern(name)
        self._subscribed.clear()
        self._held.clear()


def _request_id(message: bytes) -> Raw:
    """Return the `request_id` of a message that is no command; null if it has none."""
    try:
        return _UNKNOWN.decode(message).request_id
    except (msgspec.MsgspecError, RecursionError):
        return NULL
