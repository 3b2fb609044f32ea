"""The keys that webhooks are signed with: made, rotated, published, used.

The rules this file owns.  A new key is published for `PUBLISHED_AHEAD_MS` before it signs, because
receivers keep the published list for a while.  A key that signs no more stays published for
`PUBLISHED_AFTER_MS`.  The library is imported for the first webhook.
"""

from __future__ import annotations

import importlib
from base64 import urlsafe_b64encode
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import msgspec

from headrace.core.errors import InvalidRequest

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SEED_BYTES: Final = 32
# As long as `Cache-Control` lets the published list be kept.
JWKS_AGE_SECONDS: Final = 300
PUBLISHED_AHEAD_MS: Final = 2 * JWKS_AGE_SECONDS * 1_000
DAY_MS: Final = 86_400_000
PUBLISHED_AFTER_MS: Final = 7 * DAY_MS
SIGNING_KEYS_MAX: Final = 8


class SigningKey(msgspec.Struct, frozen=True):
    """An Ed25519 key; `seed` is the secret half."""

    kid: str
    public: str  # base64url, as it is published
    seed: bytes
    created_ms: int


class PublishedKey(msgspec.Struct, frozen=True):
    """The public half, as a JSON Web Key."""

    kid: str
    x: str
    kty: str = "OKP"
    crv: str = "Ed25519"
    use: str = "sig"
    alg: str = "EdDSA"


class KeySet(msgspec.Struct, frozen=True):
    """The JSON Web Keys of a server."""

    keys: list[PublishedKey]


def base64url(data: bytes) -> str:
    """
    >>> base64url(b"\\xff\\xfe")
    '__4'
    """
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def make_key(seed: bytes, now_ms: int) -> SigningKey:
    """Return the key of 32 random bytes."""
    assert len(seed) == SEED_BYTES, len(seed)
    public = base64url(_private(seed).public_key().public_bytes_raw())
    # The thumbprint of RFC 7638: the required members, in order, without spaces.
    thumbprint = sha256(f'{{"crv":"Ed25519","kty":"OKP","x":"{public}"}}'.encode()).digest()
    return SigningKey(f"ds_{base64url(thumbprint)}", public, seed, now_ms)


def signer_of(keys: list[SigningKey], now_ms: int) -> SigningKey:
    """Return the key that signs now: the newest that has been published for long enough."""
    ready = [key for key in keys if key.created_ms <= now_ms - PUBLISHED_AHEAD_MS]
    return ready[-1] if ready else keys[0]


def is_due(keys: list[SigningKey], now_ms: int, key_days: int) -> bool:
    """Return whether another key is to take the place of the newest one; 0 days: never."""
    return bool(keys and key_days) and keys[-1].created_ms <= now_ms - key_days * DAY_MS


def rotated(
    keys: list[SigningKey], seed: Callable[[], bytes], now_ms: int, key_days: int
) -> list[SigningKey]:
    """Return the keys of a server from now on; the very same list when none is due.

    `key_days`: how long a key signs; 0: for ever.
    """
    if not keys:
        return [make_key(seed(), now_ms)]
    if not is_due(keys, now_ms, key_days):
        return keys
    newer = keys[1:]
    # A key is of use until the next one has signed for as long as it stays published.
    kept = [
        key
        for key, following in zip(keys, newer, strict=False)
        if following.created_ms > now_ms - PUBLISHED_AHEAD_MS - PUBLISHED_AFTER_MS
    ]
    return [*kept[-(SIGNING_KEYS_MAX - 2) :], keys[-1], make_key(seed(), now_ms)]


def published(keys: list[SigningKey]) -> bytes:
    """Return the JSON Web Key Set."""
    return msgspec.json.encode(KeySet([PublishedKey(key.kid, key.public) for key in keys]))


def sign(key: SigningKey, body: bytes, now_ms: int) -> str:
    """Return the value of `Webhook-Signature` for a body."""
    seconds = now_ms // 1_000
    signature = _private(key.seed).sign(b"%d." % seconds + body)
    return f"t={seconds},kid={key.kid},ed25519={base64url(signature)}"


def load_library() -> None:
    """Import what signs; it takes tens of milliseconds, so not where others wait for it."""
    try:
        importlib.import_module("cryptography.hazmat.primitives.asymmetric.ed25519")
    except ImportError:
        raise InvalidRequest(
            "webhooks are signed by a package that is not installed here",
            fix="install `headrace[webhooks]` beside the server, or use type pull-wake",
        ) from None


def _private(seed: bytes) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(seed)
