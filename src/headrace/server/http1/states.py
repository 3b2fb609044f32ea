"""The states of an HTTP/1.1 connection: which there are, and every change between them.

Everything that affects these states is in this file; `reader.py`, `connection.py` and `answer.py`
tell it what happened and never assign a state that did not come out of a table.

Theory of operation
-------------------

The two directions of a connection end independently, so there are two machines.

*Reading* says what the next byte of the client is for.  A connection is NEW until its first byte
and SNIFFING while its first bytes could still be the preface of HTTP/2; then either that transport
has it (TAKEN_OVER), or it goes round IDLE, HEAD, BODY, once for each request.  Two things leave
this circle.  A request may ask for another protocol: until that is answered it is UPGRADING, and
what follows it is kept, because only the answer tells whether it is HTTP; then it is a TUNNEL, or
IDLE after all.  And a request may be refused before its end (too large, too slow, no HTTP): then it
is DISCARDING whatever comes, since nothing tells where the next request would begin.

*Answering* says what becomes of the connection after the answers that it still owes.  OPEN, more
requests are welcome.  CLOSING, the server stops: it closes when the last answer has been written.
HALF_CLOSED, the client has sent all it will: the same, and an answer that may go on for long is not
begun any more.  LINGERING, the last answer and the end have been sent, but the connection stays
until the client has seen them.  CLOSED, the close has been asked for.

Both machines end in LOST, when asyncio says that the connection is gone.

What is *not* a state: whose turn it is to be answered (the queue), whether a body is paused, and
whether the socket takes more.  They change on their own in almost every state.

An event is a table from the state before to the state after, so taking one is a single lookup:

>>> MESSAGE_BEGUN[IDLE]
HEAD
>>> MESSAGE_BEGUN[TUNNEL]
Traceback (most recent call last):
headrace.server.http1.states.IllegalTransition: MESSAGE_BEGUN while TUNNEL

A request that repeats a head and has come whole (`heads.py`) is HEAD and BODY at once: IDLE before
and after, so that the hot path has nothing to look up.

The picture of both tables is in docs/internals/server.md, and a test holds it against them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NoReturn

Awaited = Literal["", "head", "body"]


class IllegalTransition(AssertionError):
    """Something happened that cannot happen in this state: a bug of ours, not of the client."""


class State:
    """A state; `awaits` is the part of a request that has begun and has to arrive in time."""

    __slots__ = ("awaits", "name")

    def __init__(self, name: str, awaits: Awaited = "") -> None:
        self.name = name
        self.awaits = awaits

    def __repr__(self) -> str:
        return self.name


class Event(dict[State, State]):
    """What can happen: the next state for each state in which it may."""

    def __init__(self, name: str, transitions: Mapping[State, State]) -> None:
        super().__init__(transitions)
        self.name = name

    def __missing__(self, state: State) -> NoReturn:
        raise IllegalTransition(f"{self.name} while {state}")

    def __repr__(self) -> str:
        return self.name


# Reading: what the next byte is for.
NEW: Final = State("NEW")  # nothing has arrived
SNIFFING: Final = State("SNIFFING", awaits="head")  # perhaps HTTP/2
TAKEN_OVER: Final = State("TAKEN_OVER")  # HTTP/2 has the socket
IDLE: Final = State("IDLE")  # a request, when it comes
HEAD: Final = State("HEAD", awaits="head")
BODY: Final = State("BODY", awaits="body")
UPGRADING: Final = State("UPGRADING")  # HTTP or another protocol, as the answer will say
TUNNEL: Final = State("TUNNEL")  # the other protocol
DISCARDING: Final = State("DISCARDING")  # nothing: the request was refused

# Answering: what follows the answers that are owed.
OPEN: Final = State("OPEN")  # more of them
CLOSING: Final = State("CLOSING")  # the close, because the server stops
HALF_CLOSED: Final = State("HALF_CLOSED")  # the close, because the client has sent its end
LINGERING: Final = State("LINGERING")  # all are written, with the end; the client may still send
CLOSED: Final = State("CLOSED")  # nothing: the close has been asked for

# Both.
LOST: Final = State("LOST")

READING_STATES: Final = (
    NEW, SNIFFING, TAKEN_OVER, IDLE, HEAD, BODY, UPGRADING, TUNNEL, DISCARDING, LOST,
)  # fmt: skip
ANSWERING_STATES: Final = (OPEN, CLOSING, HALF_CLOSED, LINGERING, CLOSED, LOST)

# The first bytes: could be HTTP/2, is not, is.
MAYBE_HTTP2: Final = Event("MAYBE_HTTP2", {NEW: SNIFFING, SNIFFING: SNIFFING})
IS_HTTP1: Final = Event("IS_HTTP1", {NEW: IDLE, SNIFFING: IDLE})
IS_HTTP2: Final = Event("IS_HTTP2", {NEW: TAKEN_OVER, SNIFFING: TAKEN_OVER})
# What the parser says of a request.
MESSAGE_BEGUN: Final = Event("MESSAGE_BEGUN", {IDLE: HEAD})
HEAD_COMPLETE: Final = Event("HEAD_COMPLETE", {HEAD: BODY})
MESSAGE_COMPLETE: Final = Event("MESSAGE_COMPLETE", {BODY: IDLE})
# The request asks for another protocol and is not answered yet; it was, one way or the other.
UPGRADE_ASKED: Final = Event("UPGRADE_ASKED", {IDLE: UPGRADING})
NOT_UPGRADED: Final = Event("NOT_UPGRADED", {UPGRADING: IDLE})
UPGRADED: Final = Event("UPGRADED", {IDLE: TUNNEL, UPGRADING: TUNNEL})
# The rest of the request is of no use.
REFUSED: Final = Event(
    "REFUSED", {SNIFFING: DISCARDING, IDLE: DISCARDING, HEAD: DISCARDING, BODY: DISCARDING}
)
READING_LOST: Final = Event(
    "READING_LOST",
    {state: LOST for state in READING_STATES if state not in (TAKEN_OVER, LOST)},
)

DRAIN: Final = Event(
    "DRAIN",
    {
        OPEN: CLOSING,
        CLOSING: CLOSING,
        HALF_CLOSED: HALF_CLOSED,
        LINGERING: LINGERING,
        CLOSED: CLOSED,
    },
)
CLIENT_ENDED: Final = Event(
    "CLIENT_ENDED",
    {OPEN: HALF_CLOSED, CLOSING: HALF_CLOSED, LINGERING: LINGERING, CLOSED: CLOSED},
)
LINGER: Final = Event(
    "LINGER", {OPEN: LINGERING, CLOSING: LINGERING, HALF_CLOSED: LINGERING, CLOSED: CLOSED}
)
CLOSE: Final = Event(
    "CLOSE",
    {OPEN: CLOSED, CLOSING: CLOSED, HALF_CLOSED: CLOSED, LINGERING: CLOSED, CLOSED: CLOSED},
)
ANSWERING_LOST: Final = Event(
    "ANSWERING_LOST", {state: LOST for state in ANSWERING_STATES if state is not LOST}
)

READING_EVENTS: Final = (
    MAYBE_HTTP2, IS_HTTP1, IS_HTTP2, MESSAGE_BEGUN, HEAD_COMPLETE, MESSAGE_COMPLETE,
    UPGRADE_ASKED, NOT_UPGRADED, UPGRADED, REFUSED, READING_LOST,
)  # fmt: skip
ANSWERING_EVENTS: Final = (DRAIN, CLIENT_ENDED, LINGER, CLOSE, ANSWERING_LOST)
