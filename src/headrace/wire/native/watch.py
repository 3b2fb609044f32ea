"""`POST /v0/watch` and `GET /v0/watch/{wid}`: sessions, and the streams on them.

Only this file decides who may watch what.  Refusals of the first, in this order: the body, no or
too many topics, names outside the key's prefixes, unknown topics, too many sessions.  Of the
second: `Accept`, an unknown wid, another key than the session's, too many streams.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from headrace.api.watch import TopicStart, WatchBody, WatchedTopic
from headrace.core.errors import (
    Forbidden,
    HeadraceError,
    InvalidRequest,
    TopicNotFound,
    Unauthorized,
)
from headrace.core.limits import heartbeat_ms_max
from headrace.core.settings import Settings
from headrace.engine.live.hub import LiveHub
from headrace.engine.live.places import Place, Sweep
from headrace.engine.topics.config import EPHEMERAL
from headrace.wire.bodies import decode
from headrace.wire.event_stream import begin_events, check_accepts_events
from headrace.wire.exchange import Exchange, Key
from headrace.wire.native.answers import Timing, answer_object, encode
from headrace.wire.native.live_json import View
from headrace.wire.native.request_checks import check_u64
from headrace.wire.native.vocabulary import BOXES, TOPICS, Vocabulary
from headrace.wire.native.watch_ids import Positions, decode_id
from headrace.wire.native.watch_session import (
    FOLLOWED_TOPICS_MAX,
    Session,
    Sessions,
    Watch,
    WatchPosition,
)
from headrace.wire.native.watch_stream import WatchStream
from headrace.wire.open_streams import OpenStreams
from headrace.wire.queries import flag, query_of

_DECODER: Final = msgspec.json.Decoder(WatchBody)
_FROM_THE_FIRST: Final = TopicStart()
WATCH_BYTES_DEFAULT: Final = 262_144


class Views:
    """Makes equal views one object, so that what is encoded for one stream serves all."""

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
        """Return the view that a body asks for."""
        settings, node = self._settings, body.node
        bytes_max = check_u64("max_batch_bytes", body.max_batch_bytes)
        if bytes_max is None:
            bytes_max = bytes_default
        bytes_max = min(bytes_max or settings.read_bytes_default, settings.read_bytes_max)
        options = self._hub.page_options(
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
        view = self._views.get((options, vocabulary, *shown))
        if view is None:
            view = self._views[options, vocabulary, *shown] = View(options, vocabulary, *shown)
        return view


class WatchApi:
    """Watches of one engine."""

    def __init__(
        self,
        open_streams: OpenStreams,
        settings: Settings,
        views: Views,
        heartbeat_ms_min: int,
    ) -> None:
        self.hub = hub = open_streams.hub
        self.open_streams = open_streams
        self.sessions = Sessions(settings, hub.engine.random, hub.journal)
        self._settings = settings
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

        # Routers first deliver what they owe to its topics, so that `tail` leaves that out.
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
        given = positions_of(body)
        lenient = flag(query_of(exchange), "lenient", False)
        positions: dict[str, WatchPosition] = {}
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
                    positions[each], shown[each] = start_in(self.hub, each, start, view, given)
        named = frozenset(name for name in starts if name in positions)
        place = None
        truncated = len(positions) > FOLLOWED_TOPICS_MAX
        if truncated or (given is not None and given.place is not None and prefixes):
            positions = {name: positions[name] for name in named}
            first = sorted(shown)[:FOLLOWED_TOPICS_MAX]
            shown = {name: shown[name] for name in {*named, *first}}
            patterns = {name: starts[name] for name in (f"{prefix}*" for prefix in prefixes)}
            place = place_of(self.hub, patterns, given)
        watch = Watch(
            view,
            self._heartbeat(body),
            positions.values(),
            tuple(prefixes),
            exchange.key,
            named,
            place,
        )
        session = self.sessions.create(watch, self.hub.turns.now_ms)
        answer = {
            "wid": session.wid,
            "stream_url": f"/v0/watch/{session.wid}",
            "session_ttl_ms": self._settings.watch_session_ttl_ms,
            vocabulary.plural: dict(sorted(shown.items())),
        }
        if truncated:
            answer["truncated"] = True
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
        """Return the live topics that a pattern matches, at most one more than are allowed."""
        names: list[str] = []
        for name in self.names(prefix):
            if self.hub.find(name) is not None:
                names.append(name)
            if len(names) > FOLLOWED_TOPICS_MAX:
                break
        return names

    def names(self, prefix: str) -> Iterator[str]:
        """Return the names of topics with this prefix, in order."""
        return self.hub.engine.topic_names(prefix)

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
        if session.streams:
            self.sessions.bytes.check(session.bytes)  # it will be copied
        outlet = begin_events(exchange, self.open_streams.limits, session.key)
        if outlet is None:
            return
        session = self.sessions.for_stream(session)
        last_id = exchange.headers.get(b"last-event-id")
        if last_id:
            given = decode_id(last_id.decode("latin-1").strip())
            if given is not None:
                session.rewind(given)
        stream = WatchStream(self, session, outlet)
        self.sessions.opened(session, stream)
        try:
            stream.open()
        except BaseException:
            stream.broken()
            raise

    def closed(self, session: Session, stream: WatchStream) -> None:
        """Forget a stream that has ended."""
        self.sessions.closed(session, stream, self.hub.turns.now_ms)

    def forget(self, session: Session) -> None:
        """Forget a session that has nothing left to follow."""
        self.sessions.forget(session)


def start_in(
    hub: LiveHub, name: str, start: TopicStart, view: View, given: Positions | None
) -> tuple[WatchPosition, WatchedTopic]:
    """Return where a reader begins in a topic, and how the answer shows it."""
    if hub.find(name) is None:
        raise TopicNotFound.named(name)
    info = hub.engine.topic(name)
    if view.options.strong and info.config.durability == EPHEMERAL:
        raise InvalidRequest(
            f"{name!r} is ephemeral: nothing of it is ever on disk",
            fix="ask for eventual consistency, or give it another durability",
            detail={"topic": name},
        )
    epoch = check_u64("epoch", start.epoch)
    cursor = check_u64("from_seq", start.from_seq) or 0
    position = WatchPosition(name, info.epoch if epoch is None else epoch, cursor)
    if start.tail:
        position.move(info.epoch, info.head_seq)
    said = None if given is None else given.of(name, info.epoch)
    if said is not None:
        position.move(*said)
    # A seq beyond the last possible one is shown as it was sent.
    from_seq = (start.from_seq or 0) if position.cursor == cursor else position.cursor
    return position, WatchedTopic(from_seq, info.head_seq, info.earliest_seq, info.epoch)


def place_of(
    hub: LiveHub, patterns: Mapping[str, TopicStart | None], given: Positions | None
) -> Place:
    """Return where a reader begins in the topics of patterns, which may be very many."""
    prefixes = tuple(pattern.removesuffix("*") for pattern in patterns)
    if given is not None and given.place is not None:
        if all(sweep.prefix.startswith(prefixes) for sweep in given.place.sweeps):
            return given.place
        raise InvalidRequest("`cursor` is of other patterns", fix="name the same patterns again")
    sweeps = []
    for prefix, start in zip(prefixes, patterns.values(), strict=True):
        if start is None or not start.tail:
            from_seq = None if start is None else check_u64("from_seq", start.from_seq)
            sweeps.append(Sweep(prefix, from_seq=from_seq or 0))
    exact: dict[int, int] = {}
    if given is not None:
        exact.update(given.by_epoch)
        for name, cursor in given.by_name.items():
            topic = hub.find(name)
            if topic is not None:
                exact[given.epochs.get(name, topic.epoch)] = cursor
    journal = hub.journal
    return Place(journal.run, journal.number, hub.now_ms(), tuple(sweeps), tuple(exact.items()))


def positions_of(body: WatchBody) -> Positions | None:
    """Return where the reader says it was: the `cursor` of its body."""
    if not body.cursor:
        return None
    given = decode_id(body.cursor)
    if given is None:
        raise InvalidRequest("`cursor` is not an id of a watch", fix="send the id of an event")
    return given


def _too_many(count: int, most: int, vocabulary: Vocabulary) -> InvalidRequest:
    return InvalidRequest(
        f"the watch names {count} {vocabulary.plural}", fix=f"name at most {most}, or use patterns"
    )
