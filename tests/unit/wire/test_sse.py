"""Server-sent events: the bytes that are sent, and what a client makes of them."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.wire import sse


def parsed(sent: bytes) -> tuple[str, str]:
    """Name and data of an event, as the WHATWG specification reads it."""
    name, data = "", []
    for line in re.split("\r\n|\r|\n", sent.decode()):
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
    return name, "\n".join(data)


@pytest.mark.parametrize("broken", [b"\n", b"\r", b"\r\n", b"\n\n", b"\r\r"])
def test_line_breaks_between_tokens_become_spaces(broken: bytes) -> None:
    sent = sse.event(b"record", b'{"a":' + broken + b"1}")
    assert sent == b'event: record\ndata: {"a":' + b" " * len(broken) + b"1}\n\n"


def test_the_space_after_the_colon() -> None:
    assert sse.split_event(b"data", b"line1") == b"event: data\ndata: line1\n\n"
    assert sse.split_event(b"data", b"line1", space=False) == b"event: data\ndata:line1\n\n"
    assert sse.with_id(b"7", sse.split_event(b"x", b"y")) == b"id: 7\nevent: x\ndata: y\n\n"


@pytest.mark.parametrize("space", [True, False])
@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", [b""]),
        (b"a\nb", [b"a", b"b"]),
        (b"a\rb", [b"a", b"b"]),
        (b"a\r\nb", [b"a", b"b"]),
        (b"a\n\rb", [b"a", b"", b"b"]),
        (b"a\n", [b"a", b""]),
        (b"\n\nevent: control", [b"", b"", b"event: control"]),
    ],
)
def test_each_line_has_its_own_data_field(data: bytes, lines: list[bytes], space: bool) -> None:
    field = b"data: " if space else b"data:"
    expected = b"event: data\n" + b"".join(field + line + b"\n" for line in lines) + b"\n"
    assert sse.split_event(b"data", data, space=space) == expected


@given(st.text(), st.booleans())
@example("  two spaces\n one", False)
def test_a_client_gets_the_text_with_its_line_breaks_as_newlines(text: str, space: bool) -> None:
    sent = sse.split_event(b"data", text.encode("utf-8", "ignore"), space=space)
    expected = re.sub("\r\n|\r", "\n", text.encode("utf-8", "ignore").decode())
    assert parsed(sent) == ("data", expected)
    assert sent.endswith(b"\n\n")
    assert b"\n\n" not in sent[:-2]
