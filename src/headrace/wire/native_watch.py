"""`POST /v0/watch` and `GET /v0/watch/{wid}`: sessions, and the streams on them.

Only this file decides who may watch what.  Refusals of the first, in this order: the body, no or
too many topics, names outside the key's prefixes, unknown topics, too many sessions.  Of the
second: `Accept`, an unknown wid, another key than the session's, too many streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from headrace.core.errors import (
    Forbidden,
    HeadraceError,
    InvalidRequest,
    NotAcceptable,
    TopicNotFound,
    Unauthorized,
)
from headrace.core.limits import heartbeat_ms_max
from headrace.core.settings import Settings
from headrace.engine.live import LiveHub
from headrace.engine.topic_config import EPHEMERAL
from headrace.wire.exchange import EVENT_STREAM, Exchange, Headers, Key
from headrace.wire.live_json import View
from headrace.wire.live_stream import Common, Place
from headrace.wire.native import (
    BOXES,
    TOPICS,
    Timing,
    Vocabulary,
    answer_object,
    check_u64,
    decode,
    encode,
    flag,
    query_of,
)
from headrace.wire.native_live_types import TopicStart, WatchBody, WatchedTopic
from headrace.wire.native_watch_session import (
    FOLLOWED_TOPICS_MAX,
    Session,
    Sessions,
    Watch,
)
from headrace.wire.native_watch_stream import WatchStream
from headrace.wire.slots import StreamSlots
from headrace.wire.watch_ids import Positions, decode_id

_DECODER: Final = msgspec.json.Decoder(WatchBody)
_FROM_THE_FIRST: Final = TopicStart()
WATCH_BYTES_DEFAULT: Final = 262_144
STREAM_HEADERS: Final[Headers] = (
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)


class Views:
    """Equal views are one object, so that what is encoded for one stream serves all."""

    def __init__(self, hub: LiveHub, settings: Settings) -> None:
        self._hub = hub
        self._settings = settings
        self._views: WeakValueDictionary[tuple[object, ...], View] = WeakValueDictionary()

    def of(
        self,
        vocabulary: Vocabulary,
        body: WatchBody,
        *,
        limit_default: int,
        bytes_default: int,
    ) -> View:
        """The view that a body asks for."""
        settings, node = self._settings, body.node
        bytes_max = check_u64("max_batch_bytes", body.max_batch_bytes)
        if bytes_max is None:
            bytes_max = bytes_default
        bytes_max = min(bytes_max or settings.read_bytes_default, settings.read_bytes_max)
        wishes = self._hub.wishes(
            min(body.limit or limit_default, settings.read_limit_max),
            # Not more than may be pending, or a slow reader would hold more than that.
            min(bytes_max, settings.stream_pending_bytes),
            (node,) if isinstance(node, str) else tuple(sorted(set(node or ()))),
            body.consistency == "strong",
        )
        shown = (
            body.include_tags is True,
            body.include_meta is not False,
            body.include_data is not False,
        )
        view = self._views.get((wishes, vocabulary, *shown))
        if view is None:
            view = self._views[wishes, vocabulary, *shown] = View(wishes, vocabulary, *shown)
        return view


class WatchApi:
    """Watches of one engine."""

    def __init__(
        self,
        common: Common,
        settings: Settings,
        slots: StreamSlots,
        views: Views,
        heartbeat_ms_min: int,
    ) -> None:
        self.hub = hub = common.hub
        self.common = common
        self.sessions = Sessions(settings, hub.engine.core.random)
        self.streams: dict[WatchStream, None] = {}
        self._settings = settings
        self._slots = slots
        self._views = views
        self._heartbeat_ms_min = heartbeat_ms_min

    # Sessions

    def create(self, exchange: Exchange) -> None:
        """`POST /v0/watch`."""
        body = decode(exchange, _DECODER)
        boxes = body.topics is None and body.boxes is not None
        vocabulary = BOXES if boxes else TOPICS

        def create(_: object = None) -> None:
            if exchange.answered:
                return
            try:
                self._create(exchange, body, vocabulary)
            except HeadraceError as error:
                exchange.answer(*vocabulary.failure(error))

        # Its topics have what routers owe them, so that `tail` leaves out all that was before.
        names = (body.boxes if boxes else body.topics) or ()
        drained = self.hub.engine.routers.drain_all(islice(names, FOLLOWED_TOPICS_MAX))
        if drained is None:
            create()
        else:
            drained.when_done(create)

    def _create(self, exchange: Exchange, body: WatchBody, vocabulary: Vocabulary) -> None:
        starts = body.boxes if vocabulary is BOXES else body.topics
        self._check_starts(starts, exchange.key, vocabulary)
        assert starts is not None
        view = self._views.of(
            vocabulary,
            body,
            limit_default=self._settings.read_limit_default,
            bytes_default=WATCH_BYTES_DEFAULT,
        )
        told = positions_of(body)
        lenient = flag(query_of(exchange), "lenient", False)
        places: dict[str, Place] = {}
        prefixes: list[str] = []
        shown: dict[str, WatchedTopic] = {}
        for name, start in starts.items():
            start = start or _FROM_THE_FIRST
            names: list[str] = [name]
            if name.endswith("*") and self.hub.find(name) is None:
                prefixes.append(name[:-1])
                names = self._matching(name[:-1])
            elif lenient and self.hub.find(name) is None:
                continue
            for each in names:
                if each not in starts or each == name:  # a name beats a pattern
                    places[each], shown[each] = place_in(self.hub, each, start, view, told)
        if len(places) > FOLLOWED_TOPICS_MAX:
            raise _too_many(len(places), FOLLOWED_TOPICS_MAX, vocabulary)
        session = self.sessions.create(
            Watch(view, self._heartbeat(body), places.values(), tuple(prefixes), exchange.key),
            self.hub.turns.now_ms,
        )
        answer = {
            "wid": session.wid,
            "stream_url": f"/v0/watch/{session.wid}",
            "session_ttl_ms": self._settings.watch_session_ttl_ms,
            vocabulary.plural: dict(sorted(shown.items())),
        }
        timing = Timing(exchange, self.hub.engine.runtime.clock)
        answer_object(exchange, 200, encode(answer), timing)

    def _check_starts(
        self,
        starts: dict[str, TopicStart | None] | None,
        key: Key | None,
        vocabulary: Vocabulary,
    ) -> None:
        plural, most = vocabulary.plural, self._settings.topics_per_watch_max
        if not starts:
            raise InvalidRequest(
                f"`{plural}` is empty or missing", fix=f"name at least one {vocabulary.noun}"
            )
        if len(starts) > most:
            raise _too_many(len(starts), most, vocabulary)
        if key is None:
            return
        for name in starts:
            # Every name that a pattern matches begins with what is before the star.
            if not key.allows_name(name.removesuffix("*")):
                raise Forbidden(
                    f"this key may not read {name!r}",
                    fix="name only what the key's prefixes allow",
                    detail={"topic": name},
                )

    def _matching(self, prefix: str) -> list[str]:
        """Live topics that a pattern matches, at most one more than are allowed."""
        names: list[str] = []
        for name in self.names(prefix):
            if self.hub.find(name) is not None:
                names.append(name)
            if len(names) > FOLLOWED_TOPICS_MAX:
                break
        return names

    def names(self, prefix: str) -> Iterator[str]:
        """The names of topics with this prefix, in order."""
        return self.hub.engine.core.names.after("", prefix)

    def _heartbeat(self, body: WatchBody) -> int:
        asked = body.heartbeat_ms
        if asked is None:
            asked = self._settings.heartbeat_ms_default
        return min(max(asked, self._heartbeat_ms_min), heartbeat_ms_max)

    # Streams

    def open(self, exchange: Exchange) -> None:
        """`GET /v0/watch/{wid}`."""
        check_accepts_events(exchange)
        session = self.sessions.find(exchange.params[0], self.hub.turns.now_ms)
        if session.key is not None and exchange.key != session.key:
            raise Unauthorized(
                "this session belongs to another key",
                fix="send the key that created it, as a header or as `?token=`",
            )
        if exchange.method == "HEAD":
            exchange.answer(200, b"", EVENT_STREAM, STREAM_HEADERS)
            return
        self._slots.take(session.key)
        try:
            outlet = exchange.stream(EVENT_STREAM, STREAM_HEADERS)
        except BaseException:
            self._slots.release(session.key)
            raise
        session = self.sessions.for_stream(session)
        last_id = exchange.headers.get(b"last-event-id")
        if last_id:
            given = decode_id(last_id.decode("latin-1").strip())
            if given is not None:
                session.rewind(given)
        stream = WatchStream(self, session, outlet)
        self.streams[stream] = None
        self.sessions.opened(session, stream)
        try:
            stream.open()
        except BaseException:
            stream.broken()
            raise

    def closed(self, stream: WatchStream, session: Session) -> None:
        """A stream has ended."""
        del self.streams[stream]
        self._slots.release(session.key)
        self.sessions.closed(session, stream, self.hub.turns.now_ms)

    def forget(self, session: Session) -> None:
        """A session has nothing left to follow."""
        self.sessions.forget(session)


def place_in(
    hub: LiveHub, name: str, start: TopicStart, view: View, told: Positions | None
) -> tuple[Place, WatchedTopic]:
    """Where a reader begins in a topic."""
    if hub.find(name) is None:
        raise TopicNotFound.named(name)
    info = hub.engine.topic(name)
    if view.wishes.strong and info.config.durability == EPHEMERAL:
        raise InvalidRequest(
            f"{name!r} is ephemeral: nothing of it is ever on disk",
            fix="ask for eventual consistency, or give it another durability",
            detail={"topic": name},
        )
    epoch = check_u64("epoch", start.epoch)
    cursor = check_u64("from_seq", start.from_seq) or 0
    place = Place(name, info.epoch if epoch is None else epoch, cursor)
    if start.tail:
        place.move(info.epoch, info.head_seq)
    said = None if told is None else told.of(name, info.epoch)
    if said is not None:
        place.move(*said)
    return place, WatchedTopic(place.cursor, info.head_seq, info.earliest_seq, info.epoch)


def check_accepts_events(exchange: Exchange) -> None:
    """Refuse whoever does not want server-sent events."""
    accept = exchange.headers.get(b"accept", b"")
    if accept and EVENT_STREAM not in accept and b"*/*" not in accept:
        raise NotAcceptable(
            f"Accept is {accept.decode('latin-1')[:80]!r}",
            fix="send `Accept: text/event-stream`",
        )


def positions_of(body: WatchBody) -> Positions | None:
    """Where the reader says it was, by the `cursor` of its body."""
    if not body.cursor:
        return None
    told = decode_id(body.cursor)
    if told is None:
        raise InvalidRequest("`cursor` is not an id of a watch", fix="send the id of an event")
    return told


def _too_many(count: int, most: int, vocabulary: Vocabulary) -> InvalidRequest:
    return InvalidRequest(
        f"the watch names {count} {vocabulary.plural}", fix=f"name at most {most}, or use patterns"
    )
