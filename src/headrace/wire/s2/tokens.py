"""`/v1/access-tokens`: issue, list and revoke access tokens.

The rules this file owns.  A token allows something, and no more than whoever issues it may do; it
lives no longer than the issuer's own.  It is shown once, when it is issued.
"""

from __future__ import annotations

from functools import partial

import msgspec
from msgspec.structs import replace

from headrace.core.runtime import Ticket
from headrace.engine.engine import Engine
from headrace.wire.exchange import Exchange
from headrace.wire.failures import answering, failed
from headrace.wire.rfc3339 import parse_rfc3339, rfc3339
from headrace.wire.routes import ADMIN, Route
from headrace.wire.s2.access import Access, Caller
from headrace.wire.s2.catalog.catalog import Catalog
from headrace.wire.s2.catalog.entries import Token
from headrace.wire.s2.errors import bad_json, bad_path, invalid
from headrace.wire.s2.names import token_id, token_id_prefix
from headrace.wire.s2.requests import answer_json, json_body, listing_of, page_of
from headrace.wire.s2.token_scopes import Grant, TokenScope

ALL = "/v1/access-tokens"
ONE = "/v1/access-tokens/{id}"

# What is kept of a token is bounded by the parts of its scope (`TOKEN_ENTRY_BYTES_MAX`): names, or
# prefixes of them, and operations.
SCOPE_NAME_BYTES_MAX = 512
SCOPE_OPS_MAX = 64  # as they are sent: each is kept once
# Of the text of a time, which is kept as it was given.
TIME_CHARS_MAX = 64


class IssueToken(msgspec.Struct, frozen=True):
    """The body of an issue."""

    id: str
    scope: TokenScope
    expires_at: str | None = None
    auto_prefix_streams: bool | None = None


class Issued(msgspec.Struct, frozen=True):
    """What is shown once."""

    access_token: str


class TokenInfo(msgspec.Struct, frozen=True):
    """A token as lists show it."""

    id: str
    expires_at: str | None
    auto_prefix_streams: bool
    scope: TokenScope

    @classmethod
    def of(cls, token: Token) -> TokenInfo:
        """What is shown of a token."""
        expires_at = token.expires_at or (rfc3339(token.expires_ms) if token.expires_ms else None)
        return cls(token.id, expires_at, token.auto_prefix, token.scope)


class TokenPage(msgspec.Struct, frozen=True):
    """A page of tokens."""

    access_tokens: list[TokenInfo]
    has_more: bool


class TokensApi:
    """The calls about access tokens."""

    def __init__(self, engine: Engine, catalog: Catalog, access: Access) -> None:
        self._clock = engine.clock
        self._catalog = catalog
        self._access = access

    def issue(self, exchange: Exchange) -> None:
        """Issue a token."""
        caller = self._access.caller(exchange)
        body = json_body(exchange, IssueToken)
        id = token_id(body.id, bad_json)
        expires_ms = self._expiry(body, caller)
        scope = _checked_scope(body)
        caller.allow("issue-access-token", token_id=id)
        if not caller.may_grant(Grant.of(scope)):
            raise invalid("The token would allow more than its issuer may do")
        prefixed, said = bool(body.auto_prefix_streams), _kept_text(body.expires_at or "")
        token = Token(id, "", scope, expires_ms, prefixed, said)
        issued = self._catalog.issue(token, partial(self._access.caller, exchange))
        issued.when_done(answering(exchange, partial(_issued, exchange)))

    def _expiry(self, body: IssueToken, caller: Caller) -> int:
        """When the token expires; 0: never."""
        if body.expires_at is None:
            return caller.expires_ms
        expires_ms = parse_rfc3339(body.expires_at)
        if expires_ms is None or len(body.expires_at) > TIME_CHARS_MAX:
            raise bad_json(f"expires_at is {body.expires_at[:80]!r}, not a time of RFC 3339")
        if expires_ms <= self._clock.now_ms():
            raise invalid("The expiry of an access token cannot be in the past")
        if caller.expires_ms and expires_ms > caller.expires_ms:
            raise invalid("The token would outlive the one that it is issued with")
        return expires_ms

    def list(self, exchange: Exchange) -> None:
        """List tokens by id."""
        caller = self._access.caller(exchange)
        caller.allow("list-access-tokens")
        asked = listing_of(exchange, token_id_prefix)
        tokens = self._catalog.tokens
        found = (
            token
            for token in tokens.after(asked.start_after, asked.prefix)
            if caller.may_see_token(token.id) and not tokens.has_expired(token)
        )
        page, more = page_of(found, asked.limit)
        answer_json(exchange, 200, TokenPage([TokenInfo.of(token) for token in page], more))

    def revoke(self, exchange: Exchange) -> None:
        """Revoke a token."""
        caller = self._access.caller(exchange)
        id = token_id(exchange.params[0], bad_path)
        caller.allow("revoke-access-token", token_id=id)
        self._catalog.revoke(id).when_done(answering(exchange, partial(_revoked, exchange)))


def _checked_scope(body: IssueToken) -> TokenScope:
    """The scope that is asked for, as it is kept: each operation once."""
    scope = body.scope
    if len(scope.ops or ()) > SCOPE_OPS_MAX:
        raise invalid(f"A scope lists at most {SCOPE_OPS_MAX} operations")
    if not scope.allowed_ops:
        raise invalid("Access token permissions cannot be empty")
    if body.auto_prefix_streams and scope.stream_prefix is None:
        raise invalid("Auto prefixing is only allowed for streams with prefix matching")
    for names in (scope.basins, scope.streams, scope.access_tokens):
        text = "" if names is None else names.exact or names.prefix or ""
        if "\0" in text:
            raise bad_json("a name in a scope must not have a NUL in it")
        if len(text.encode()) > SCOPE_NAME_BYTES_MAX:
            raise invalid(f"A scope names at most {SCOPE_NAME_BYTES_MAX} bytes")
    return scope if scope.ops is None else replace(scope, ops=list(dict.fromkeys(scope.ops)))


def _kept_text(expires_at: str) -> str:
    """The text of a time as lists show it, in a form that every client reads; "": by its value.

    >>> _kept_text("2030-01-01t00:00:00.123456z"), _kept_text("2030-01-01T00:00:60Z")
    ('2030-01-01T00:00:00.123456Z', '')
    """
    return "" if ":60" in expires_at else expires_at.upper()


def _issued(exchange: Exchange, ticket: Ticket[str]) -> None:
    if not failed(exchange, ticket):
        answer_json(exchange, 201, Issued(ticket.result()), ((b"cache-control", b"no-store"),))


def _revoked(exchange: Exchange, ticket: Ticket[None]) -> None:
    if not failed(exchange, ticket):
        exchange.answer(204, b"", b"")


def token_routes(engine: Engine, catalog: Catalog, access: Access) -> list[Route]:
    """The rows of access tokens."""
    api = TokensApi(engine, catalog, access)
    admin = frozenset({ADMIN})
    return [
        Route("GET", ALL, api.list, admin, "List access tokens"),
        Route("POST", ALL, api.issue, admin, "Issue an access token"),
        Route("DELETE", ONE, api.revoke, admin, "Revoke an access token"),
    ]
