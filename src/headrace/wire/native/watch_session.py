"""Watch sessions: what a watch follows, where it is, and how long it is kept.

Only this file moves a session's positions.  They are the server's: a stream reads on from them, and
a reconnecting client may take them back with the last id it saw, never forward; if that id still
has a topic that is gone by now, the client is told of it again.  Streams that are open at the same
time have positions of their own; those of the newest count.  A session without a stream is kept for
`watch_session_ttl_ms`; then its wid is unknown.  Sessions are in memory only.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Collection
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.core.bounds import ByteBound
from headrace.core.clock import Random
from headrace.core.errors import NotFound, Throttled
from headrace.core.settings import Settings
from headrace.engine.live.follower import Position
from headrace.engine.live.journal import PublishJournal
from headrace.engine.live.patterns import PatternReader
from headrace.engine.live.places import Place, Sweep
from headrace.engine.topics.topic import Topic
from headrace.wire.exchange import Key
from headrace.wire.native.live_json import View
from headrace.wire.native.watch_ids import (
    NAMED_TOPICS_MAX,
    Positions,
    encode_place,
    join_named,
    join_opaque,
    named_piece,
    opaque_piece,
)

if TYPE_CHECKING:
    from headrace.wire.native.watch_stream import WatchStream

# Topics that one session follows one by one.  If its patterns match more, it follows only those
# that have something new (`engine/live/patterns.py`), and an id is a place in all of them at once.
FOLLOWED_TOPICS_MAX: Final = 1_024
# Topics of one session that are gone, and that a client may have to be told of again.
ENDED_TOPICS_MAX: Final = 256
_WID_BYTES: Final = 16
# What a session takes in memory, and each of its topics and patterns beside its name: measured, and
# rounded up.
SESSION_BYTES: Final = 2_048
TOPIC_BYTES: Final = 512
# What the place of a session in very many topics takes.
PLACE_BYTES: Final = 65_536


class WatchPosition(Position):
    """Where a watch is in one topic, with the part of an id that says so."""

    __slots__ = ("id_part",)

    def __init__(self, name: str, epoch: int, cursor: int) -> None:
        super().__init__(name, epoch, cursor)
        self.id_part: bytes | None = None  # until it moves

    def copy(self) -> WatchPosition:
        return WatchPosition(self.name, self.epoch, self.cursor)

    def move(self, epoch: int, cursor: int) -> None:
        if cursor != self.cursor or epoch != self.epoch:
            self.epoch, self.cursor, self.id_part = epoch, cursor, None


class Watch(NamedTuple):
    """What a session is made of."""

    view: View
    heartbeat_ms: int
    positions: Collection[WatchPosition]
    prefixes: tuple[str, ...]  # topics that are created with such a name are followed too
    key: Key | None
    named: frozenset[str] = frozenset()  # topics that it follows by name
    place: Place | None = None  # in the topics of its prefixes, if they are not in `positions`

    @property
    def bytes(self) -> int:
        """What the session of it will hold."""
        names = (*(position.name for position in self.positions), *self.prefixes)
        wide = 0 if self.place is None else PLACE_BYTES
        return SESSION_BYTES + wide + self.view.bytes + sum(map(topic_bytes, names))


def topic_bytes(name: str) -> int:
    """Return what a topic takes in a session, or in a connection that subscribes to it."""
    return TOPIC_BYTES + len(name)


class Session:
    """One watch."""

    __slots__ = (
        "_bound",
        "_ended",
        "_epochs",
        "_journal",
        "_late",
        "_opaque",
        "bytes",
        "heartbeat_ms",
        "idle_since_ms",
        "key",
        "named",
        "place",
        "positions",
        "prefixes",
        "reader",
        "streams",
        "view",
        "wid",
    )

    def __init__(self, wid: str, watch: Watch, bound: ByteBound, journal: PublishJournal) -> None:
        self.wid = wid
        self._journal = journal
        self.named = watch.named
        self.place = watch.place  # when its last stream ended, if it is wide
        self.reader: PatternReader[View] | None = None  # of its stream, if it is wide
        if self.place is not None:
            journal.hold()
        self._bound = bound
        self.bytes = 0  # what it holds
        self._hold(watch.bytes)
        self.view = watch.view
        self.heartbeat_ms = watch.heartbeat_ms
        self.key = watch.key
        self.prefixes = watch.prefixes
        self.positions: dict[str, WatchPosition] = {}  # by name, in the order of the names
        for position in sorted(watch.positions, key=lambda position: position.name):
            self.positions[position.name] = position
        self.streams: list[WatchStream] = []
        self.idle_since_ms = 0
        # Where it was in topics that are gone, oldest first.
        self._ended: dict[str, WatchPosition] = {}
        self._late: set[str] = set()  # topics of patterns that came after the session began
        self._epochs: bytes | None = None  # the part of an id that seldom changes
        self._opaque = False

    @property
    def lone(self) -> bool:
        """Whether it follows one topic, and never another: its ids say only where it is there."""
        return len(self.positions) == 1 and not self.prefixes and self.place is None

    def _hold(self, size: int) -> None:
        self.bytes += size
        self._bound.add(size)

    def hold(self, size: int) -> bool:
        """Count what the topics that wait for its reader take; return whether there is room."""
        self._hold(size)
        return not self._bound.is_full

    def release(self) -> None:
        """Hold nothing any more: nobody can use the session."""
        self._hold(-self.bytes)
        if self.place is not None:
            self.place = None
            self._journal.drop()

    def widen(self, sweeps: tuple[Sweep, ...]) -> Place:
        """Follow the topics of the patterns together from now on, no longer one by one.

        `sweeps` have those that the session does not know yet.  Topics that it follows stay until
        they are at their heads.
        """
        assert self.place is None
        self._journal.hold()
        self._hold(PLACE_BYTES)
        self.place = Place(self._journal.run, self._journal.number, 0, sweeps)
        return self.place

    def released(self, position: Position) -> None:
        """Know a topic only by its pattern from now on."""
        if self.positions.get(position.name) is position:
            del self.positions[position.name]
            self._hold(-topic_bytes(position.name))

    def rest(self) -> None:
        """Keep where the reader is, which ends."""
        if self.reader is not None:
            self.place = self.reader.place
            self.reader.close()
            self.reader = None

    @property
    def id(self) -> bytes:
        """Return where the session is; only the parts of positions that moved are made again."""
        positions = self.positions.values()
        if self.place is not None:
            place = self.place if self.reader is None else self.reader.place
            return encode_place(place, positions)
        if (len(positions) > NAMED_TOPICS_MAX) is not self._opaque:
            self._opaque = not self._opaque
            for position in positions:
                position.id_part = None
        parts = [position.id_part or self._make_part(position) for position in positions]
        if self._opaque:
            return join_opaque(parts)
        if self._epochs is None:
            self._epochs = b",".join(named_piece(p.name, p.epoch) for p in positions)
        return join_named(self._epochs, parts)

    def _make_part(self, position: WatchPosition) -> bytes:
        if self._opaque:
            position.id_part = opaque_piece(position.epoch, position.cursor)
        else:
            position.id_part = named_piece(position.name, position.cursor)
        return position.id_part

    def move(self, position: Position, epoch: int, cursor: int) -> None:
        """Move a position of this session."""
        if epoch != position.epoch:
            self._epochs = None
        position.move(epoch, cursor)

    def add(self, topic: Topic) -> WatchPosition:
        """Follow one more topic, from its first record."""
        position = WatchPosition(topic.name, topic.epoch, 0)
        self._hold(topic_bytes(topic.name))
        self._late.add(topic.name)
        last = next(reversed(self.positions), "")
        self.positions[topic.name] = position
        if topic.name < last:  # else they are in order
            self.positions = dict(sorted(self.positions.items()))
        self._epochs = None
        return position

    def fork(self) -> Session:
        """Return the same session with positions of its own."""
        copies = [position.copy() for position in self.positions.values()]
        place = self.place if self.reader is None else self.reader.place
        watch = Watch(
            self.view, self.heartbeat_ms, copies, self.prefixes, self.key, self.named, place
        )
        session = Session(self.wid, watch, self._bound, self._journal)
        session._late = set(self._late)
        session._ended = {name: position.copy() for name, position in self._ended.items()}
        return session

    def remove(self, position: Position) -> None:
        """Follow a topic no longer: it is gone, and the client is being told."""
        known = self.positions.get(position.name)
        if known is not None and known is position:
            del self.positions[known.name]
            self._epochs = None
            self._late.discard(known.name)
            self._hold(-topic_bytes(known.name))
            self._ended[known.name] = known
            if len(self._ended) > ENDED_TOPICS_MAX:
                del self._ended[next(iter(self._ended))]

    def rewind(self, given: Positions) -> None:
        """Go back to where a client says it was, in each topic that it is behind in."""
        if self.place is not None:
            self.place = self._lower_place(self.place, given)
        self._restore(given)
        for position in self.positions.values():
            said = given.of(position.name, position.epoch)
            if said is None:
                if given.is_whole and position.name in self._late:
                    # The client was here before the topic was, and has seen nothing of it.
                    self.move(position, position.epoch, 0)
                continue
            epoch, cursor = said
            if epoch < position.epoch:
                # It has not heard that the topic was created again: reading tells it once more.
                self.move(position, epoch, cursor)
            elif epoch == position.epoch:
                self.move(position, epoch, min(position.cursor, cursor))

    def _lower_place(self, own: Place, given: Positions) -> Place:
        """Return where a client says it was, unless that is further than the session itself."""
        said = given.place
        if said is not None:
            known = said.run == own.run and said.number <= own.number
            mine = all(sweep.prefix.startswith(self.prefixes) for sweep in said.sweeps)
            return said if known and mine else own
        if not given.is_whole:
            return own
        # It was here when its topics were followed one by one, and has seen nothing of others.
        sweeps = tuple(map(Sweep, self.prefixes))
        named = {
            given.epochs[name]: seq for name, seq in given.by_name.items() if name in given.epochs
        }
        exact = {**given.by_epoch, **named}
        return Place(own.run, self._journal.number, own.ms, sweeps, tuple(exact.items()))

    def _restore(self, given: Positions) -> None:
        """Follow topics again whose end the client cannot have seen: its id still has them."""
        ended, self._ended = self._ended, {}
        for name, position in ended.items():
            room = len(self.positions) < FOLLOWED_TOPICS_MAX
            if room and name not in self.positions and given.of(name, position.epoch) is not None:
                self.positions[name] = position
                self._hold(topic_bytes(name))
                self._epochs = None
        self.positions = dict(sorted(self.positions.items()))


class Sessions:
    """All watch sessions, by wid."""

    def __init__(self, settings: Settings, random: Random, journal: PublishJournal) -> None:
        self._journal = journal
        self._max = settings.max_watch_sessions
        self._ttl_ms = settings.watch_session_ttl_ms
        self._random = random
        self.bytes = ByteBound("watch session", settings, fix="name fewer topics or nodes")
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
        """Add a session; its wid is a secret that nobody can guess."""
        self.reclaim(now_ms)
        self.bytes.check(watch.bytes)
        self.check_room(now_ms)
        secret = urlsafe_b64encode(self._random.bytes(_WID_BYTES)).rstrip(b"=").decode()
        session = Session(f"wid_{secret}", watch, self.bytes, self._journal)
        assert session.wid not in self._by_wid
        self._by_wid[session.wid] = session
        self._rest(session, now_ms)
        return session

    def find(self, wid: str, now_ms: int) -> Session:
        """Return the session of a wid, or raise `NotFound`."""
        self.reclaim(now_ms)
        session = self._by_wid.get(wid)
        if session is None:
            raise NotFound("no watch session of this wid", fix="create one with POST /v0/watch")
        return session

    def for_stream(self, session: Session) -> Session:
        """Return the session for one more stream; where others are open, with its own positions.

        A connection may be dead for long before the server knows.  Its stream goes on by itself,
        and must not take what the client, which is back already, waits for.
        """
        if session.streams:
            session = self._by_wid[session.wid] = session.fork()
        return session

    def opened(self, session: Session, stream: WatchStream) -> None:
        """Add a stream to a session."""
        session.streams.append(stream)
        self._idle.pop(session.wid, None)

    def closed(self, session: Session, stream: WatchStream, now_ms: int) -> None:
        """Take a stream from a session."""
        session.streams.remove(stream)
        if session.streams:
            return
        if self._by_wid.get(session.wid) is session:
            self._rest(session, now_ms)
        else:
            session.release()

    def forget(self, session: Session) -> None:
        """Drop a session and its wid, unless a newer stream has them."""
        if self._by_wid.get(session.wid) is session:
            del self._by_wid[session.wid]
            self._idle.pop(session.wid, None)
            if not session.streams:
                session.release()

    def _rest(self, session: Session, now_ms: int) -> None:
        session.idle_since_ms = now_ms
        self._idle[session.wid] = session
