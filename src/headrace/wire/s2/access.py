"""Who is asking, and what they may do: access tokens of this API, native keys, or anybody.

The rules this file owns.  An access token is held to its scope whether or not the server has keys;
one that was revoked or has expired is refused, which is seen from its form alone.  Any other
bearer is a native key where there are keys, and is let in where there are none: clients of this API
always send one.  A native key needs the scope of `_KEY_SCOPES`, and with prefixes only reaches
streams whose topics (`s2:<basin>/<stream>`) it may use, and no tokens and locations.  Whoever
issues a token grants no more than they may do themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Final

from headrace.wire.exchange import Exchange, Key
from headrace.wire.routes import ADMIN, DELETE, READ, WRITE
from headrace.wire.s2.catalog.entries import Token
from headrace.wire.s2.catalog.issued_tokens import TOKEN_START, IssuedTokens, TokenKey
from headrace.wire.s2.errors import S2Refusal, authn, permission_denied
from headrace.wire.s2.names import topic_name
from headrace.wire.s2.token_scopes import ALL_OPS, Grant

_BEARER: Final = b"bearer "

# The scope of a native key that each operation needs.
_KEY_SCOPES: Final[dict[str, str]] = {
    "list-basins": READ,
    "get-basin-config": READ,
    "account-metrics": READ,
    "list-locations": READ,
    "get-default-location": READ,
    "list-streams": READ,
    "get-stream-config": READ,
    "basin-metrics": READ,
    "check-tail": READ,
    "read": READ,
    "stream-metrics": READ,
    "create-stream": WRITE,
    "append": WRITE,
    "fence": WRITE,
    "trim": DELETE,
    "delete-stream": DELETE,
    "delete-basin": DELETE,
    "create-basin": ADMIN,
    "reconfigure-basin": ADMIN,
    "reconfigure-stream": ADMIN,
    "set-default-location": ADMIN,
    "list-access-tokens": ADMIN,
    "issue-access-token": ADMIN,
    "revoke-access-token": ADMIN,
}
assert _KEY_SCOPES.keys() == ALL_OPS

# Operations on what all basins share: not for a key that is bound to names.
_UNBOUND_OPS: Final = frozenset(
    {"list-access-tokens", "issue-access-token", "revoke-access-token", "set-default-location"}
)

Counted = Callable[[str, str | None], None]


class Caller:
    """Whoever sent a request, where anything is allowed.

    Names given to `allow` and `may_see…` are whole: a stream's after `stream_name`.
    """

    __slots__ = ("_count",)
    expires_ms = 0  # when what it holds expires; 0: never

    def __init__(self, count: Counted) -> None:
        self._count = count

    def allow(
        self,
        op: str,
        basin: str | None = None,
        stream: str | None = None,
        token_id: str | None = None,
    ) -> None:
        """Count an operation, or raise if this caller may not do it to what is named."""
        assert op in ALL_OPS, op
        refusal = self._refusal(op, basin, stream, token_id)
        if refusal is not None:
            raise refusal
        self._count(op, basin)

    def may(self, op: str, basin: str, stream: str) -> bool:
        """Whether an operation on a stream is allowed; it is not counted."""
        return self._refusal(op, basin, stream, None) is None

    def _refusal(
        self, op: str, basin: str | None, stream: str | None, token_id: str | None
    ) -> S2Refusal | None:
        return None

    def may_see_basin(self, name: str) -> bool:
        """Whether a basin is in the lists of this caller."""
        return True

    def may_see_stream(self, basin: str, name: str) -> bool:
        """Whether a stream is in the lists of this caller."""
        return True

    def streams_within(self, prefix: str) -> str | None:
        """The prefix of all streams with this prefix that this caller may see; None: it sees none.

        So a list need not look at what it does not show.
        """
        return prefix

    def may_see_token(self, id: str) -> bool:
        """Whether an access token is in the lists of this caller."""
        return True

    def may_grant(self, grant: Grant) -> bool:
        """Whether a token with this grant allows no more than this caller may do."""
        return True

    def stream_name(self, given: str) -> str:
        """The whole name of a stream, or of a place among streams, that this caller names."""
        return given

    def shown(self, name: str) -> str:
        """What this caller calls a stream."""
        return name


class KeyCaller(Caller):
    """Whoever holds a native key."""

    __slots__ = ("_key",)

    def __init__(self, count: Counted, key: Key) -> None:
        super().__init__(count)
        self._key = key

    def _refusal(
        self, op: str, basin: str | None, stream: str | None, token_id: str | None
    ) -> S2Refusal | None:
        key = self._key
        if not key.allows_scope(_KEY_SCOPES[op]):
            return permission_denied(f"this key lacks the scope {_KEY_SCOPES[op]}, for {op}")
        if not key.has_prefixes:
            return None
        if op in _UNBOUND_OPS:
            return permission_denied(f"{op} is not for a key that is bound to prefixes")
        # A basin itself needs a prefix that covers all of it; a list shows what is covered.
        if stream is not None and basin is not None:
            covered = key.allows_name(topic_name(basin, stream))
        else:
            covered = basin is None or op == "list-streams" or self.may_see_basin(basin)
        return None if covered else permission_denied(f"this key may not {op} there")

    def may_grant(self, grant: Grant) -> bool:
        # Names of a scope are not those of topics, so a key that is bound to some grants none.
        key = self._key
        scopes = {_KEY_SCOPES[op] for op in grant.ops}
        return not key.has_prefixes and all(map(key.allows_scope, scopes))

    def may_see_basin(self, name: str) -> bool:
        return self._key.allows_name(topic_name(name, ""))

    def may_see_stream(self, basin: str, name: str) -> bool:
        return self._key.allows_name(topic_name(basin, name))


class TokenCaller(Caller):
    """Whoever holds an access token."""

    __slots__ = ("_grant", "_prefix", "_token")

    def __init__(self, count: Counted, token: Token, grant: Grant) -> None:
        super().__init__(count)
        self._token = token
        self._grant = grant
        self._prefix = (token.scope.stream_prefix or "") if token.auto_prefix else ""

    @property
    def expires_ms(self) -> int:  # type: ignore[override]
        """When the token expires; 0: never."""
        return self._token.expires_ms

    def _refusal(
        self, op: str, basin: str | None, stream: str | None, token_id: str | None
    ) -> S2Refusal | None:
        grant = self._grant
        if op not in grant.ops:
            return permission_denied(f"this access token does not allow {op}")
        asked = (("basin", basin, grant.basins), ("stream", stream, grant.streams))
        for what, name, allowed in (*asked, ("access token", token_id, grant.tokens)):
            if name is not None and (allowed is None or not allowed.has(name)):
                return permission_denied(f"this access token does not allow {op} of this {what}")
        return None

    def may_see_basin(self, name: str) -> bool:
        return self._grant.basins is not None and self._grant.basins.has(name)

    def may_see_stream(self, basin: str, name: str) -> bool:
        return self._grant.streams is not None and self._grant.streams.has(name)

    def streams_within(self, prefix: str) -> str | None:
        streams = self._grant.streams
        own = "" if streams is None else streams.prefix or streams.exact or ""
        if streams is None or not (own.startswith(prefix) or prefix.startswith(own)):
            return None
        return max(own, prefix, key=len)

    def may_see_token(self, id: str) -> bool:
        return self._grant.tokens is not None and self._grant.tokens.has(id)

    def may_grant(self, grant: Grant) -> bool:
        return grant.is_within(self._grant)

    def stream_name(self, given: str) -> str:
        return self._prefix + given

    def shown(self, name: str) -> str:
        return name.removeprefix(self._prefix)


class Access:
    """Tells who is asking."""

    def __init__(self, tokens: IssuedTokens, has_keys: bool, count: Counted) -> None:
        self._tokens = tokens
        self._has_keys = has_keys
        self._count = count
        self._anybody = Caller(count)

    def shows_token(self, exchange: Exchange) -> bool:
        """Whether a request was sent with what looks like an access token."""
        return _token_digest(exchange) is not None

    def caller(self, exchange: Exchange) -> Caller:
        """Whoever sent a request; refuse one that nobody may send."""
        digest = _token_digest(exchange)
        if digest is not None:
            issued = self._tokens.holder(digest)
            if issued is None:
                raise authn("this access token was never issued, is revoked or has expired")
            return TokenCaller(self._count, *issued)
        if not self._has_keys:
            return self._anybody
        if exchange.key is None:
            raise authn("send the header `Authorization: Bearer <access token or key>`")
        return KeyCaller(self._count, exchange.key)

    def own_key(self, exchange: Exchange) -> TokenKey | None:
        """What is counted for the token of a request; None: it has none that counts."""
        digest = _token_digest(exchange)
        return None if digest is None else self._tokens.key(digest)

    def shown(self, exchange: Exchange, name: str) -> str:
        """What whoever sent a request calls a stream."""
        try:
            return self.caller(exchange).shown(name)
        except S2Refusal:
            return name


def _token_digest(exchange: Exchange) -> str | None:
    """What the token of a request is known by; None: it has no token of this API."""
    key = exchange.key
    if isinstance(key, TokenKey):
        return key.digest
    bearer = _bearer(exchange.headers.get(b"authorization", b""))
    if key is None and bearer.startswith(TOKEN_START):
        return sha256(bearer).hexdigest()
    return None


def _bearer(authorization: bytes) -> bytes:
    """The token of an `Authorization` header; b"" when it is of another kind."""
    if authorization[: len(_BEARER)].lower() != _BEARER:
        return b""
    return authorization[len(_BEARER) :].strip()
