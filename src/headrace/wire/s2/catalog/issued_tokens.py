"""The access tokens that are out, by what they are known by: the digest of each, and its id.

Only this file makes a token, and says whether one still counts.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Iterator
from hashlib import sha256
from typing import Final

from headrace.core.clock import EngineClock, Random
from headrace.engine.topics.names import NameIndex
from headrace.wire.s2.catalog.entries import Token
from headrace.wire.s2.token_scopes import Grant

# Whatever begins so is a token of this server, or was one.
TOKEN_START: Final = b"hrs2_"
TOKEN_BYTES: Final = 32


def new_token(random: Random) -> tuple[str, str]:
    """A token to hand out, and the digest that is kept of it."""
    token = TOKEN_START + urlsafe_b64encode(random.bytes(TOKEN_BYTES)).rstrip(b"=")
    return token.decode(), sha256(token).hexdigest()


class TokenKey:
    """A token as the server counts what its holder has open; it opens nothing by itself."""

    __slots__ = ("digest", "in_flight")
    has_prefixes = True

    def __init__(self, digest: str) -> None:
        self.digest = digest
        self.in_flight = 0

    def allows_scope(self, scope: str) -> bool:
        """None: what a token allows is not said by scopes of keys."""
        return False

    def allows_name(self, name: str) -> bool:
        """None: nor by names of topics."""
        return False


class IssuedTokens:
    """The tokens of one server, as its catalog has them."""

    def __init__(self, clock: EngineClock) -> None:
        self._clock = clock
        self._by_digest: dict[str, tuple[Token, Grant]] = {}
        self._by_id: dict[str, Token] = {}
        self._keys: dict[str, TokenKey] = {}  # by digest, of those that have been used
        self._ids = NameIndex()

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, token: Token) -> None:
        """Let a token count from now on."""
        assert token.id not in self._by_id, token.id
        self._by_digest[token.digest] = token, Grant.of(token.scope)
        self._by_id[token.id] = token
        self._ids.add(token.id)

    def remove(self, token: Token) -> None:
        """Let a token count no more."""
        del self._by_digest[token.digest]
        self._keys.pop(token.digest, None)
        del self._by_id[token.id]
        self._ids.remove(token.id)

    def find(self, id: str) -> Token | None:
        """The token of an id, whether or not it has expired."""
        return self._by_id.get(id)

    def holder(self, digest: str) -> tuple[Token, Grant] | None:
        """The token with this digest and what it allows; None: there is none that counts."""
        found = self._by_digest.get(digest)
        return None if found is None or self.has_expired(found[0]) else found

    def key(self, digest: str) -> TokenKey | None:
        """What is counted for the token with this digest; None: there is none that counts."""
        if self.holder(digest) is None:
            return None
        return self._keys.setdefault(digest, TokenKey(digest))

    def has_expired(self, token: Token) -> bool:
        """Whether a token's time is over."""
        return 0 < token.expires_ms <= self._clock.now_ms()

    def after(self, id: str, prefix: str) -> Iterator[Token]:
        """The tokens beyond an id whose ids start with a prefix, in order."""
        return (self._by_id[found] for found in self._ids.after(id, prefix))

    def expired(self) -> list[Token]:
        """The tokens whose time is over."""
        return [token for token in self._by_id.values() if self.has_expired(token)]
