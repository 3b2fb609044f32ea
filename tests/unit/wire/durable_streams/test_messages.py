"""The messages of a JSON body."""

from __future__ import annotations

import msgspec
import pytest

from headrace.core.errors import BatchTooLarge, InvalidRequest
from headrace.storage.block import JsonPayloads
from headrace.wire.durable_streams.messages import messages_of

MOST = 5


def parts(body: bytes) -> list[bytes]:
    found = messages_of(body, MOST)
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
    assert messages_of(body, MOST) is None


@pytest.mark.parametrize(
    "body",
    [b"", b" ", b"{", b"[1", b"[1,]", b"1 2", b"[1] [2]", b"nul", b"{'a':1}", b'"\xff"',
     b'["\xff"]', b'"\\ud800"', b"\xef\xbb\xbf1", b"[" * 100_000 + b"]" * 100_000],
)  # fmt: skip
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        messages_of(body, MOST)


@pytest.mark.parametrize(
    "element", [b"1", b"null", b'"a,b"', b"[1,2,3]", b'{"a":1,"b":[]}', b" {} "]
)
def test_more_messages_than_an_append_may_have(element: bytes) -> None:
    """Also where commas inside of elements hide how many there are."""
    for count in (MOST - 1, MOST):
        assert parts(b"[" + b",".join([element] * count) + b"]") == [element.strip()] * count
    for count in (MOST + 1, 100 * MOST):
        # The first one too many ends it, so what comes after is not looked at.
        for end in (b"]", b"", b", no JSON"):
            with pytest.raises(BatchTooLarge):
                messages_of(b"[" + b",".join([element] * count) + end, MOST)


def test_a_body_that_may_have_too_many_is_read_as_any_other() -> None:
    assert parts(b"[[1,2,3,4,5,6,7,8,9]]") == [b"[1,2,3,4,5,6,7,8,9]"]
    for body in (b"[[1,2,3,4,5,6,7,8,9]", b"[1,2,3,4,[,,,,,,]]", b'["\xff,,,,,,,,,,"]'):
        with pytest.raises(InvalidRequest):
            messages_of(body, MOST)
