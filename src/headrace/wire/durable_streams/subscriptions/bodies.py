"""The bodies of subscriptions: what is sent, what is answered, and what webhooks carry.

Requests are read here and nowhere else; whatever is wrong with one is refused before anything is
looked up.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Final

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.engine.streams.spec import Position
from headrace.wire.bodies import decode_json
from headrace.wire.durable_streams.offsets import ZERO, offset_text
from headrace.wire.durable_streams.paths import ROOT
from headrace.wire.durable_streams.subscriptions.active import ActiveSubscription
from headrace.wire.durable_streams.subscriptions.globs import Glob
from headrace.wire.durable_streams.subscriptions.rules import (
    ACKS_MAX,
    Report,
    StreamEnds,
    is_pending,
)
from headrace.wire.durable_streams.subscriptions.state import (
    EXPLICIT,
    GLOB,
    PULL_WAKE,
    WEBHOOK,
    Link,
    Subscription,
    SubscriptionConfig,
    cursor_text,
)
from headrace.wire.durable_streams.subscriptions.stream_paths import parse_path, show_path
from headrace.wire.durable_streams.subscriptions.tokens import make_token

LEASE_TTL_MS_MIN: Final = 1_000
LEASE_TTL_MS_MAX: Final = 600_000
LEASE_TTL_MS_DEFAULT: Final = 30_000
STREAMS_PER_REQUEST_MAX: Final = 1_000
DESCRIPTION_BYTES_MAX: Final = 4_096
PATTERN_BYTES_MAX: Final = 1_024
WORKER_BYTES_MAX: Final = 256
ID_BYTES_MAX: Final = 200
# Streams that a wake names: those with something new first.  What it does not name, the next does.
WAKE_STREAMS_MAX: Final = ACKS_MAX

# What clients send


class WebhookBody(msgspec.Struct, frozen=True):
    """Where a webhook goes."""

    url: str


class SubscriptionBody(msgspec.Struct, frozen=True):
    """A subscription that is asked for."""

    type: str
    pattern: str | None = None
    streams: list[str] | None = None
    webhook: WebhookBody | None = None
    wake_stream: str | None = None
    lease_ttl_ms: int = LEASE_TTL_MS_DEFAULT
    description: str | None = None


class StreamsBody(msgspec.Struct, frozen=True):
    """Streams to link."""

    streams: list[str]


class ClaimBody(msgspec.Struct, frozen=True):
    """Who wants the wake."""

    worker: str


class AckBody(msgspec.Struct, frozen=True):
    """How far a stream was dealt with; `path` is another word for `stream`."""

    offset: str
    stream: str | None = None
    path: str | None = None


class ReportBody(msgspec.Struct, frozen=True):
    """What a receiver or a worker says of a wake."""

    wake_id: str | None = None
    generation: int | None = None
    acks: list[AckBody] | None = None
    done: bool = False


SUBSCRIPTION: Final = msgspec.json.Decoder(SubscriptionBody)
STREAMS: Final = msgspec.json.Decoder(StreamsBody)
CLAIM: Final = msgspec.json.Decoder(ClaimBody)
REPORT: Final = msgspec.json.Decoder(ReportBody)


def config_of(body: bytes) -> SubscriptionConfig:
    """The subscription that a body asks for."""
    asked = decode_json(body, SUBSCRIPTION)
    if asked.type not in (WEBHOOK, PULL_WAKE):
        raise InvalidRequest(f"type is {asked.type[:40]!r}", fix="send webhook or pull-wake")
    pattern = (asked.pattern or "").strip("/")
    if len(pattern.encode()) > PATTERN_BYTES_MAX:
        raise InvalidRequest("the pattern is too long", fix=f"use {PATTERN_BYTES_MAX} bytes")
    if pattern:
        Glob(pattern)
    streams = paths_of(asked.streams or [])
    if not pattern and not streams:
        raise InvalidRequest("neither a pattern nor streams", fix="send one of them, or both")
    if not LEASE_TTL_MS_MIN <= asked.lease_ttl_ms <= LEASE_TTL_MS_MAX:
        raise InvalidRequest(
            f"lease_ttl_ms is {asked.lease_ttl_ms}",
            fix=f"send {LEASE_TTL_MS_MIN} to {LEASE_TTL_MS_MAX}",
        )
    if asked.description is not None and len(asked.description.encode()) > DESCRIPTION_BYTES_MAX:
        raise InvalidRequest(
            "the description is too long", fix=f"use {DESCRIPTION_BYTES_MAX} bytes"
        )
    url = wake_stream = ""
    if asked.type == WEBHOOK:
        if asked.webhook is None or not asked.webhook.url:
            raise InvalidRequest("a webhook without webhook.url", fix="send it")
        url = asked.webhook.url
    else:
        if not asked.wake_stream:
            raise InvalidRequest("pull-wake without wake_stream", fix="send it")
        wake_stream = parse_path(asked.wake_stream)
        if wake_stream in streams:
            raise InvalidRequest(
                "the wake stream is one of the streams", fix="use one that is not subscribed to"
            )
    return SubscriptionConfig(
        asked.type,  # type: ignore[arg-type]
        pattern,
        tuple(sorted(streams)),
        url,
        wake_stream,
        asked.lease_ttl_ms,
        asked.description,
    )


def linked_paths(body: bytes) -> list[str]:
    """The decoded paths of streams to link."""
    paths = paths_of(decode_json(body, STREAMS).streams)
    if not paths:
        raise InvalidRequest("no streams", fix="name one at least")
    return paths


def paths_of(streams: list[str]) -> list[str]:
    """The decoded paths of streams, each once."""
    if len(streams) > STREAMS_PER_REQUEST_MAX:
        raise InvalidRequest(
            f"{len(streams)} streams", fix=f"send at most {STREAMS_PER_REQUEST_MAX} at once"
        )
    return list(dict.fromkeys(parse_path(stream) for stream in streams))


def worker_of(body: bytes) -> str:
    """The worker that claims."""
    worker = decode_json(body or b"{}", CLAIM).worker
    if not 1 <= len(worker.encode()) <= WORKER_BYTES_MAX:
        raise InvalidRequest(
            "worker is empty or too long", fix=f"use 1 to {WORKER_BYTES_MAX} bytes"
        )
    return worker


def report_of(body: bytes) -> Report:
    """What is said of a wake."""
    said = decode_json(body or b"{}", REPORT)
    acks = said.acks or []
    if len(acks) > ACKS_MAX:
        raise InvalidRequest(f"{len(acks)} acks", fix=f"send at most {ACKS_MAX} at once")
    pairs = [(ack.stream or ack.path or "", ack.offset) for ack in acks]
    return Report(said.wake_id, said.generation, pairs, said.done)


def check_id(id: str) -> None:
    """Refuse what can be no id."""
    if not 1 <= len(id.encode()) <= ID_BYTES_MAX or "/" in id or not id.isprintable():
        raise InvalidRequest(
            "the id is too long, or has a slash or a control character in it",
            fix=f"use 1 to {ID_BYTES_MAX} bytes",
        )


# What clients get


def address_of(origin: str, id: str, action: str) -> str:
    """The URL of something that can be done with a subscription."""
    return f"{origin}{ROOT}__ds/subscriptions/{show_path(id)}/{action}"


def jwks_address(origin: str) -> str:
    """The URL of the published keys."""
    return f"{origin}{ROOT}__ds/jwks.json"


def record_of(state: Subscription, ends: StreamEnds, origin: str, kid: str) -> bytes:
    """A subscription as its owner sees it."""
    config = state.config
    record: dict[str, object] = {"id": state.id, "subscription_id": state.id, "type": config.type}
    if config.pattern:
        record["pattern"] = config.pattern
    record["streams"] = [
        {
            "path": show_path(path),
            "link_type": link_type(link),
            "acked_offset": cursor_text(link.acked),
        }
        for path, link in state.links.items()
        if link.kinds & EXPLICIT or ends.tail(path) is not None
    ]
    if config.url:
        signing = {"alg": "ed25519", "kid": kid, "jwks_url": jwks_address(origin)}
        record["webhook"] = {"url": config.url, "signing": signing}
    if config.wake_stream:
        record["wake_stream"] = show_path(config.wake_stream)
    record["lease_ttl_ms"] = config.lease_ttl_ms
    record["created_at"] = _timestamp(state.created_ms)
    record["status"] = state.status
    if config.description is not None:
        record["description"] = config.description
    return msgspec.json.encode(record)


def link_type(link: Link) -> str:
    """What holds a link, as clients are told."""
    return "explicit" if link.kinds & EXPLICIT else "glob"


def _timestamp(ms: int) -> str:
    at = datetime.fromtimestamp(ms / 1_000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class WakeStream(msgspec.Struct, frozen=True):
    """A stream of a wake."""

    path: str
    link_type: str
    acked_offset: str
    tail_offset: str
    has_pending: bool


def wake_streams(
    active: ActiveSubscription, ends: StreamEnds
) -> tuple[list[WakeStream], dict[str, Position]]:
    """The streams that a wake names, and where those with something new end, by decoded path."""
    shown: list[WakeStream] = []
    tails: dict[str, Position] = {}
    links = active.state.links
    for path in islice(_pending_first(active), WAKE_STREAMS_MAX):
        link, tail = links[path], ends.tail(path)
        if tail is None and link.kinds == GLOB:
            continue
        pending = is_pending(ends, path, link.acked)
        if pending and tail is not None:
            tails[path] = tail
        at = offset_text(tail or ZERO).decode()
        shown.append(
            WakeStream(show_path(path), link_type(link), cursor_text(link.acked), at, pending)
        )
    return shown, tails


def _pending_first(active: ActiveSubscription) -> Iterator[str]:
    links, pending = active.state.links, active.pending
    yield from (path for path in list(pending) if path in links)
    yield from (path for path in list(links) if path not in pending)


class ClaimedWake(msgspec.Struct, frozen=True):
    """What a worker gets that has claimed a wake."""

    wake_id: str
    generation: int
    token: str
    streams: list[WakeStream]
    lease_ttl_ms: int


def claimed_wake(active: ActiveSubscription, ends: StreamEnds, secret: bytes) -> ClaimedWake:
    """The present wake of a subscription, for the worker that has just claimed it."""
    state = active.state
    assert state.wake is not None and state.wake.holder
    token = make_token(secret, state.id, state.life, state.generation)
    streams, _ = wake_streams(active, ends)
    return ClaimedWake(state.wake.id, state.generation, token, streams, state.config.lease_ttl_ms)
