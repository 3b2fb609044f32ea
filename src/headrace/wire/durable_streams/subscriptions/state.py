"""A subscription, as what happened to it: the events that are kept on disk, and what they come to.

Only this file changes a subscription, by `apply`.  What a subscription is after a restart is what
its events say, so every event holds what was decided and nothing that would be decided anew.  On
disk: names and meanings of events and fields never change; new fields have a default.

Which streams exist is not written down here: a stream that a pattern matches and that no event
names was made after the subscription, and is linked from its start; a link to a stream that is gone
is worth nothing.  `links.py` brings both up to date.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from headrace.engine.streams.spec import Position
from headrace.wire.durable_streams.offsets import Mark, offset_text, parse_offset

WEBHOOK: Final = "webhook"
PULL_WAKE: Final = "pull-wake"
BEFORE_FIRST: Final = "-1"

# What holds a link; both may.
EXPLICIT: Final = 1
GLOB: Final = 2

# What a link takes in memory, beside its path: measured, and rounded up.
LINK_BYTES: Final = 320


class SubscriptionConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a subscription was asked to be; two are the same if they are equal."""

    type: Literal["webhook", "pull-wake"]
    pattern: str = ""  # as it was sent, without slashes at its ends
    streams: tuple[str, ...] = ()  # decoded, sorted; those that were linked at the creation
    url: str = ""
    wake_stream: str = ""  # decoded
    lease_ttl_ms: int = 30_000
    description: str | None = None


class Wake(msgspec.Struct, frozen=True, omit_defaults=True):
    """That there is something new, from when it is decided until it is dealt with."""

    id: str
    notified: bool = False  # the receiver, or the wake stream, has it
    holder: str = ""  # the worker that claimed it
    deadline_ms: int = 0  # of the lease; 0: there is none


class Link:
    """A stream of a subscription, and how far it was dealt with; None: not at all."""

    __slots__ = ("acked", "kinds")

    def __init__(self, kinds: int, acked: Position | None) -> None:
        self.kinds = kinds
        self.acked = acked


# Events


class _Event(msgspec.Struct, frozen=True, tag_field="event", omit_defaults=True):
    pass


class Created(_Event, frozen=True, tag="created"):
    """Begins a subscription, or all that is known of one, up to its `standing`."""

    config: SubscriptionConfig
    life: str
    created_ms: int
    origin: str  # of the request that made it: where callbacks go


class Linked(_Event, frozen=True, tag="linked"):
    """Streams, what holds each link, and its cursor."""

    links: list[tuple[str, int, str]]


class Standing(_Event, frozen=True, tag="standing"):
    """Ends what `created` began: only now it counts."""

    generation: int = 0
    wake: Wake | None = None
    failures: int = 0
    next_attempt_ms: int = 0


class Unlinked(_Event, frozen=True, tag="unlinked"):
    """Streams that are no longer linked by name."""

    paths: list[str]


class Woken(_Event, frozen=True, tag="woken"):
    """There is something new."""

    generation: int
    wake_id: str


class Failed(_Event, frozen=True, tag="failed"):
    """Nobody took the wake, for the `failures`th time; when it is tried again."""

    failures: int
    next_attempt_ms: int


class Notified(_Event, frozen=True, tag="notified"):
    """The wake has arrived; until when an answer to it is waited for."""

    deadline_ms: int = 0


class Claimed(_Event, frozen=True, tag="claimed"):
    """A worker has the wake."""

    holder: str
    deadline_ms: int


class Acked(_Event, frozen=True, tag="acked"):
    """How far streams were dealt with, and the lease from now on."""

    cursors: dict[str, str] = {}
    deadline_ms: int = 0


class Rested(_Event, frozen=True, tag="rested"):
    """The wake is over."""


class Deleted(_Event, frozen=True, tag="deleted"):
    """The subscription is no more: its records may go."""


Event = (
    Created | Linked | Standing | Unlinked | Woken | Failed | Notified | Claimed | Acked | Rested
    | Deleted
)  # fmt: skip


