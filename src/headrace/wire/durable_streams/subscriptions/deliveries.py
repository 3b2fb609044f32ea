"""Telling of a wake: a signed POST to a webhook, or an event in the wake stream.

Only this file says what is sent.  Sending is outside of the line of a subscription, because a
receiver may call back before it has answered; `ended` hears what came of it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from headrace.core.errors import HeadraceError
from headrace.core.runtime import Ticket
from headrace.engine.appending.admission import Append, Records
from headrace.engine.appending.pending_append import Appended
from headrace.engine.engine import Engine
from headrace.engine.streams.spec import Position
from headrace.storage.block import KIND_JSON
from headrace.wire.durable_streams.subscriptions.active import ActiveSubscription
from headrace.wire.durable_streams.subscriptions.bodies import (
    WakeStream,
    address_of,
    wake_streams,
)
from headrace.wire.durable_streams.subscriptions.key_file import KeyFile
from headrace.wire.durable_streams.subscriptions.rules import StreamEnds
from headrace.wire.durable_streams.subscriptions.signing import sign, signer_of
from headrace.wire.durable_streams.subscriptions.state import WEBHOOK
from headrace.wire.durable_streams.subscriptions.stream_paths import show_path, topic_of
from headrace.wire.durable_streams.subscriptions.tokens import make_token
from headrace.wire.outbound import OutboundPost, OutboundPosts, PostResult

log = logging.getLogger("headrace.subscriptions")

# POSTs that are under way at once; further ones wait.
POSTS_MAX: Final = 64
# One of them with its answer: up to `WAKE_STREAMS_MAX` streams, each with its path and offsets.
POST_BYTES_MAX: Final = 2 << 20


class WebhookWake(msgspec.Struct, frozen=True):
    """The body of a webhook."""

    subscription_id: str
    wake_id: str
    generation: int
    streams: list[WakeStream]
    callback_url: str
    callback_token: str


class WakeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a wake stream."""

    type: str = "wake"
    subscription_id: str
    stream: str
    generation: int
    ts: int


class WebhookReply(msgspec.Struct, frozen=True):
    """What a receiver may answer."""

    done: object = False


_REPLY: Final = msgspec.json.Decoder(WebhookReply)


class Sent(NamedTuple):
    """What came of telling of a wake."""

    wake_id: str
    failure: str = ""  # "": it has arrived
    done: bool = False  # and is dealt with, up to these
    tails: Mapping[str, Position] = MappingProxyType({})


Ended = Callable[[ActiveSubscription, Sent], None]


class Deliveries:
    """Tells of the wakes of all subscriptions of one server."""

    def __init__(
        self,
        engine: Engine,
        posts: OutboundPosts,
        keys: KeyFile,
        ends: StreamEnds,
        ended: Ended,
    ) -> None:
        self._engine = engine
        self._posts = posts
        self._keys = keys
        self._ends = ends
        self._ended = ended
        self.posting = 0  # POSTs under way
        self.posting_bytes = 0  # of their bodies
        self._waiting: deque[ActiveSubscription] = deque()  # each is in it once
        self._draining = False

    def send(self, active: ActiveSubscription) -> None:
        """Tell of the wake of a subscription, unless that is under way."""
        if active.sending or active.queued or self._draining:
            return
        if active.state.config.type != WEBHOOK:
            active.sending = True
            self._write_event(active)
        elif self.posting >= POSTS_MAX:
            active.queued = True
            self._waiting.append(active)
        else:
            self._post(active)

    def drain(self) -> None:
        """Tell of nothing more: the server is stopping."""
        self._draining = True
        self._waiting.clear()
        self._posts.drain()

    # Webhooks

    def _post(self, active: ActiveSubscription) -> None:
        state, now_ms = active.state, self._engine.clock.now_ms()
        wake = state.wake
        assert wake is not None
        shown, tails = wake_streams(active, self._ends)
        secret = self._keys.token_secret
        body = msgspec.json.encode(
            WebhookWake(
                state.id,
                wake.id,
                state.generation,
                shown,
                address_of(state.origin, state.id, "callback"),
                make_token(secret, state.id, state.life, state.generation),
            )
        )
        signature = sign(signer_of(self._keys.signing, now_ms), body, now_ms)
        headers = (
            (b"content-type", b"application/json"),
            (b"webhook-signature", signature.encode()),
            (b"user-agent", b"headrace"),
        )
        active.sending = True
        self.posting += 1
        self.posting_bytes += len(body)
        self._posts.post(
            OutboundPost(state.config.url, body, headers),
            partial(self._posted, active, len(body), Sent(wake.id, tails=tails)),
        )

    def _posted(
        self, active: ActiveSubscription, size: int, sent: Sent, result: PostResult
    ) -> None:
        active.sending = False
        self.posting -= 1
        self.posting_bytes -= size
        if not result.taken:
            sent = sent._replace(failure=result.failure or f"status {result.status}")
        else:
            sent = sent._replace(done=_says_done(result))
        self._ended(active, sent)
        while self._waiting and self.posting < POSTS_MAX and not self._draining:
            following = self._waiting.popleft()
            following.queued = False
            wake = following.state.wake
            if not following.gone and wake is not None and not wake.notified:
                self._post(following)

    # Wake streams

    def _write_event(self, active: ActiveSubscription) -> None:
        state = active.state
        wake = state.wake
        assert wake is not None
        name = topic_of(state.config.wake_stream)
        event = msgspec.json.encode(
            WakeEvent(
                subscription_id=state.id,
                stream=show_path(next(iter(active.pending), "")),
                generation=state.generation,
                ts=self._engine.clock.now_ms(),
            )
        )
        done = partial(self._written, active, Sent(wake.id))
        try:
            kind = self._engine.streams.info(name).state.kind
            records: Records = msgspec.Raw(event) if kind == KIND_JSON else event
            self._engine.append_batch(name, records, Append(create=False)).when_done(done)
        except HeadraceError as error:
            self._engine.runtime.soon(partial(self._not_written, active, Sent(wake.id), error))

    def _written(self, active: ActiveSubscription, sent: Sent, ticket: Ticket[Appended]) -> None:
        if ticket.error is not None:
            self._not_written(active, sent, ticket.error)
            return
        active.sending = False
        self._ended(active, sent)

    def _not_written(self, active: ActiveSubscription, sent: Sent, error: BaseException) -> None:
        active.sending = False
        self._ended(active, sent._replace(failure=str(error)))


def _says_done(result: PostResult) -> bool:
    """Whether an answer says that all is dealt with."""
    if not result.whole:
        return False
    try:
        return _REPLY.decode(result.body).done is True
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False  # also what is nested too deeply, which would end its wake for ever
