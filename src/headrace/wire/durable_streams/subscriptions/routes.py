"""`/v1/stream/__ds/`: subscriptions over HTTP, and the keys that verify their webhooks.

Which key may do what: to create or change a subscription, a key needs the scopes read and write and
has to be allowed every stream that the subscription could ever be linked to, by name or by pattern,
and its wake stream; to look at one, to delete or to claim it, the same names.  Callbacks, acks and
releases are allowed by the token that came with the wake, and need no key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, TypeVar

import msgspec

from headrace.core.errors import Forbidden, HeadraceError, NotFound
from headrace.core.runtime import Ticket
from headrace.wire.durable_streams.paths import ROOT, origin_of
from headrace.wire.durable_streams.subscriptions import bodies, rules
from headrace.wire.durable_streams.subscriptions.active import ActiveSubscription
from headrace.wire.durable_streams.subscriptions.bodies import ClaimedWake
from headrace.wire.durable_streams.subscriptions.globs import Glob
from headrace.wire.durable_streams.subscriptions.rules import Refusal
from headrace.wire.durable_streams.subscriptions.service import Put, Reported, Subscriptions
from headrace.wire.durable_streams.subscriptions.signing import (
    JWKS_AGE_SECONDS,
    SigningKey,
    published,
    signer_of,
)
from headrace.wire.durable_streams.subscriptions.state import (
    PULL_WAKE,
    WEBHOOK,
    Subscription,
    SubscriptionConfig,
)
from headrace.wire.durable_streams.subscriptions.stream_paths import parse_path, topic_of
from headrace.wire.exchange import JSON, Exchange, Headers, Key, Reply
from headrace.wire.failures import answering, error_headers, failed
from headrace.wire.outbound_urls import UrlRefused, check_url
from headrace.wire.routes import DELETE, READ, WRITE, Route
from headrace.wire.server_context import ServerContext

T = TypeVar("T")

CONTROL: Final = ROOT + "__ds"
JWK_SET: Final = b"application/jwk-set+json"
_NO_STORE: Final[Headers] = ((b"cache-control", b"no-store"),)
_BEARER: Final = "bearer "
_METHODS: Final = ("GET", "PUT", "POST", "DELETE")
_CODES: Final = {
    400: "INVALID_REQUEST",
    401: "TOKEN_INVALID",
    403: "FORBIDDEN",
    404: "SUBSCRIPTION_NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    413: "INVALID_REQUEST",
    429: "TOO_MANY_REQUESTS",
}


def refusal_reply(refusal: Refusal, headers: Headers = ()) -> Reply:
    """The answer that says no, in the form of this part of the protocol."""
    error = {"code": refusal.code, "message": refusal.message, **refusal.more}
    body = msgspec.json.encode({"error": error})
    return refusal.status, body, JSON, (*_NO_STORE, *headers)


def control_failure(error: HeadraceError) -> Reply:
    """The answer that tells of an error below `CONTROL`."""
    code = _CODES.get(error.status, "INTERNAL_ERROR" if error.status >= 500 else error.code.upper())
    return refusal_reply(Refusal(error.status, code, str(error)), error_headers(error))


class SubscriptionsApi:
    """Subscriptions over HTTP."""

    def __init__(self, context: ServerContext, subscriptions: Subscriptions) -> None:
        self._settings = context.settings
        self._clock = context.engine.clock
        self._subscriptions = subscriptions

    def routes(self) -> list[Route]:
        """The rows of all of it."""
        one = CONTROL + "/subscriptions/{id}"
        change, read = frozenset({READ, WRITE}), frozenset({READ})

        def row(
            method: str,
            template: str,
            handler: Callable[[Exchange], None],
            scopes: frozenset[str],
            summary: str,
            own_auth: bool = False,
        ) -> Route:
            return Route(
                method, template, handler, scopes, summary, name_param=False, own_auth=own_auth
            )

        rows = [
            row("PUT", one, self.put, change, "Subscribe to streams"),
            row("GET", one, self.get, read, "A subscription, and how far it is"),
            row("DELETE", one, self.delete, frozenset({DELETE}), "Delete a subscription"),
            row("POST", one + "/streams", self.link, change, "Link streams by name"),
            row("DELETE", one + "/streams/{path*}", self.unlink, change, "Take a link away"),
            row("POST", one + "/claim", self.claim, change, "Claim the wake of a subscription"),
            row("POST", one + "/callback", self.callback, change, "Answer a webhook", True),
            row("POST", one + "/ack", self.ack, change, "Ack streams, keep the lease", True),
            row("POST", one + "/release", self.release, change, "Give a wake back", True),
            row(
                "GET", CONTROL + "/jwks.json", self.jwks, frozenset(),
                "The keys that verify webhooks", True,
            ),
        ]  # fmt: skip
        rows += [
            row(method, template, self.unknown, read, "Nothing else is here")
            for template in (CONTROL, CONTROL + "/{rest*}")
            for method in _METHODS
        ]
        return rows

    # Subscriptions

    def put(self, exchange: Exchange) -> None:
        """Create a subscription, or confirm one."""
        id = _id_of(exchange)
        config = bodies.config_of(exchange.body)
        _check_key(exchange.key, config)
        if config.type == WEBHOOK:
            checked = check_url(config.url, loopback=self._settings.ds_webhook_loopback)
            if isinstance(checked, UrlRefused):
                _refuse(exchange, Refusal(400, "WEBHOOK_URL_REJECTED", checked.reason))
                return
        origin = self._origin(exchange)

        def done(put: Put) -> None:
            self._answer_record(exchange, put.active, 201 if put.created else 200)

        may_use = partial(_check_state, exchange.key)
        self._answer(exchange, self._subscriptions.put(id, config, origin, may_use), done)

    def get(self, exchange: Exchange) -> None:
        """A subscription."""
        ticket = self._subscriptions.find(_id_of(exchange), partial(_check_state, exchange.key))
        self._answer(exchange, ticket, lambda active: self._answer_record(exchange, active, 200))

    def delete(self, exchange: Exchange) -> None:
        """Delete a subscription, if there is one."""
        ticket = self._subscriptions.delete(_id_of(exchange), partial(_check_state, exchange.key))
        self._answer(exchange, ticket, lambda _: _answer_nothing(exchange))

    def link(self, exchange: Exchange) -> None:
        """Link streams by name."""
        id = _id_of(exchange)
        paths = bodies.linked_paths(exchange.body)
        _check_names(exchange.key, map(topic_of, paths))
        ticket = self._subscriptions.link(id, paths, partial(_check_state, exchange.key))
        self._answer(exchange, ticket, lambda _: _answer_nothing(exchange))

    def unlink(self, exchange: Exchange) -> None:
        """Take a link by name away."""
        id, path = _id_of(exchange), parse_path(str(exchange.params[1]))
        ticket = self._subscriptions.unlink(id, path, partial(_check_state, exchange.key))
        self._answer(exchange, ticket, lambda _: _answer_nothing(exchange))

    # Wakes

    def claim(self, exchange: Exchange) -> None:
        """Claim the wake of a subscription."""
        id, worker = _id_of(exchange), bodies.worker_of(exchange.body)

        def done(claimed: ClaimedWake) -> None:
            exchange.answer(200, msgspec.json.encode(claimed), JSON, _NO_STORE)

        ticket = self._subscriptions.claim(id, worker, partial(_check_state, exchange.key))
        self._answer(exchange, ticket, done)

    def callback(self, exchange: Exchange) -> None:
        """What a receiver of webhooks says."""
        self._report(exchange, WEBHOOK)

    def ack(self, exchange: Exchange) -> None:
        """What a worker says."""
        self._report(exchange, PULL_WAKE)

    def release(self, exchange: Exchange) -> None:
        """A worker gives its wake back."""
        self._report(exchange, PULL_WAKE, releases=True)

    def _report(self, exchange: Exchange, kind: str, *, releases: bool = False) -> None:
        id, authorization = _id_of(exchange), exchange.header(b"authorization")
        if authorization[: len(_BEARER)].lower() != _BEARER:
            _refuse(exchange, rules.NO_TOKEN)
            return
        said = bodies.report_of(exchange.body)

        def done(reported: Reported) -> None:
            if releases:
                _answer_nothing(exchange)
            else:
                body = msgspec.json.encode({"ok": True, "next_wake": reported.next_wake})
                exchange.answer(200, body, JSON, _NO_STORE)

        token = authorization[len(_BEARER) :].strip()
        ticket = self._subscriptions.report(id, token, said, kind, releases=releases)
        self._answer(exchange, ticket, done)

    # Keys

    def jwks(self, exchange: Exchange) -> None:
        """The published keys."""

        def done(keys: list[SigningKey]) -> None:
            age = b"public, max-age=%d" % JWKS_AGE_SECONDS
            exchange.answer(200, published(keys), JWK_SET, ((b"cache-control", age),))

        self._answer(exchange, self._subscriptions.jwks(), done)

    def unknown(self, exchange: Exchange) -> None:
        """Nothing else is here."""
        raise NotFound(f"no route {exchange.path}", fix=f"subscriptions are at {CONTROL}")

    # Answers

    def _origin(self, exchange: Exchange) -> str:
        return origin_of(exchange, self._settings)

    def _answer_record(self, exchange: Exchange, active: ActiveSubscription, status: int) -> None:
        keys = self._subscriptions.keys.signing
        kid = signer_of(keys, self._clock.now_ms()).kid if keys else ""
        ends = self._subscriptions.ends
        record = bodies.record_of(active.state, ends, self._origin(exchange), kid)
        exchange.answer(status, record, JSON, _NO_STORE)

    def _answer(
        self, exchange: Exchange, ticket: Ticket[T | Refusal], done: Callable[[T], None]
    ) -> None:
        def answer(ticket: Ticket[T | Refusal]) -> None:
            if failed(exchange, ticket):
                return
            result = ticket.result()
            if isinstance(result, Refusal):
                _refuse(exchange, result)
            else:
                done(result)

        ticket.when_done(answering(exchange, answer))


def subscription_routes(context: ServerContext, subscriptions: Subscriptions) -> list[Route]:
    """The rows of subscriptions, for the dialect to add to its own."""
    return SubscriptionsApi(context, subscriptions).routes()


def _id_of(exchange: Exchange) -> str:
    id = exchange.params[0]
    bodies.check_id(id)
    return id


def _refuse(exchange: Exchange, refusal: Refusal) -> None:
    headers: Headers = ((b"www-authenticate", b"Bearer"),) if refusal.status == 401 else ()
    exchange.answer(*refusal_reply(refusal, headers))


def _answer_nothing(exchange: Exchange) -> None:
    exchange.answer(204, b"", b"", _NO_STORE)


# Keys with prefixes


def _check_state(key: Key | None, state: Subscription) -> None:
    if key is not None and key.has_prefixes:
        _check_key(key, state.config)
        _check_names(key, map(topic_of, state.links))


def _check_key(key: Key | None, config: SubscriptionConfig) -> None:
    """Refuse a key that may not use every stream that a subscription could be linked to."""
    if key is None:
        return
    names = [topic_of(path) for path in config.streams]
    if config.pattern:
        # Whatever it matches begins so.
        names.append(topic_of(Glob(config.pattern).prefix))
    if config.wake_stream:
        names.append(topic_of(config.wake_stream))
    _check_names(key, names)


def _check_names(key: Key | None, names: Iterable[str]) -> None:
    for name in names:
        if key is not None and not key.allows_name(name):
            raise Forbidden(
                f"this key may not use the name {name!r}",
                fix="use streams, patterns and a wake stream with one of its prefixes",
            )
