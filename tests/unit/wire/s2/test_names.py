"""Names of S2: which there can be, and that each fault is one of the place where it stood."""

from __future__ import annotations

import base64

import pytest

from headrace.wire.s2 import names
from headrace.wire.s2.errors import S2Refusal, bad_json, bad_path

KEY = bytes(range(32))


@pytest.mark.parametrize("name", ["a" * 8, "a" * 48, "0-basin-9", "my--basin"])
def test_basins_have_these_names(name: str) -> None:
    assert names.basin_name(name, bad_path) == name


@pytest.mark.parametrize(
    "name",
    ["", "a" * 7, "a" * 49, "My-Basin", "-my-basin", "my-basin-", "my_basin", "b\u00e4sin-12"],
)
def test_basins_do_not_have_these_names(name: str) -> None:
    for refuse in (bad_path, bad_json):
        with pytest.raises(S2Refusal) as caught:
            names.basin_name(name, refuse)
        assert caught.value.code == refuse.__name__


def test_a_prefix_of_basins_may_be_short_and_end_anywhere() -> None:
    for prefix in ("", "a", "my-", "a" * 48):
        assert names.basin_prefix(prefix, bad_path) == prefix
    for prefix in ("-", "A", "a" * 49, "a/"):
        with pytest.raises(S2Refusal):
            names.basin_prefix(prefix, bad_path)


@pytest.mark.parametrize(
    "name", ["a", "orders/eu", "...", "\u00e9" * 256, "x" * 512, " ", "%2F", "\n"]
)
def test_streams_have_these_names(name: str) -> None:
    assert names.stream_name(name, bad_path) == name


@pytest.mark.parametrize("name", ["", ".", "..", "\u00e9" * 257, "x" * 513, "a\0b", "\ud800"])
def test_streams_do_not_have_these_names(name: str) -> None:
    with pytest.raises(S2Refusal):
        names.stream_name(name, bad_path)


def test_bytes_are_counted_where_a_name_is_bounded() -> None:
    for check, bytes_max in (
        (names.token_id, 96),
        (names.fencing_token, 36),
        (names.request_token, 36),
        (names.stream_prefix, 512),
        (names.token_id_prefix, 96),
    ):
        assert check("\u00e9" * (bytes_max // 2), bad_json)
        for longer in ("x" * (bytes_max + 1), "\u00e9" * (bytes_max // 2 + 1)):
            with pytest.raises(S2Refusal):
                check(longer, bad_json)


def test_a_location_has_these_characters_only() -> None:
    assert names.location_name("aws:us-east-1.a", bad_json) == "aws:us-east-1.a"
    for name in ("", "a b", "a/b", "x" * 65, "\u00e9"):
        with pytest.raises(S2Refusal):
            names.location_name(name, bad_json)


def test_basin_and_stream_come_back_from_a_topic() -> None:
    for stream in ("a", "a/b/", "/", "s2:x/y"):
        assert names.split_topic(names.topic_name("my-basin", stream)) == ("my-basin", stream)


def test_an_encryption_key_is_32_bytes_of_base64() -> None:
    assert names.encryption_key(base64.b64encode(KEY).decode(), "aegis-256") == KEY


@pytest.mark.parametrize(
    "text",
    [
        "",
        "secret",
        base64.b64encode(KEY[:31]).decode(),
        base64.b64encode(KEY * 2).decode(),
        "-" * 44,
    ],
)
def test_another_key_is_refused_with_the_cipher_and_without_the_key(text: str) -> None:
    with pytest.raises(S2Refusal) as caught:
        names.encryption_key(text, "aes-256-gcm")
    assert caught.value.code == "bad_header"
    assert "aes-256-gcm" in str(caught.value)
    assert not text or text not in str(caught.value)
