"""What may be done with a subscription, and what then happens to it: decisions, without effects.

Each function looks at a subscription, the time and the ends of its streams, and returns the events
that are to be kept, or the `Refusal` to answer with.  The rules this file owns:

* A wake has a generation that no other wake has, and at most one holder.
* A token, its generation, the generation and the wake of a body must all be those of the present
  wake, within its lease; else the caller is fenced.
* A cursor never goes back and never passes the end of its stream.
* A wake that is over is followed by the next one at once if there is something new by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from headrace.core.clock import Random
from headrace.core.errors import HeadraceError
from headrace.engine.streams.spec import Position
from headrace.wire.durable_streams.offsets import ZERO, Mark, parse_offset
from headrace.wire.durable_streams.subscriptions.state import (
    PULL_WAKE,
    Acked,
    Claimed,
    Event,
    Failed,
    Notified,
    Rested,
    Subscription,
    Woken,
    cursor_text,
)
from headrace.wire.durable_streams.subscriptions.stream_paths import parse_path
from headrace.wire.durable_streams.subscriptions.tokens import token_generation

RETRY_MS_MIN: Final = 1_000
RETRY_MS_MAX: Final = 60_000
RETRY_JITTER: Final = 0.2
# Of cursors in one request, and of streams in one wake.
ACKS_MAX: Final = 1_000
WAKE_ID_BYTES: Final = 12


class Refusal(NamedTuple):
    """An answer that says no."""

    status: int
    code: str
    message: str
    more: Mapping[str, object] = {}  # fields beside the message


NOT_FOUND: Final = Refusal(404, "SUBSCRIPTION_NOT_FOUND", "There is no such subscription")
NOT_PULL_WAKE: Final = Refusal(400, "INVALID_REQUEST", "The subscription is not pull-wake")
NO_TOKEN: Final = Refusal(401, "TOKEN_INVALID", "Send the token as `Authorization: Bearer <token>`")
BAD_TOKEN: Final = Refusal(401, "TOKEN_INVALID", "The token is not one of this subscription")
FENCED: Final = Refusal(409, "FENCED", "The wake is over; claim or await the next one")
NO_WORK: Final = Refusal(409, "NO_PENDING_WORK", "Nothing is new in the subscribed streams")


def invalid(message: str) -> Refusal:
    """Refuse a request for what it says."""
    return Refusal(400, "INVALID_REQUEST", message)


def invalid_offset(message: str) -> Refusal:
    """Refuse an ack for its offset."""
    return Refusal(409, "INVALID_OFFSET", message)


class StreamEnds(Protocol):
    """Where streams end."""

    def tail(self, path: str) -> Position | None: ...  # None: there is no such stream
    def resolve(self, path: str, at: Position) -> int: ...  # raises where it is not in the stream


class Report(NamedTuple):
    """What a receiver or a worker says of a wake."""

    wake_id: str | None
    generation: int | None
    acks: Sequence[tuple[str, str]] = ()  # stream and offset, as they were sent
    done: bool = False


class Decision(NamedTuple):
    """What is to be kept; `next_wake`: whether it ends with another wake."""

    events: list[Event]
    next_wake: bool = False


# What is new


def acked_seq(ends: StreamEnds, path: str, acked: Position | None) -> int:
    """The seq that a cursor stands behind; 0 where it is of a stream that is no more."""
    if acked is None:
        return 0
    try:
        return ends.resolve(path, acked)
    except HeadraceError:
        tail = ends.tail(path)
        # Retention may have taken what the cursor stands behind, which changes nothing.
        return acked.seq if tail is not None and tail.incarnation == acked.incarnation else 0


def is_pending(ends: StreamEnds, path: str, acked: Position | None) -> bool:
    """Whether a stream holds something beyond a cursor."""
    tail = ends.tail(path)
    return tail is not None and tail.seq > acked_seq(ends, path, acked)


# Wakes


def next_wake(subscription: Subscription, random: Random) -> Woken:
    """The next wake."""
    return Woken(subscription.generation + 1, f"w_{random.bytes(WAKE_ID_BYTES).hex()}")


def rest(
    subscription: Subscription, random: Random, pending: bool, before: Iterable[Event] = ()
) -> Decision:
    """End the wake, and begin the next one if there is something new."""
    events = [*before, Rested()]
    if pending:
        events.append(next_wake(subscription, random))
    return Decision(events, pending)


def due_ms(subscription: Subscription) -> int | None:
    """When something is to happen by itself; None: never."""
    wake = subscription.wake
    if wake is None:
        return None
    if not wake.notified:
        return subscription.next_attempt_ms
    return wake.deadline_ms or None


def is_over(subscription: Subscription, now_ms: int) -> bool:
    """Whether the lease of the wake has run out."""
    wake = subscription.wake
    return wake is not None and wake.notified and 0 < wake.deadline_ms <= now_ms


# Workers


def claim(
    subscription: Subscription, worker: str, random: Random, now_ms: int, pending: bool
) -> Decision | Refusal:
    """Give the wake to a worker."""
    if subscription.config.type != PULL_WAKE:
        return NOT_PULL_WAKE
    events: list[Event] = []
    wake = subscription.wake
    if is_over(subscription, now_ms):
        events.append(Rested())
        wake = None
    if wake is not None and wake.holder:
        held = {"current_holder": wake.holder, "generation": subscription.generation}
        message = "Another worker holds the lease; try again when it has ended"
        return Refusal(409, "ALREADY_CLAIMED", message, held)
    if not pending:
        return NO_WORK
    if wake is None:
        events.append(next_wake(subscription, random))
    events.append(Claimed(worker, now_ms + subscription.config.lease_ttl_ms))
    return Decision(events)


def report(
    subscription: Subscription,
    secret: bytes,
    token: str,
    said: Report,
    ends: StreamEnds,
    random: Random,
    now_ms: int,
    still_pending: Callable[[Mapping[str, Position | None]], bool],
) -> Decision | Refusal:
    """Take acks, hold the lease longer, end the wake.

    `still_pending`: whether anything is new, with these cursors in place of those of the links.
    """
    refusal = fence(subscription, secret, token, said, now_ms)
    if refusal is not None:
        return refusal
    cursors = cursors_of(subscription, said.acks, ends)
    if isinstance(cursors, Refusal):
        return cursors
    texts = {path: cursor_text(cursor) for path, cursor in cursors.items()}
    acked = Acked(texts, now_ms + subscription.config.lease_ttl_ms)
    if not said.done:
        return Decision([acked])
    return rest(subscription, random, still_pending(cursors), [acked])


def fence(
    subscription: Subscription, secret: bytes, token: str, said: Report, now_ms: int
) -> Refusal | None:
    """Refuse a caller that does not have the present wake."""
    generation = token_generation(secret, subscription.id, subscription.life, token)
    if generation is None:
        return BAD_TOKEN
    wake = subscription.wake
    if wake is None or is_over(subscription, now_ms):
        return FENCED
    if generation != subscription.generation or said.generation != subscription.generation:
        return FENCED
    if said.wake_id != wake.id:
        return FENCED
    # Nobody has the token of a wake that nobody has claimed.
    return FENCED if subscription.config.type == PULL_WAKE and not wake.holder else None


def cursors_of(
    subscription: Subscription, acks: Sequence[tuple[str, str]], ends: StreamEnds
) -> dict[str, Position | None] | Refusal:
    """The cursors that acks move, by decoded path; one that may not be moved refuses all."""
    cursors: dict[str, Position | None] = {}
    for stream, offset in acks:
        try:
            path, at = parse_path(stream), parse_offset(offset)
        except HeadraceError as error:
            return invalid_offset(str(error))
        if path not in subscription.links:
            path = path.strip("/")  # slashes at the ends that no stream has mean nothing here
        link = subscription.links.get(path)
        if link is None:
            return invalid_offset(f"{stream!r} is no stream of this subscription")
        if isinstance(at, Mark):
            return invalid_offset(f"{offset!r} is no place to have read to; send an offset")
        if at == ZERO and ends.tail(path) is None:
            continue  # a wake has this for a stream that is not there yet
        try:
            seq = ends.resolve(path, at)
        except HeadraceError as error:
            return invalid_offset(str(error))
        before = cursors.get(path, link.acked)
        if seq < acked_seq(ends, path, before):
            return invalid_offset(f"{stream!r} was acked up to {cursor_text(before)} already")
        cursors[path] = at
    return cursors


# Deliveries


def retry_ms(failures: int, chance: float) -> int:
    """How long to wait after so many failures; `chance` is from 0 up to 1.

    >>> [retry_ms(failures, 0.5) for failures in (1, 2, 3, 7, 100)]
    [1000, 2000, 4000, 60000, 60000]
    >>> retry_ms(1, 0.0), retry_ms(1, 1.0)
    (800, 1200)
    """
    assert failures >= 1 and 0 <= chance <= 1, (failures, chance)
    doubled = RETRY_MS_MIN << min(failures - 1, RETRY_MS_MAX.bit_length())
    return round(min(doubled, RETRY_MS_MAX) * (1 + RETRY_JITTER * (2 * chance - 1)))


def failed(subscription: Subscription, random: Random, now_ms: int) -> Failed:
    """Note an attempt that failed, and when the next one is."""
    failures = subscription.failures + 1
    return Failed(failures, now_ms + retry_ms(failures, random.u32() / 0xFFFF_FFFF))


def notified(subscription: Subscription, now_ms: int) -> Notified:
    """Note that a wake has arrived: a receiver has a lease to answer in, workers have to claim."""
    if subscription.config.type == PULL_WAKE:
        return Notified()
    return Notified(now_ms + subscription.config.lease_ttl_ms)


def auto_ack(
    subscription: Subscription,
    tails: Mapping[str, Position],
    ends: StreamEnds,
    random: Random,
    now_ms: int,
    pending: Iterable[str],
) -> list[Event]:
    """End a wake whose receiver says that it has dealt with all that it was told of."""
    cursors: dict[str, Position] = {}
    for path, tail in tails.items():
        link = subscription.links.get(path)
        # It may have acked more by a callback meanwhile, and the stream may be another one.
        if link is not None and acked_seq(ends, path, tail) > acked_seq(ends, path, link.acked):
            cursors[path] = tail
    texts = {path: cursor_text(cursor) for path, cursor in cursors.items()}
    links = subscription.links
    more = any(
        is_pending(ends, path, cursors.get(path, links[path].acked))
        for path in pending
        if path in links
    )
    return rest(subscription, random, more, [Acked(texts, now_ms)]).events
