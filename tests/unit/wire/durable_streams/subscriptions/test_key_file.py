"""The secrets of subscriptions on disk: found again, noticed when damaged (durable_streams)."""

from __future__ import annotations

import pytest

from headrace.core.errors import CorruptionError, UnsupportedFormat
from headrace.storage.fs import read_file
from headrace.testing.simdisk import SimDisk
from headrace.wire.durable_streams.subscriptions.key_file import (
    SecretKeys,
    decode_keys,
    encode_keys,
)
from headrace.wire.durable_streams.subscriptions.signing import make_key
from tests.support.subscribed_servers import ROOT, SubscribedServer

KEYS = SecretKeys(b"s" * 32, [make_key(bytes(32), 7)])


def test_what_is_written_is_read() -> None:
    assert decode_keys(encode_keys(KEYS)) == KEYS


def test_every_damaged_byte_is_noticed() -> None:
    data = encode_keys(KEYS)
    for place in range(len(data)):
        broken = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises((CorruptionError, UnsupportedFormat)):
            decode_keys(broken)
    for length in range(len(data)):
        with pytest.raises(CorruptionError):
            decode_keys(data[:length])


def test_no_secret_is_in_a_topic(server: SubscribedServer, disk: SimDisk) -> None:
    """What is in a topic, everybody may read who may read."""
    server.subscribe("s", pattern="*")
    server.subscribe("p", pattern="*", wake_stream="w/x")
    server.append("a")
    token = server.claim("p").json["token"]
    keys = decode_keys(read_file(disk, "meta/subscription-keys"))
    page = server.engine.read("_subscriptions").result()
    kept = b"".join(record.data for record in page.records).decode()
    assert keys.signing[0].public in server.call("GET", ROOT + "__ds/jwks.json").reply.decode()
    for secret in (token, token.partition(".")[2], keys.token_secret.hex()):
        assert secret not in kept
