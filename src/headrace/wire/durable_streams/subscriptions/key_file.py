"""The secrets of subscriptions: what tokens are made of, and the keys that sign webhooks.

They are in `meta/subscription-keys`, three lines, and in no topic, which everybody with a key may
read:

    headrace-subscription-keys 1
    <JSON>
    <XXH3-64 of the two lines before, 16 hex digits>

Only this file reads and writes them.  They are made when the first subscription needs them.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from xxhash import xxh3_64_hexdigest

from headrace.core.errors import CorruptionError
from headrace.core.steps import Steps, in_lane
from headrace.engine.engine import Engine
from headrace.engine.own_files import OWN_FILES_LANE
from headrace.storage.identity import OWN_FILES
from headrace.storage.wal.frame import refuse_newer
from headrace.wire.durable_streams.subscriptions.signing import (
    SEED_BYTES,
    SigningKey,
    is_due,
    load_library,
    rotated,
)

KEY_FILE: Final = "subscription-keys"
FORMAT_VERSION: Final = 1
SECRET_BYTES: Final = 32
assert f"meta/{KEY_FILE}" in OWN_FILES
_LINES = re.compile(rb"(headrace-subscription-keys (\d+)\n([^\n]*)\n)([0-9a-f]{16})\n")


class SecretKeys(msgspec.Struct, frozen=True):
    """What the file holds.  On disk: new fields have a default."""

    token_secret: bytes
    signing: list[SigningKey] = []


def encode_keys(keys: SecretKeys) -> bytes:
    """
    >>> encode_keys(SecretKeys(b"x")).splitlines()[1]
    b'{"token_secret":"eA==","signing":[]}'
    """
    lines = b"headrace-subscription-keys %d\n%b\n" % (FORMAT_VERSION, msgspec.json.encode(keys))
    return lines + xxh3_64_hexdigest(lines).encode() + b"\n"


def decode_keys(data: bytes) -> SecretKeys:
    """The keys, from a file that is whole."""
    found = _LINES.fullmatch(data)
    if found is not None and xxh3_64_hexdigest(found[1]).encode() == found[4]:
        refuse_newer(f"meta/{KEY_FILE}", int(found[2]), FORMAT_VERSION)
        return msgspec.json.decode(found[3], type=SecretKeys)
    raise CorruptionError(
        f"meta/{KEY_FILE} is damaged",
        fix="put it back from a copy; or remove it: then new keys sign webhooks, and workers and"
        " receivers have to wait for their next wake",
        detail={"file": f"meta/{KEY_FILE}"},
    )


class KeyFile:
    """The secrets of one server, as they are on disk."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._key_days = engine.settings.ds_webhook_key_days
        self._keys: SecretKeys | None = None

    @property
    def token_secret(self) -> bytes:
        """What tokens are made of."""
        assert self._keys is not None
        return self._keys.token_secret

    @property
    def signing(self) -> list[SigningKey]:
        """The published keys, oldest first."""
        return [] if self._keys is None else self._keys.signing

    def load(self) -> Steps[None]:
        """Read what is on disk."""
        data: bytes | None = yield self._engine.own_files.read(KEY_FILE)
        self._keys = None if data is None else decode_keys(data)

    def rotation_is_due(self) -> bool:
        """Return whether the newest key has signed for as long as one may."""
        return is_due(self.signing, self._engine.clock.now_ms(), self._key_days)

    def prepare(self, *, signing: bool) -> Steps[None]:
        """Make what is missing, and a new signing key if one is due."""
        random, now_ms = self._engine.random, self._engine.clock.now_ms()
        keys = self._keys or SecretKeys(random.bytes(SECRET_BYTES))
        if signing:
            yield in_lane(self._engine.runtime, OWN_FILES_LANE, load_library)
            made = rotated(keys.signing, lambda: random.bytes(SEED_BYTES), now_ms, self._key_days)
            if made is not keys.signing:
                keys = SecretKeys(keys.token_secret, made)
        if keys is not self._keys:
            yield self._engine.own_files.write(KEY_FILE, encode_keys(keys))
            self._keys = keys
