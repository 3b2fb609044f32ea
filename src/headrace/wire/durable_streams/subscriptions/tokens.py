"""The tokens that callbacks, acks and releases show: made of a secret, checked without a table.

A token names its subscription, the life of it (a subscription that is deleted and made again is
another one) and the generation of a wake.  So one of an earlier wake is still known as genuine, and
can be told from one that never was.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from hashlib import sha256

from headrace.core.limits import seq_max


def make_token(secret: bytes, subscription: str, life: str, generation: int) -> str:
    """Return the token of a wake.

    >>> token = make_token(b"secret", "orders", "1f", 3)
    >>> token_generation(b"secret", "orders", "1f", token)
    3
    >>> token_generation(b"secret", "orders", "20", token) is None
    True
    """
    said = f"{generation}\0{life}\0{subscription}".encode()
    mac = hmac.digest(secret, said, sha256)
    return f"{generation}.{urlsafe_b64encode(mac).rstrip(b'=').decode()}"


def token_generation(secret: bytes, subscription: str, life: str, token: str) -> int | None:
    """Return the generation that a token was made for; None: it was not made here."""
    text, _, _ = token.partition(".")
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(seq_max))):
        return None
    generation = int(text)
    made = make_token(secret, subscription, life, generation)
    genuine = hmac.compare_digest(made.encode(), token.encode("utf-8", "surrogatepass"))
    return generation if genuine else None