class Subscription:
    """What the events of a subscription add up to."""

    __slots__ = (
        "bytes",
        "config",
        "created_ms",
        "failures",
        "generation",
        "id",
        "life",
        "links",
        "next_attempt_ms",
        "origin",
        "wake",
    )

    def __init__(self, id: str, created: Created) -> None:
        self.id = id
        self.config = created.config
        self.life = created.life
        self.created_ms = created.created_ms
        self.origin = created.origin
        self.links: dict[str, Link] = {}  # by decoded path
        self.generation = 0  # of the last wake
        self.wake: Wake | None = None
        self.failures = 0  # of the wake, in a row
        self.next_attempt_ms = 0
        self.bytes = len(msgspec.json.encode(created))

    @property
    def status(self) -> str:
        """What a reader is told."""
        return "failed" if self.failures else "active"

    def apply(self, event: Event) -> None:
        """Become what an event says."""
        match event:
            case Linked(links):
                for path, kinds, acked in links:
                    self.link(path, kinds, cursor_of(acked))
            case Standing(generation, wake, failures, next_attempt_ms):
                self.generation, self.wake = generation, wake
                self.failures, self.next_attempt_ms = failures, next_attempt_ms
            case Unlinked(paths):
                for path in paths:
                    self.unlink(path, EXPLICIT)
            case Woken(generation, wake_id):
                assert generation > self.generation, (generation, self.generation)
                self.generation, self.wake, self.next_attempt_ms = generation, Wake(wake_id), 0
            case Failed(failures, next_attempt_ms):
                self.failures, self.next_attempt_ms = failures, next_attempt_ms
            case Notified(deadline_ms):
                self.failures = self.next_attempt_ms = 0
                self._change_wake(notified=True, deadline_ms=deadline_ms)
            case Claimed(holder, deadline_ms):
                self.failures = self.next_attempt_ms = 0
                self._change_wake(notified=True, holder=holder, deadline_ms=deadline_ms)
            case Acked(cursors, deadline_ms):
                for path, offset in cursors.items():
                    self.link(path, 0, None).acked = cursor_of(offset)
                self.failures = self.next_attempt_ms = 0
                self._change_wake(notified=True, deadline_ms=deadline_ms)
            case Rested():
                self.wake = None
                self.failures = self.next_attempt_ms = 0
            case Created() | Deleted():
                raise AssertionError("these are about the subscription as a whole")

    def _change_wake(self, **fields: object) -> None:
        assert self.wake is not None
        self.wake = msgspec.structs.replace(self.wake, **fields)

    # Links: also changed as streams come and go, which no event says.

    def link(self, path: str, kinds: int, acked: Position | None) -> Link:
        """Link a stream, or hold a link by one thing more; return the link."""
        found = self.links.get(path)
        if found is None:
            found = self.links[path] = Link(kinds, acked)
            self.bytes += link_bytes(path)
        found.kinds |= kinds
        return found

    def unlink(self, path: str, kinds: int) -> None:
        """Take away what holds a link; one that nothing holds is gone."""
        found = self.links.get(path)
        if found is None:
            return
        found.kinds &= ~kinds
        if not found.kinds:
            del self.links[path]
            self.bytes -= link_bytes(path)


def link_bytes(path: str) -> int:
    """What a link takes."""
    return LINK_BYTES + len(path)


def cursor_of(text: str) -> Position | None:
    """A cursor from what is written of it; None: before the first record.

    >>> cursor_of("-1"), cursor_of("0000000000000007_0000000000000042")
    (None, Position(incarnation=7, seq=42))
    """
    at = parse_offset(text)
    return None if isinstance(at, Mark) else at


def cursor_text(cursor: Position | None) -> str:
    """A cursor as it is written and shown.

    >>> cursor_text(None), cursor_text(Position(7, 42))
    ('-1', '0000000000000007_0000000000000042')
    """
    return BEFORE_FIRST if cursor is None else offset_text(cursor).decode()
