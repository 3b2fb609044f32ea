"""Records of streams with a cipher: sealed with the key of a request, opened with the same one.

Only this file knows the stored form of a sealed record (docs/formats/s2_sealed_records.md).  Its
body is stored as ciphertext of the same length.  In place of its headers it has two: `s2-cipher`,
the name of the cipher, and `s2-sealed`: nonce, tag, and the ciphertext of the headers.  Headers and
body are one message with one tag, and the id of the stream is bound in, so that no part of a record
can be put into another, nor a record into another stream.  Command records are not sealed: the
server has to read them.

Keys are used and forgotten; the server keeps none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from headrace.core.clock import Random
from headrace.storage.record_headers import Header, decode_headers, encode_headers
from headrace.wire.s2.errors import S2Refusal, decryption_failed, not_implemented

AES_256_GCM: Final = "aes-256-gcm"
AEGIS_256: Final = "aegis-256"
CIPHER_HEADER: Final = b"s2-cipher"
SEALED_HEADER: Final = b"s2-sealed"


class _Aead(Protocol):
    """A cipher with its key; the tag is at the end of what it encrypts."""

    nonce_bytes: int
    tag_bytes: int

    def encrypt(self, nonce: bytes, data: bytes, bound: bytes) -> bytes: ...

    def decrypt(self, nonce: bytes, data: bytes, bound: bytes) -> bytes:
        """Raise `ValueError` if key, data or what is bound in are not those of the encryption."""
        ...


class _AesGcm:
    nonce_bytes = 12
    tag_bytes = 16

    def __init__(self, key: bytes) -> None:
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise _not_installed(AES_256_GCM, "cryptography") from None
        self._cipher = AESGCM(key)
        self._mismatch = InvalidTag

    def encrypt(self, nonce: bytes, data: bytes, bound: bytes) -> bytes:
        return self._cipher.encrypt(nonce, data, bound)

    def decrypt(self, nonce: bytes, data: bytes, bound: bytes) -> bytes:
        try:
            return self._cipher.decrypt(nonce, data, bound)
        except self._mismatch:
            raise ValueError("the tag does not match") from None


class _Aegis:
    nonce_bytes = 32
    tag_bytes = 32

    def __init__(self, key: bytes) -> None:
        try:
            import pyaegis
        except ImportError:
            raise _not_installed(AEGIS_256, "pyaegis") from None
        self._cipher = pyaegis.Aegis256(self.tag_bytes)
        self._mismatch = pyaegis.DecryptionError
        self._key = key

    def encrypt(self, nonce: bytes, data: bytes, bound: bytes) -> bytes:
        return bytes(self._cipher.encrypt(self._key, nonce, data, bound))

    def decrypt(self, nonce: bytes, data: bytes, bound: bytes) -> bytes:
        try:
            return bytes(self._cipher.decrypt(self._key, nonce, data, bound))
        except self._mismatch:
            raise ValueError("the tag does not match") from None


def _not_installed(cipher: str, package: str) -> S2Refusal:
    return not_implemented(
        f"this server cannot encrypt with {cipher}: its package {package} is not installed"
    )


_AEADS: Final[dict[str, type[_AesGcm | _Aegis]]] = {AES_256_GCM: _AesGcm, AEGIS_256: _Aegis}


class RecordCipher:
    """Seals and opens the records of one stream with one key.

    >>> from headrace.core.clock import SeededRandom
    >>> cipher = RecordCipher(AES_256_GCM, bytes(32), b"a stream", SeededRandom(1))
    >>> headers, body = cipher.seal([(b"name", b"value")], b"secret")
    >>> [name for name, _ in headers], len(body), b"secret" in body
    ([b's2-cipher', b's2-sealed'], 6, False)
    >>> cipher.open(headers, body)
    ([(b'name', b'value')], b'secret')
    """

    __slots__ = ("_aead", "_bound", "_name", "_random")

    def __init__(self, name: str, key: bytes, stream_id: bytes, random: Random) -> None:
        self._aead: _Aead = _AEADS[name](key)
        self._name = name.encode()
        self._bound = stream_id
        self._random = random

    def seal(self, headers: Sequence[Header] | None, body: bytes) -> tuple[list[Header], bytes]:
        """A record as it is stored."""
        aead = self._aead
        nonce = self._random.bytes(aead.nonce_bytes)
        before = encode_headers(headers) or b""
        sealed = aead.encrypt(nonce, before + body, self._bound)
        body_at, tag_at = len(before), len(sealed) - aead.tag_bytes
        value = nonce + sealed[tag_at:] + sealed[:body_at]
        return [(CIPHER_HEADER, self._name), (SEALED_HEADER, value)], sealed[body_at:tag_at]

    def open(
        self, headers: Sequence[Header] | None, body: bytes
    ) -> tuple[list[Header] | None, bytes]:
        """A record as it was appended, or raise that the key is not the one it was sealed with."""
        aead = self._aead
        if headers is None or len(headers) != 2 or headers[1][0] != SEALED_HEADER:
            raise decryption_failed("a record of this stream was not sealed")
        value = headers[1][1]
        nonce, tag = value[: aead.nonce_bytes], value[aead.nonce_bytes :][: aead.tag_bytes]
        before = value[aead.nonce_bytes + aead.tag_bytes :]
        try:
            plain = aead.decrypt(nonce, before + body + tag, self._bound)
        except ValueError:
            raise decryption_failed("a record cannot be decrypted with this key") from None
        at = len(before)
        return (decode_headers(plain[:at]) if at else None), plain[at:]
