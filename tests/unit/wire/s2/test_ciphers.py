"""Sealed records: what opens them, what does not, and what is hidden."""

from __future__ import annotations

import struct
import sys

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from headrace.core.clock import SeededRandom
from headrace.storage.record_headers import Header
from headrace.wire.s2.ciphers import AEGIS_256, AES_256_GCM, RecordCipher
from headrace.wire.s2.errors import S2Refusal

KEY = bytes(range(32))
HEADERS: list[Header] = [(b"name", b"value"), (b"name", b"")]


def cipher_of(
    name: str = AES_256_GCM, key: bytes = KEY, stream: bytes = b"id of a stream"
) -> RecordCipher:
    if name == AEGIS_256:
        pytest.importorskip("pyaegis")
    return RecordCipher(name, key, stream, SeededRandom(7))


@pytest.mark.parametrize("name", [AES_256_GCM, AEGIS_256])
@pytest.mark.parametrize("headers", [None, HEADERS])
@pytest.mark.parametrize("body", [b"", b"secret", bytes(100_000)])
def test_what_was_sealed_is_opened(name: str, headers: list[Header] | None, body: bytes) -> None:
    cipher = cipher_of(name)
    sealed, hidden = cipher.seal(headers, body)
    assert len(hidden) == len(body)
    assert [first for first, _ in sealed] == [b"s2-cipher", b"s2-sealed"]
    assert sealed[0][1] == name.encode()
    if body:
        assert hidden != body
    assert cipher_of(name).open(sealed, hidden) == (headers, body)


@pytest.mark.parametrize("name", [AES_256_GCM, AEGIS_256])
def test_another_key_stream_or_byte_opens_nothing(name: str) -> None:
    sealed, hidden = cipher_of(name).seal(HEADERS, b"secret")
    value = sealed[1][1]
    changed = [(sealed[0]), (b"s2-sealed", value[:-1] + bytes([value[-1] ^ 1]))]
    tries = [
        (cipher_of(name, key=bytes(32)), sealed, hidden),
        (cipher_of(name, stream=b"id of another"), sealed, hidden),
        (cipher_of(name), changed, hidden),
        (cipher_of(name), sealed, hidden[:-1] + bytes([hidden[-1] ^ 1])),
        (cipher_of(name), sealed, hidden[:-1]),
        (cipher_of(name), [sealed[0], (b"s2-sealed", b"")], hidden),
        (cipher_of(name), [], hidden),
        (cipher_of(name), None, hidden),
    ]
    for cipher, headers, body in tries:
        with pytest.raises(S2Refusal) as refused:
            cipher.open(headers, body)
        assert refused.value.code == "decryption_failed"


def test_two_records_never_have_the_same_nonce() -> None:
    cipher = cipher_of()
    values = {cipher.seal(None, b"same")[0][1][1][:12] for _ in range(100)}
    assert len(values) == 100


def test_the_stored_form_is_the_documented_one() -> None:
    """docs/formats/s2_sealed_records.md, by the library alone."""
    sealed, hidden = cipher_of().seal([(b"k", b"vw")], b"body")
    value = sealed[1][1]
    nonce, tag, before = value[:12], value[12:28], value[28:]
    plain = AESGCM(KEY).decrypt(nonce, before + hidden + tag, b"id of a stream")
    assert plain == struct.pack("<I", 1) + b"k" + struct.pack("<I", 2) + b"vw" + b"body"


def test_a_server_without_the_package_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyaegis", None)
    with pytest.raises(S2Refusal) as refused:
        RecordCipher(AEGIS_256, KEY, b"id of a stream", SeededRandom(7))
    assert (refused.value.status, refused.value.code) == (501, "not_implemented")
