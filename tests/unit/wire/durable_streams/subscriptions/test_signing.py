"""Keys of webhooks: what a receiver verifies, and when a key begins and ends (durable_streams)."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import urlsafe_b64decode

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from headrace.wire.durable_streams.subscriptions.signing import (
    DAY_MS,
    PUBLISHED_AFTER_MS,
    PUBLISHED_AHEAD_MS,
    SIGNING_KEYS_MAX,
    SigningKey,
    make_key,
    published,
    rotated,
    sign,
    signer_of,
)

NOW_MS = 1_700_000_000_000


def seed() -> bytes:
    return bytes(range(32))


def from_base64url(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def test_a_receiver_can_verify_a_webhook_with_the_published_key() -> None:
    key = make_key(seed(), NOW_MS)
    header = sign(key, b'{"a":1}', NOW_MS + 1_234)
    fields = dict(field.split("=", 1) for field in header.split(","))
    assert list(fields) == ["t", "kid", "ed25519"] and fields["t"] == "1700000001"
    (shown,) = json.loads(published([key]))["keys"]
    assert shown == {
        "kid": fields["kid"], "x": key.public, "kty": "OKP", "crv": "Ed25519", "use": "sig",
        "alg": "EdDSA",
    }  # fmt: skip
    assert shown["kid"].startswith("ds_")
    public = Ed25519PublicKey.from_public_bytes(from_base64url(shown["x"]))
    public.verify(from_base64url(fields["ed25519"]), b'1700000001.{"a":1}')
    with pytest.raises(InvalidSignature):
        public.verify(from_base64url(fields["ed25519"]), b'1700000001.{"a":2}')


def test_no_secret_is_published() -> None:
    key = make_key(seed(), NOW_MS)
    assert "seed" not in published([key]).decode()


def test_a_new_key_is_published_before_it_signs_and_the_old_one_after() -> None:
    days = 90
    (first,) = keys = rotated([], seed, NOW_MS, days)
    assert rotated(keys, seed, NOW_MS + days * DAY_MS - 1, days) is keys
    due_ms = NOW_MS + days * DAY_MS
    keys = rotated(keys, seed, due_ms, days)
    assert [key.created_ms for key in keys] == [NOW_MS, due_ms]
    assert signer_of(keys, due_ms) is first
    assert signer_of(keys, due_ms + PUBLISHED_AHEAD_MS - 1) is first
    assert signer_of(keys, due_ms + PUBLISHED_AHEAD_MS) is keys[-1]
    keys = rotated(keys, seed, due_ms + days * DAY_MS, days)
    assert [key.created_ms for key in keys] == [due_ms, due_ms + days * DAY_MS]


def test_a_key_stays_published_for_as_long_as_its_signatures_may_be_looked_at() -> None:
    keys: list[SigningKey] = []
    for day in range(12):
        keys = rotated(keys, seed, NOW_MS + day * DAY_MS, 1)
    newest_ms = NOW_MS + 11 * DAY_MS
    assert len(keys) <= SIGNING_KEYS_MAX
    assert keys[0].created_ms <= newest_ms - (SIGNING_KEYS_MAX - 1) * DAY_MS
    assert PUBLISHED_AFTER_MS >= DAY_MS


def test_a_key_may_sign_for_ever() -> None:
    keys = rotated([], seed, NOW_MS, 0)
    assert rotated(keys, seed, NOW_MS + 10_000 * DAY_MS, 0) is keys


def test_a_server_without_webhooks_does_not_import_what_signs() -> None:
    program = (
        "import sys, headrace.cli.compose\n"
        "assert 'headrace.wire.durable_streams.subscriptions.signing' in sys.modules\n"
        "assert not [name for name in sys.modules if name.startswith('cryptography')]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
