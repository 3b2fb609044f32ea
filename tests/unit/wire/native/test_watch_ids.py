"""Ids of a watch: what they look like, and that they mean the same when they come back."""

from __future__ import annotations

import base64
import json

import pytest

from headrace.core.limits import seq_max
from headrace.engine.live.follower import Position
from headrace.wire.native.watch_ids import NAMED_TOPICS_MAX, decode_id, encode_id


def many(count: int) -> list[Position]:
    return [Position(f"t{n:04}", (1 << 32) + n * 3, n * 1_000_003) for n in range(count)]


def test_an_id_is_base64url_of_compact_json_without_padding() -> None:
    text = encode_id([Position("a", 5, 1), Position("b:c", 6, 22)]).decode()
    assert "=" not in text
    decoded = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    assert decoded == b'{"$e":{"a":5,"b:c":6},"a":1,"b:c":22}'


@pytest.mark.parametrize("count", [1, 2, NAMED_TOPICS_MAX, NAMED_TOPICS_MAX + 1, 1_000])
def test_an_id_comes_back_as_it_went(count: int) -> None:
    positions = many(count)
    text = encode_id(positions).decode()
    assert text.startswith("cp_") == (count > NAMED_TOPICS_MAX)
    told = decode_id(text)
    assert told is not None
    for position in positions:
        assert told.of(position.name, position.epoch) == (position.epoch, position.cursor)


def test_an_opaque_id_is_short() -> None:
    assert len(encode_id(many(256))) < 13 * 256


def test_an_id_without_epochs_means_the_topic_that_is_there() -> None:
    told = decode_id(base64.urlsafe_b64encode(b'{"jobs":5}').decode())
    assert told is not None
    assert told.of("jobs", 9) == (9, 5)
    assert told.of("other", 9) is None


def test_an_opaque_id_does_not_tell_of_another_epoch() -> None:
    told = decode_id(encode_id(many(100)).decode())
    assert told is not None
    assert told.of("t0001", 7) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "*",
        "é",
        base64.urlsafe_b64encode(b"[]").decode(),
        base64.urlsafe_b64encode(b'{"a":"1"}').decode(),
        base64.urlsafe_b64encode(b'{"a":1.5}').decode(),
        base64.urlsafe_b64encode(b'{"$e":5,"a":1}').decode(),
        base64.urlsafe_b64encode(b"{" + b'"a":{' * 9_999).decode(),
        "cp_",
        "cp_AA",
        "cp_" + base64.urlsafe_b64encode(b"\x01\x01").decode(),
        "cp_" + base64.urlsafe_b64encode(b"\x01\x01\x80").decode(),
        "cp_" + base64.urlsafe_b64encode(b"\x01\x01" + b"\xff" * 20 + b"\x01").decode(),
    ],
)
def test_what_is_no_id_is_none(text: str) -> None:
    assert decode_id(text) is None


def test_a_cursor_that_is_no_seq_is_left_out() -> None:
    body = json.dumps({"a": -1, "b": seq_max + 1, "c": seq_max}).encode()
    told = decode_id(base64.urlsafe_b64encode(body).decode())
    assert told is not None
    assert [told.of(name, 1) for name in "abc"] == [None, None, (1, seq_max)]
