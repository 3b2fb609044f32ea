"""POSTs of a server itself, to receivers on real sockets: bounded, and never somewhere else."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace.core.settings import Settings
from headrace.server import outbound_posts
from headrace.server.outbound_posts import HttpPosts
from headrace.wire.outbound import OutboundPost, PostResult
from tests.support.certificates import Certificate

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Receiver:
    """Takes POSTs, keeps their bytes, and answers with what a test gives it."""

    def __init__(self, answer: bytes, *, then: str = "close") -> None:
        self.requests: list[bytes] = []
        self._answer = answer
        self._then = then
        self.port = 0

    async def __aenter__(self) -> Receiver:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    tls: ssl.SSLContext | None = None

    async def __aexit__(self, *_error: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        self.requests.append(head + await reader.readexactly(length))
        writer.write(self._answer)
        try:
            await writer.drain()
            if self._then == "wait":
                await reader.read()
        except ConnectionError:
            pass
        writer.close()


async def posted(posts: HttpPosts, url: str, body: bytes = b"{}") -> PostResult:
    heard: asyncio.Future[PostResult] = asyncio.get_running_loop().create_future()
    headers = ((b"content-type", b"application/json"),)
    posts.post(OutboundPost(url, body, headers), heard.set_result)
    return await asyncio.wait_for(heard, 20)


def run(
    answer: bytes, *, then: str = "close", path: str = "/hook?a=1"
) -> tuple[PostResult, list[bytes]]:
    async def story() -> tuple[PostResult, list[bytes]]:
        async with Receiver(answer, then=then) as receiver:
            posts = HttpPosts(Settings(ds_webhook_loopback=True))
            url = f"http://127.0.0.1:{receiver.port}{path}"
            return await posted(posts, url), receiver.requests

    return asyncio.run(story())


def test_a_post_and_its_answer() -> None:
    result, (request,) = run(b"HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\n" + b'{"done":true}')
    assert result == PostResult(200, b'{"done":true}')
    head, _, body = request.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /hook?a=1 HTTP/1.1" and body == b"{}"
    assert lines[1].startswith(b"host: 127.0.0.1:")
    assert {b"content-length: 2", b"content-type: application/json"} <= set(lines)


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", PostResult(204)),
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", PostResult(200, b"to the end")),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            PostResult(200, b"abc"),
        ),
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202 A\r\ncontent-length: 1\r\n\r\nx",
            PostResult(202, b"x"),
        ),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\ncut", PostResult(200, b"cut", whole=False)),
        (b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n", PostResult(503)),
    ],
)
def test_answers_of_all_kinds(answer: bytes, result: PostResult) -> None:
    assert run(answer)[0] == result


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200", b"SMTP hello\r\n\r\n", b"\x16\x03\x01"])
def test_what_is_no_answer_is_a_failure(answer: bytes) -> None:
    result, _ = run(answer)
    assert not result.taken and result.failure


def test_a_redirect_is_not_followed() -> None:
    async def story() -> None:
        async with Receiver(b"HTTP/1.1 200 OK\r\n\r\n") as other:
            where = b"http://127.0.0.1:%d/" % other.port
            answer = b"HTTP/1.1 307 Go\r\nlocation: " + where + b"\r\ncontent-length: 0\r\n\r\n"
            async with Receiver(answer) as receiver:
                posts = HttpPosts(Settings(ds_webhook_loopback=True))
                result = await posted(posts, f"http://127.0.0.1:{receiver.port}/")
            assert result == PostResult(307)
            assert other.requests == []

    asyncio.run(story())


def test_an_answer_is_read_up_to_a_bound() -> None:
    large = outbound_posts.RESPONSE_BODY_BYTES_MAX
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (8 * large)
    result, _ = run(head + b"x" * 8 * large, then="wait")
    assert result.status == 200 and not result.whole
    assert len(result.body) == large


def test_a_head_without_an_end_is_a_failure() -> None:
    endless = b"x: " + b"y" * 4 * outbound_posts.RESPONSE_HEAD_BYTES_MAX
    result, _ = run(b"HTTP/1.1 200 OK\r\n" + endless, then="wait")
    assert not result.taken


def test_a_receiver_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbound_posts, "POST_TIMEOUT_SECONDS", 0.05)
    result, requests = run(b"", then="wait")
    assert len(requests) == 1 and "no answer within" in result.failure


def test_nobody_there_is_a_failure() -> None:
    async def story() -> PostResult:
        async with Receiver(b"") as receiver:
            port = receiver.port
        return await posted(
            HttpPosts(Settings(ds_webhook_loopback=True)), f"http://127.0.0.1:{port}"
        )

    assert asyncio.run(story()).failure


# Names


class Names:
    """A resolver that says something else each time."""

    def __init__(self, *answers: list[str]) -> None:
        self._answers = list(answers)
        self.asked = 0

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked += 1
        return self._answers.pop(0)


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["10.0.0.1"],
        ["169.254.169.254"],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["fe80::1%lo"],
        ["8.8.8.8", "127.0.0.1"],
        ["8.8.8.8", "192.168.0.1", "1.1.1.1"],
    ],
)
def test_a_name_of_an_address_around_the_server_is_not_connected_to(
    addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def connect(*_arguments: object, **_options: object) -> None:
        raise AssertionError("it was connected to")

    monkeypatch.setattr(asyncio, "open_connection", connect)
    posts = HttpPosts(Settings(), Names(addresses))
    result = asyncio.run(posted(posts, "https://hooks.example.com/"))
    assert "is not a public address" in result.failure


def test_a_name_is_resolved_once_and_that_very_address_is_connected_to() -> None:
    """A name that means another address a moment later changes nothing."""

    async def story() -> None:
        async with Receiver(b"HTTP/1.1 200 OK\r\n\r\n") as receiver:
            names = Names(["127.0.0.1"], ["10.0.0.1"])
            posts = HttpPosts(Settings(ds_webhook_loopback=True), names)
            result = await posted(posts, f"http://localhost:{receiver.port}/")
            assert result.status == 200 and names.asked == 1
            assert b"host: localhost:" in receiver.requests[0]
            again = await posted(posts, f"http://localhost:{receiver.port}/")
            assert "is not a public address" in again.failure
            assert len(receiver.requests) == 1

    asyncio.run(story())


def test_http_stays_on_this_machine() -> None:
    posts = HttpPosts(Settings(ds_webhook_loopback=True), Names(["8.8.8.8"]))
    result = asyncio.run(posted(posts, "http://localhost/"))
    assert "http stays here" in result.failure


# TLS


def test_a_certificate_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Certificate(tmp_path)

    async def story() -> PostResult:
        async with SecureReceiver(made) as receiver:
            posts = HttpPosts(Settings(ds_webhook_loopback=True))
            return await posted(posts, f"https://localhost:{receiver.port}/")

    assert "certificate" in asyncio.run(story()).failure.lower()
    monkeypatch.setenv("SSL_CERT_FILE", str(made.cert))
    assert asyncio.run(story()).status == 200


class SecureReceiver(Receiver):
    """A receiver with TLS."""

    def __init__(self, made: Certificate) -> None:
        super().__init__(b"HTTP/1.1 200 OK\r\n\r\n")
        self.tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.tls.load_cert_chain(made.cert, made.key)


# Stops


def test_a_stop_gives_up_what_is_under_way() -> None:
    async def story() -> None:
        async with Receiver(b"", then="wait") as receiver:
            posts = HttpPosts(Settings(ds_webhook_loopback=True))
            url = f"http://127.0.0.1:{receiver.port}/"
            heard: list[PostResult] = []
            posts.post(OutboundPost(url, b"", ()), heard.append)
            while not receiver.requests:
                await asyncio.sleep(0.001)
            posts.drain()
            while posts.under_way:
                await asyncio.sleep(0)
            posts.post(OutboundPost(url, b"", ()), heard.append)
            while posts.under_way:
                await asyncio.sleep(0)
            assert heard == [] and len(receiver.requests) == 1

    asyncio.run(story())
