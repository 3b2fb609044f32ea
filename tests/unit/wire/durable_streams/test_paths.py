"""Which path is which topic: two paths never share one."""

from __future__ import annotations

import pytest

from headrace.core.errors import HeadraceError
from headrace.core.limits import topic_name_bytes_max
from headrace.core.settings import Settings
from headrace.wire.durable_streams.paths import name_at, origin_of, path_of, stream_name
from headrace.wire.exchange import Exchange
from headrace.wire.routes import PathRest


def name_of(raw: str) -> str:
    return stream_name(PathRest.of(raw.split("/")))


def status_of(raw: str) -> int:
    with pytest.raises(HeadraceError) as refused:
        name_of(raw)
    return refused.value.status


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("a", "ds:a"),
        ("a/b/c", "ds:a/b/c"),
        ("a%20b", "ds:a b"),
        ("%C3%A4", "ds:ä"),
        ("a/", "ds:a/"),
        ("a//b", "ds:a//b"),
        ("a%25", "ds:a%"),
        ("x/__ds", "ds:x/__ds"),
        ("__dsx", "ds:__dsx"),
    ],
)
def test_a_path_is_a_topic(raw: str, name: str) -> None:
    assert name_of(raw) == name
    assert name_at(path_of(name)) == name


@pytest.mark.parametrize(
    "raw", ["a%2Fb", "a%2fb", "%2F", "a%00", "a/%0A", "a%7F", "a%1f", "a%", "a%2", "a%zz", "%%20"]
)
def test_what_could_be_another_path_is_refused(raw: str) -> None:
    assert status_of(raw) == 400


@pytest.mark.parametrize("raw", [".", "..", "a/..", "../a", "a/./b", "a/%2e%2E/b", "%2e"])
def test_what_clients_take_out_of_a_path_is_refused(raw: str) -> None:
    assert status_of(raw) == 400


@pytest.mark.parametrize("raw", ["...", ".a", "a..", "a.b/..c", "a/.well-known"])
def test_other_dots_are_letters(raw: str) -> None:
    assert name_of(raw) == f"ds:{raw}"


@pytest.mark.parametrize("raw", ["__ds", "__ds/subscriptions/x", "%5F%5Fds/x"])
def test_the_reserved_segment_is_no_stream(raw: str) -> None:
    assert status_of(raw) == 404


def test_the_longest_path_fits_into_a_name() -> None:
    longest = "x" * (topic_name_bytes_max - len("ds:"))
    assert len(name_of(longest)) == topic_name_bytes_max
    assert status_of(longest + "x") == 400
    assert status_of("%C3%A4" * (len(longest) // 2 + 1)) == 400


@pytest.mark.parametrize(
    "path",
    ["", "/", "/v1/stream", "/v1/stream/", "v1/stream/a", "a", "/v0/topics/a", "/v1/stream/a?x=1",
     "/v1/stream/a#b", "http://h/v1/stream/a", "/v1/stream/\xe4", "/v1/stream/a%2Fb"],
)  # fmt: skip
def test_what_names_no_stream_is_refused(path: str) -> None:
    with pytest.raises(HeadraceError) as refused:
        name_at(path)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("headers", "settings", "origin"),
    [
        ({b"host": b"a.example:81"}, Settings(), "http://a.example:81"),
        ({b"host": b"h"}, Settings(tls_cert="c", tls_key="k"), "https://h"),
        ({b"host": b"h", b"x-forwarded-proto": b"https"}, Settings(), "https://h"),
        ({b"host": b"h", b"x-forwarded-proto": b"gopher"}, Settings(), "http://h"),
        ({}, Settings(), ""),
    ],
)
def test_the_origin_is_the_one_that_the_client_used(
    headers: dict[bytes, bytes], settings: Settings, origin: str
) -> None:
    assert origin_of(Exchange("PUT", "/v1/stream/a", "", headers, 0), settings) == origin
