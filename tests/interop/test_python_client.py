"""The publisher's Python client against a real server: what goes in comes out."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from durable_streams import (
    DurableStream,
    SeqConflictError,
    StreamExistsError,
    StreamNotFoundError,
    stream,
)

PATIENCE_SECONDS = 60.0
VALUES: list[Any] = [
    {"a": 1},
    ["nested", [1, 2]],
    "word ü",
    7,
    1.5,
    None,
    True,
    {"deep": {"b": []}},
]


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with httpx.Client(trust_env=False, timeout=PATIENCE_SECONDS) as client:
        yield client


def test_json_round_trip(stream_url: str, http: httpx.Client) -> None:
    handle = DurableStream.create(stream_url, content_type="application/json", client=http)
    offsets = [handle.append(value).next_offset for value in VALUES]
    assert offsets == sorted(set(offsets))
    assert handle.head().offset == offsets[-1]
    with stream(stream_url, live=False, client=http) as response:
        assert response.read_json() == VALUES
        assert response.up_to_date and response.offset == offsets[-1]
    for after, offset in enumerate(offsets, start=1):
        with stream(stream_url, offset=offset, live=False, client=http) as response:
            assert response.read_json() == VALUES[after:]


def test_binary_round_trip(stream_url: str, http: httpx.Client) -> None:
    content_type = "application/octet-stream"
    handle = DurableStream.create(
        stream_url, content_type=content_type, client=http, batching=False
    )
    chance = random.Random(5)
    parts = [bytes(range(256)), b"\r\n\0", *(chance.randbytes(70_000) for _ in range(8))]
    offsets = [handle.append(part).next_offset for part in parts]
    assert offsets == sorted(set(offsets))
    with stream(stream_url, live=False, client=http) as response:
        assert response.content_type == content_type
        assert response.read_bytes() == b"".join(parts)
    with stream(stream_url, offset=offsets[4], live=False, client=http) as response:
        assert response.read_bytes() == b"".join(parts[5:])


def test_many_threads_append_each_value_once(stream_url: str, http: httpx.Client) -> None:
    """Calls of several threads are sent as batches, which the server takes apart."""
    handle = DurableStream.create(stream_url, content_type="application/json", client=http)
    threads = [
        threading.Thread(target=lambda name=name: [handle.append([name, n]) for n in range(40)])
        for name in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    with stream(stream_url, live=False, client=http) as response:
        found = response.read_json()
    for name in range(4):
        assert [n for who, n in found if who == name] == list(range(40))
    assert len(found) == 160


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_a_live_reader_sees_what_comes(stream_url: str, http: httpx.Client, live: str) -> None:
    handle = DurableStream.create(
        stream_url, content_type="application/json", client=http, body=["before"]
    )
    found: list[Any] = []
    caught_up = threading.Event()

    def follow() -> None:
        with (
            httpx.Client(trust_env=False, timeout=PATIENCE_SECONDS) as client,
            stream(stream_url, offset="-1", live=live, client=client) as response,
        ):
            for value in response.iter_json():
                found.append(value)
                caught_up.set()
                if value == "last":
                    return

    reader = threading.Thread(target=follow)
    reader.start()
    assert caught_up.wait(PATIENCE_SECONDS)
    for value in [*VALUES, "last"]:
        handle.append(value)
    reader.join(PATIENCE_SECONDS)
    assert found == ["before", *VALUES, "last"]


def test_a_producer_that_repeats_itself(stream_url: str, http: httpx.Client) -> None:
    """This client has no producer of its own, but sends the headers of one."""
    DurableStream.create(stream_url, content_type="text/plain", client=http)
    numbers = itertools.count()
    producer = {"Producer-Id": "writer", "Producer-Epoch": "0"}
    handle = DurableStream(
        stream_url,
        content_type="text/plain",
        client=http,
        headers={**producer, "Producer-Seq": lambda: str(next(numbers))},
        batching=False,
    )
    for text in ("a", "b", "c"):
        handle.append(text)
    for number, text in enumerate(("a", "b", "c")):
        headers = {**producer, "Producer-Seq": str(number), "Content-Type": "text/plain"}
        again = http.post(stream_url, content=text, headers=headers)
        assert (again.status_code, again.headers["Producer-Seq"]) == (204, "2")
    with stream(stream_url, live=False, client=http) as response:
        assert response.read_text() == "abc"


def test_sequences_and_errors_have_their_classes(stream_url: str, http: httpx.Client) -> None:
    handle = DurableStream.create(stream_url, content_type="text/plain", client=http)
    handle.append("a", seq="09")
    with pytest.raises(SeqConflictError):
        handle.append("b", seq="09")
    handle.append("c", seq="10")
    with pytest.raises(StreamExistsError):
        DurableStream.create(stream_url, content_type="application/json", client=http)
    handle.delete()
    with pytest.raises(StreamNotFoundError):
        handle.head()
    again = DurableStream.create(stream_url, content_type="text/plain", client=http)
    again.append("d")
    with stream(stream_url, live=False, client=http) as response:
        assert "".join(itertools.chain(response.iter_text())) == "d"
