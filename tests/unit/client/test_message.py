"""Requests and responses as bytes, addresses, and what may not be in a header."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import msgspec
import pytest

from headrace.client import AsyncClient, Client, Draft, Producer
from headrace.client.message import Address, Heads, ResponseReader
from headrace.core.errors import InvalidRequest, Unreachable
from tests.support.checkout import ROOT


def test_the_synchronous_client_is_what_the_generator_writes() -> None:
    command = [sys.executable, str(ROOT / "tools" / "unasync.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_both_clients_have_the_same_calls() -> None:
    def calls(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert calls(Client) == calls(AsyncClient) >= {"append", "diff", "follow", "segments", "ack"}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://localhost:4000", ("localhost", 4000, False, "")),
        ("localhost:4000", ("localhost", 4000, False, "")),
        ("127.0.0.1", ("127.0.0.1", 80, False, "")),
        ("https://a.example", ("a.example", 443, True, "")),
        ("http://[::1]:5/x/", ("::1", 5, False, "/x")),
    ],
)
def test_addresses(url, expected) -> None:
    assert Address.of(url) == expected


def test_the_authority_of_an_ipv6_address() -> None:
    assert Address.of("http://[::1]:5").authority == "[::1]:5"


@pytest.mark.parametrize(
    "url",
    ["", "ftp://x", "http://", "http://x:99999", "http://u:p@x", "http://x?a=1", "http://x#f"],
)
def test_what_is_no_address(url) -> None:
    with pytest.raises(InvalidRequest):
        Client(url)


@pytest.mark.parametrize("value", ["a\r\nx: y", "a\nb", "\x00", "é", "a\tb"])
def test_no_header_can_be_smuggled(value) -> None:
    heads = Heads("localhost", None)
    with pytest.raises(InvalidRequest):
        heads.head("GET", "/", {"x": value}, 0)
    with pytest.raises(InvalidRequest):
        Heads("localhost", value)
    with Client("http://localhost:1") as client, pytest.raises(InvalidRequest):
        client.append("t", [1], producer=Producer(value, 0, 0))


@pytest.mark.parametrize("topic", ["a b", "a/b", "a\r\nb", "é", "..", "a?b#c"])
def test_names_are_encoded(scripted, make_client, topic) -> None:
    scripted.script = [scripted.APPENDED]
    make_client(scripted.url).append(topic, [1])
    line = scripted.requests[0].split(b"\r\n")[0]
    assert line.count(b" ") == 2
    assert line.count(b"/") == 4  # three of the path, one of HTTP/1.1
    assert b"?" not in line.replace(b"?return_seqs=false", b"")


@pytest.mark.parametrize("payload", [object(), float, 1j])
def test_what_json_does_not_have(scripted, make_client, payload) -> None:
    with pytest.raises(InvalidRequest):
        make_client(scripted.url).append("t", [payload])
    assert scripted.requests == []


def test_a_response_in_pieces() -> None:
    whole = b"HTTP/1.1 200 OK\r\nX-A: b\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    for size in (1, 2, 7):
        reader = ResponseReader()
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
        found = [reader.feed(piece) for piece in pieces]
        assert [response for response in found if response] == [found[-1]]
        assert found[-1].body == b"abc"
        assert found[-1].headers["x-a"] == "b"
        assert found[-1].keep_alive


def test_too_many_headers() -> None:
    with pytest.raises(Unreachable):
        ResponseReader().feed(
            b"HTTP/1.1 200 OK\r\n" + b"".join(b"h%d: 1\r\n" % n for n in range(200)) + b"\r\n"
        )


def test_raw_payloads_are_sent_as_they_are(scripted, make_client) -> None:
    scripted.script = [scripted.APPENDED]
    raw = msgspec.Raw(b'{"b":1,  "a":1.0}')
    make_client(scripted.url).append("t", [Draft(raw, tag="x", meta={"m": 1})])
    assert b'[{"data":{"b":1,  "a":1.0},"tag":"x","meta":{"m":1}}]' in scripted.requests[0]


def test_token_and_prefix(scripted, make_client) -> None:
    scripted.script = [scripted.answer(200, '{"status":"ok","version":"1","uptime_ms":5}')]
    assert make_client(f"{scripted.url}/base/", token="secret").health().uptime_ms == 5
    head = scripted.requests[0].decode()
    assert head.startswith("GET /base/v0/health HTTP/1.1\r\nhost: 127.0.0.1:")
    assert "\r\nauthorization: Bearer secret\r\n" in head


def test_connections_are_bounded(scripted) -> None:
    """Ten threads, two connections: the others wait for their turn."""
    scripted.script = [scripted.APPENDED] * 100
    with Client(scripted.url, connections_max=2) as client:
        threads = [
            threading.Thread(target=lambda: [client.append("t", [1]) for _ in range(10)])
            for _ in range(10)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(scripted.requests) == 100
    assert scripted.connections <= 2


def test_tasks_share_bounded_connections(scripted) -> None:
    scripted.script = [scripted.APPENDED] * 100

    async def main() -> None:
        async with AsyncClient(scripted.url, connections_max=2) as client:
            await asyncio.gather(*(client.append("t", [1]) for _ in range(100)))
        await asyncio.sleep(0)

    asyncio.run(main())
    assert len(scripted.requests) == 100
    assert scripted.connections <= 2


def test_a_busy_client_says_so(scripted) -> None:
    """A call that gets no connection in time was not sent."""
    scripted.script = ["hang"]

    async def main() -> Unreachable:
        client = AsyncClient(scripted.url, connections_max=1, timeout_ms=50, deadline_ms=0)
        first = asyncio.create_task(client.delete_topic("a"))
        await asyncio.sleep(0)
        with pytest.raises(Unreachable) as caught:
            await client.delete_topic("b")
        with pytest.raises(Unreachable):
            await first
        client.close()
        await asyncio.sleep(0)
        return caught.value

    assert asyncio.run(main()).detail["outcome"] == "nothing"
    assert len(scripted.requests) == 1


def test_a_cancelled_call_gives_its_slot_back_and_not_its_connection(scripted) -> None:
    """A late answer must not be taken for that of the next call."""
    scripted.script = ["hang", scripted.APPENDED]

    async def main() -> int:
        async with AsyncClient(scripted.url, connections_max=1) as client:
            task = asyncio.create_task(client.append("t", [1]))
            while not scripted.requests:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            seq = (await client.append("t", [2])).first_seq
        await asyncio.sleep(0)
        return seq

    assert asyncio.run(main()) == 1
    assert scripted.connections == 2


def test_a_closed_client(scripted, make_client) -> None:
    with Client(scripted.url) as client:
        pass
    with pytest.raises(InvalidRequest, match="closed"):
        client.health()


def test_pyarrow_is_imported_only_by_the_calls_that_need_it() -> None:
    program = "import sys, headrace.client; print('pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("False", 0), done.stderr
