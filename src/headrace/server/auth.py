"""API keys: how they are written in the settings, kept, found and taken from a request.

The rules this file alone owns: the grammar of `HEADRACE_API_KEYS`; a key is kept as its SHA-256
digest and nothing else; a presented token is compared with every key, in constant time, whether or
not one has matched already.  What a key is needed for is decided in `server/access.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from hmac import compare_digest
from typing import Final
from urllib.parse import unquote_to_bytes

from headrace.core.errors import ConfigError
from headrace.core.settings import Settings
from headrace.wire.routes import ADMIN, DELETE, READ, WRITE

ALL_SCOPES: Final = frozenset((READ, WRITE, DELETE, ADMIN))
_SCOPES: Final = {
    "read": frozenset((READ,)),
    "r": frozenset((READ,)),
    "write": frozenset((WRITE,)),
    "w": frozenset((WRITE,)),
    "rw": frozenset((READ, WRITE)),
    "delete": frozenset((DELETE,)),
    "del": frozenset((DELETE,)),
    "d": frozenset((DELETE,)),
    "admin": frozenset((ADMIN,)),
    "a": frozenset((ADMIN,)),
}

_BEARER: Final = b"Bearer "
TOKEN_PARAMETER: Final = b"token"


class ApiKey:
    """One key: what it may do and to which names; `in_flight` is its requests in progress."""

    __slots__ = ("bytes", "digest", "in_flight", "prefixes", "scopes")

    def __init__(self, digest: bytes, scopes: frozenset[str], prefixes: tuple[bytes, ...]) -> None:
        assert len(digest) == sha256().digest_size
        assert scopes <= ALL_SCOPES and scopes
        assert b"" not in prefixes, "an empty prefix would allow every name"
        self.digest = digest
        self.scopes = scopes
        self.prefixes = prefixes  # none: any name
        self.bytes = len(digest) + sum(map(len, prefixes))
        self.in_flight = 0

    def allows_scope(self, scope: str) -> bool:
        return scope in self.scopes

    def allows_name(self, name: str) -> bool:
        """Whether the name starts with one of the key's prefixes, byte by byte."""
        if not self.prefixes:
            return True
        return name.encode("utf-8", "surrogatepass").startswith(self.prefixes)

    @property
    def has_prefixes(self) -> bool:
        return bool(self.prefixes)


class KeyRing:
    """All keys; false when there are none, which turns auth off.

    >>> ring = KeyRing.parse("s3cret:rw:orders:|audit., other")
    >>> key = ring.find(b"s3cret")
    >>> sorted(key.scopes), key.allows_name("orders:eu"), key.allows_name("ordersx")
    (['read', 'write'], True, False)
    >>> ring.find(b"guess") is None, bool(KeyRing.parse(" , "))
    (True, False)
    """

    def __init__(self, keys: list[ApiKey]) -> None:
        self._keys = tuple(keys)

    @classmethod
    def parse(cls, text: str, settings: Settings | None = None) -> KeyRing:
        """Keys as the setting writes them; `ConfigError` names the entry, never what is in it."""
        keys: dict[bytes, ApiKey] = {}
        bounds = settings or Settings()
        if len(text) > bounds.api_keys_bytes_max:
            raise ConfigError(
                f"HEADRACE_API_KEYS has {len(text)} bytes, and may have "
                f"{bounds.api_keys_bytes_max}",
                fix="name fewer keys, or raise HEADRACE_API_KEYS_BYTES_MAX",
                detail={"setting": "api_keys", "limit": "api_keys_bytes_max"},
            )
        for number, entry in enumerate(text.split(","), start=1):
            if not entry.strip():
                continue
            if len(entry) > bounds.api_key_bytes_max:
                what = f"has {len(entry)} bytes, and may have {bounds.api_key_bytes_max}"
                fix = "name fewer prefixes, or raise HEADRACE_API_KEY_BYTES_MAX"
                raise _refusal(number, what, fix)
            key = _parse_entry(number, entry)
            if key.digest in keys:
                raise _refusal(number, "repeats a key of an earlier entry", "name each key once")
            keys[key.digest] = key
        return cls(list(keys.values()))

    def __bool__(self) -> bool:
        return bool(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def held_bytes(self) -> int:
        """What all keys hold: digests and prefixes."""
        return sum(key.bytes for key in self._keys)

    def find(self, token: bytes) -> ApiKey | None:
        """The key that a token is, if any."""
        digest = sha256(token).digest()
        found = None
        for key in self._keys:
            if compare_digest(key.digest, digest):
                found = key
        return found


def _parse_entry(number: int, entry: str) -> ApiKey:
    """`key`, `key:scopes`, `key:scopes:prefixes` or `key::prefixes`."""
    secret, _, rest = entry.partition(":")
    scopes_text, _, prefixes_text = rest.partition(":")
    secret = secret.strip()
    if not secret:
        raise _refusal(number, "has no key", "write key:scopes:prefixes")
    scopes = ALL_SCOPES
    if scopes_text.strip():
        scopes = frozenset()
        for word in scopes_text.split("+"):
            known = _SCOPES.get(word.strip().lower())
            if known is None:
                # The word is not repeated: it may be the rest of a key that has a colon in it.
                fix = "use read, write, delete, admin or rw, joined by +; a key has no colon"
                raise _refusal(number, "has an unknown scope", fix)
            scopes |= known
    prefixes = tuple(_bytes(word.strip()) for word in prefixes_text.split("|") if word.strip())
    if prefixes_text.strip() and not prefixes:
        raise _refusal(number, "has only empty prefixes", "leave them out to allow every name")
    return ApiKey(sha256(_bytes(secret)).digest(), scopes, prefixes)


def _bytes(text: str) -> bytes:
    # What the environment holds need not be UTF-8; Python keeps such bytes as surrogates.
    return text.encode("utf-8", "surrogateescape")


def _refusal(number: int, what: str, fix: str) -> ConfigError:
    return ConfigError(
        f"HEADRACE_API_KEYS: entry {number} {what}", fix=fix, detail={"setting": "api_keys"}
    )


def bearer_token(authorization: bytes) -> bytes | None:
    """The token of an `Authorization` header, or None when it is of another kind.

    >>> bearer_token(b"Bearer  k1 "), bearer_token(b"bearer k1"), bearer_token(b"")
    (b'k1', None, None)
    """
    if not authorization.startswith(_BEARER):
        return None
    return authorization[len(_BEARER) :].strip()


def query_token(query: str) -> bytes | None:
    """The first `token` of a query string, decoded as a form is.

    >>> query_token("lenient=1&token=a%2Bb+c&token=d"), query_token("t=1")
    (b'a+b c', None)
    """
    for name, value in _pairs(query):
        if name == TOKEN_PARAMETER:
            return value
    return None


def redacted(query: str) -> str:
    """A query string that may be logged: every token is gone.

    >>> redacted("max=2&token=s3cret&%74oken=s3cret&x")
    'max=2&token=(secret)&%74oken=(secret)&x'
    """
    parts = query.split("&")
    for at, (name, _) in enumerate(_pairs(query)):
        if name == TOKEN_PARAMETER:
            parts[at] = f"{parts[at].partition('=')[0]}=(secret)"
    return "&".join(parts)


def _pairs(query: str) -> Iterator[tuple[bytes, bytes]]:
    for part in query.split("&"):
        name, _, value = part.partition("=")
        yield _form_decoded(name), _form_decoded(value)


def _form_decoded(text: str) -> bytes:
    return unquote_to_bytes(text.replace("+", " "))
