"""Watch sessions: what a watch follows, where it is, and how long it is kept.

Only this file moves a session's cursors.  They are the server's: a stream reads on from them, a
reconnecting client may take them back with the last id it saw, never forward; if that id still has
a topic that is gone by now, the client is told of it again.  Streams that are open at the same time
have cursors of their own; those of the newest count.  A session without a stream is kept for
`watch_session_ttl_ms`; then its wid is unknown.  Sessions are in memory only.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.core.clock import Random
from headrace.core.errors import NotFound, Throttled
from headrace.core.settings import Settings
from headrace.engine.topic import Topic
from headrace.wire.exchange import Key
from headrace.wire.live_json import View
from headrace.wire.live_stream import Place
from headrace.wire.watch_ids import (
    NAMED_TOPICS_MAX,
    Positions,
    join_named,
    join_opaque,
    named_piece,
    opaque_piece,
)

if TYPE_CHECKING:
    from headrace.wire.native_watch_stream import WatchStream

# Topics that one session follows, those of its patterns included.
FOLLOWED_TOPICS_MAX: Final = 1_024
# Topics of one session that are gone, and that a client may have to be told of again.
ENDED_TOPICS_MAX: Final = 256
_WID_BYTES: Final = 16


class Watch(NamedTuple):
    """What a session is made of."""

    view: View
    heartbeat_ms: int
    places: Iterable[Place]
    prefixes: tuple[str, ...]  # topics that are created with such a name are followed too
    key: Key | None


class Session:
    """One watch."""

    __slots__ = (
        "_ended",
        "_epochs",
        "_late",
        "_opaque",
        "heartbeat_ms",
        "idle_since_ms",
        "key",
        "places",
        "prefixes",
        "streams",
        "view",
        "wid",
    )

    def __init__(self, wid: str, watch: Watch) -> None:
        self.wid = wid
        self.view = watch.view
        self.heartbeat_ms = watch.heartbeat_ms
        self.key = watch.key
        self.prefixes = watch.prefixes
        self.places: dict[str, Place] = {}  # by name, in the order of the names
        for place in sorted(watch.places, key=lambda place: place.name):
            self.places[place.name] = place
        self.streams: list[WatchStream] = []
        self.idle_since_ms = 0
        self._ended: dict[str, Place] = {}  # where it was in topics that are gone, oldest first
        self._late: set[str] = set()  # topics of patterns, followed since after the session began
        self._epochs: bytes | None = None  # the part of an id that seldom changes
        self._opaque = False

    @property
    def id(self) -> bytes:
        """Where the session is, as an id; only places that moved are encoded anew."""
        places = self.places.values()
        opaque = len(places) > NAMED_TOPICS_MAX
        if opaque is not self._opaque:
            self._opaque = opaque
            for place in places:
                place.coded = None
        coded = [place.coded or self._code(place) for place in places]
        if opaque:
            return join_opaque(coded)
        if self._epochs is None:
            self._epochs = b",".join(named_piece(place.name, place.epoch) for place in places)
        return join_named(self._epochs, coded)

    def _code(self, place: Place) -> bytes:
        if self._opaque:
            place.coded = opaque_piece(place.epoch, place.cursor)
        else:
            place.coded = named_piece(place.name, place.cursor)
        return place.coded

    def move(self, place: Place, epoch: int, cursor: int) -> None:
        """Be somewhere else in a topic."""
        if epoch != place.epoch:
            self._epochs = None
        place.move(epoch, cursor)

    def add(self, topic: Topic) -> Place:
        """Follow one more topic, from its first record."""
        place = Place(topic.name, topic.epoch, 0)
        self._late.add(topic.name)
        self.places[topic.name] = place
        self.places = dict(sorted(self.places.items()))
        self._epochs = None
        return place

    def fork(self) -> Session:
        """The same session with cursors of its own."""
        watch = Watch(self.view, self.heartbeat_ms, (), self.prefixes, self.key)
        session = Session(self.wid, watch)
        session.places = {name: place.copy() for name, place in self.places.items()}
        session._late = set(self._late)
        session._ended = {name: place.copy() for name, place in self._ended.items()}
        return session

    def remove(self, place: Place) -> None:
        """A topic is gone, and the client is being told."""
        if self.places.get(place.name) is place:
            del self.places[place.name]
            self._epochs = None
            self._late.discard(place.name)
            self._ended[place.name] = place
            if len(self._ended) > ENDED_TOPICS_MAX:
                del self._ended[next(iter(self._ended))]

    def rewind(self, given: Positions) -> None:
        """Go back to where a client says it was, in each topic that it is behind in."""
        self._restore(given)
        for place in self.places.values():
            said = given.of(place.name, place.epoch)
            if said is None:
                if given.is_whole and place.name in self._late:
                    # The client was here before the topic was, and has seen nothing of it.
                    self.move(place, place.epoch, 0)
                continue
            epoch, cursor = said
            if epoch < place.epoch:
                # It has not heard that the topic was made anew: reading tells it again.
                self.move(place, epoch, cursor)
            elif epoch == place.epoch:
                self.move(place, epoch, min(place.cursor, cursor))

    def _restore(self, given: Positions) -> None:
        """Follow topics again whose end the client cannot have seen: its id still has them."""
        ended, self._ended = self._ended, {}
        for name, place in ended.items():
            room = len(self.places) < FOLLOWED_TOPICS_MAX
            if room and name not in self.places and given.of(name, place.epoch) is not None:
                self.places[name] = place
                self._epochs = None
        self.places = dict(sorted(self.places.items()))


class Sessions:
    """All watch sessions, by wid."""

    def __init__(self, settings: Settings, random: Random) -> None:
        self._max = settings.max_watch_sessions
        self._ttl_ms = settings.watch_session_ttl_ms
        self._random = random
        self._by_wid: dict[str, Session] = {}
        # Those without a stream, longest first; a plain dict finds its first ever more slowly.
        self._idle: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_wid)

    def reclaim(self, now_ms: int) -> None:
        """Forget sessions that nobody has used for too long."""
        idle = self._idle
        while idle:
            session = idle[next(iter(idle))]
            if now_ms - session.idle_since_ms <= self._ttl_ms:
                break
            self.forget(session)

    def check_room(self, now_ms: int) -> None:
        """Raise if there may be no more sessions."""
        self.reclaim(now_ms)
        if 0 < self._max <= len(self._by_wid):
            raise Throttled(
                f"{self._max} watch sessions exist, the most allowed",
                fix="retry when some have ended, or raise HEADRACE_MAX_WATCH_SESSIONS",
                detail={"limit": "max_watch_sessions", "max": self._max},
            )

    def create(self, watch: Watch, now_ms: int) -> Session:
        """A new session; its wid is a secret that nobody can guess."""
        self.check_room(now_ms)
        secret = urlsafe_b64encode(self._random.bytes(_WID_BYTES)).rstrip(b"=").decode()
        session = Session(f"wid_{secret}", watch)
        assert session.wid not in self._by_wid
        self._by_wid[session.wid] = session
        self._rest(session, now_ms)
        return session

    def find(self, wid: str, now_ms: int) -> Session:
        """The session of a wid, or `NotFound`."""
        self.reclaim(now_ms)
        session = self._by_wid.get(wid)
        if session is None:
            raise NotFound("no watch session of this wid", fix="create one with POST /v0/watch")
        return session

    def for_stream(self, session: Session) -> Session:
        """The session for one more stream; where others are open, with cursors of its own.

        A connection may be dead for long before the server knows.  Its stream goes on by itself,
        and must not take what the client, which is back already, waits for.
        """
        if session.streams:
            session = self._by_wid[session.wid] = session.fork()
        return session

    def opened(self, session: Session, stream: WatchStream) -> None:
        """A session has one more stream."""
        session.streams.append(stream)
        self._idle.pop(session.wid, None)

    def closed(self, session: Session, stream: WatchStream, now_ms: int) -> None:
        """A session has one stream less."""
        session.streams.remove(stream)
        if not session.streams and self._by_wid.get(session.wid) is session:
            self._rest(session, now_ms)

    def forget(self, session: Session) -> None:
        """The wid is unknown from here on, unless a newer stream has its session."""
        if self._by_wid.get(session.wid) is session:
            del self._by_wid[session.wid]
            self._idle.pop(session.wid, None)

    def _rest(self, session: Session, now_ms: int) -> None:
        session.idle_since_ms = now_ms
        self._idle[session.wid] = session
