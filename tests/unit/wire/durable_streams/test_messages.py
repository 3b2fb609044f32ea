"""The messages of a JSON body."""

from __future__ import annotations

import msgspec
import pytest

from headrace.core.errors import InvalidRequest
from headrace.storage.block import JsonPayloads
from headrace.wire.durable_streams.messages import messages_of


def parts(body: bytes) -> list[bytes]:
    found = messages_of(body)
    if isinstance(found, msgspec.Raw):
        return [bytes(found)]
    assert isinstance(found, JsonPayloads)
    return [bytes(part) for part in found.data]


@pytest.mark.parametrize(
    ("body", "messages"),
    [
        (b'{"a": 1}', [b'{"a": 1}']),
        (b'  "text" \n', [b'"text"']),
        (b"null", [b"null"]),
        (b"[1]", [b"1"]),
        (b' \n[ 1 , {"a":[2]} ]\t', [b"1", b'{"a":[2]}']),
        (b"[[1,2],[3,4]]", [b"[1,2]", b"[3,4]"]),
        (b"[[]]", [b"[]"]),
        ('["ä"]'.encode(), ['"ä"'.encode()]),
    ],
)
def test_an_array_is_taken_apart_once(body: bytes, messages: list[bytes]) -> None:
    assert parts(body) == messages


@pytest.mark.parametrize("body", [b"[]", b" [ ]\n"])
def test_an_empty_array_has_no_messages(body: bytes) -> None:
    assert messages_of(body) is None


@pytest.mark.parametrize(
    "body",
    [b"", b" ", b"{", b"[1", b"[1,]", b"1 2", b"[1] [2]", b"nul", b"{'a':1}", b'"\xff"',
     b'["\xff"]', b'"\\ud800"', b"\xef\xbb\xbf1", b"[" * 100_000 + b"]" * 100_000],
)  # fmt: skip
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        messages_of(body)
