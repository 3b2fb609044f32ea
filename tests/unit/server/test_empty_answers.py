"""Answers without a body of a turn: formatted together, and each as if it were alone.

The dialect has headers of its own, and a row for what browsers ask before they send.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.core.errors import HeadraceError
from headrace.core.settings import Settings
from headrace.wire.dialect import Dialect
from headrace.wire.exchange import Exchange, Reply
from headrace.wire.routes import READ, WRITE, Route
from tests.support.http2_client import Client
from tests.support.served_app import Response, Served, read_response, read_until

NOSNIFF = (b"x-content-type-options", b"100%nosniff")
NAMES = (b"log-offset", b"log-writer")
LINES = b"log-offset: %b\r\nlog-writer: %b\r\n"
PAGE = b"https://app.example"


class Logs(Dialect):
    """`POST /logs/{name}` answers with what it took."""

    name = "logs"
    paths = ("/logs",)
    headers = (NOSNIFF,)

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.admitted: list[bool] = []
        self.value = b"7"

    def routes(self) -> Sequence[Route]:
        template = "/logs/{name}"
        return [
            Route(
                "POST", template, self.one, frozenset({WRITE}), turn_handler=self.many
            ),
            Route("HEAD", template, self.head, frozenset({READ})),
            Route("OPTIONS", template, self.options, own_auth=True),
        ]  # fmt: skip

    def one(self, exchange: Exchange) -> None:
        self.many([exchange])

    def many(self, exchanges: Sequence[Exchange]) -> None:
        for exchange in exchanges:
            self.admitted.append(getattr(exchange, "admitted", None) is not None)
        answers = [(exchange, (self.value, exchange.body)) for exchange in exchanges]
        exchanges[0].answer_empty(answers, self.status, LINES)

    def head(self, exchange: Exchange) -> None:
        exchange.answer(200, b"", b"text/plain", ((NAMES[0], b"7"),))

    def options(self, exchange: Exchange) -> None:
        exchange.answer(204, b"", b"", self.cors.preflight())

    def failure(self, error: HeadraceError, exchange: Exchange) -> Reply:
        return error.status, error.code.encode(), b"text/plain", ()


def request(*headers: str, body: bytes = b"w1") -> bytes:
    lines = ["POST /logs/a HTTP/1.1", "Host: localhost", *headers, f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def ask(served: Served, *requests: bytes) -> list[Response]:
    with served.connect() as sock:
        found = []
        for one in requests:
            sock.sendall(one)
            found.append(read_response(sock))
        return found


@pytest.mark.parametrize("status", [200, 204])
def test_a_repeated_head_is_answered_like_the_first(status: int) -> None:
    logs = Logs(status)
    with Served(Settings(), dialects=[logs]) as served:
        found = ask(served, *[request()] * 5)
        text = served.call(served.app.metrics.registry.text)
    assert not logs.admitted[0] and logs.admitted[-1]
    sizes = {} if status == 204 else {b"content-length": b"0"}
    wanted = {**sizes, NOSNIFF[0]: NOSNIFF[1], NAMES[0]: b"7", NAMES[1]: b"w1"}
    assert {(one.status, one.body) for one in found} == {(status, b"")}
    assert [one.headers for one in found] == [wanted] * 5
    lines = [line for line in text.splitlines() if line.startswith("headrace_http_requests_total{")]
    (line,) = (line for line in lines if f'status="{status}"' in line)
    assert 'dialect="logs"' in line and line.endswith(" 5")


def test_pipelined_requests_each_get_their_own_values() -> None:
    logs = Logs()
    with Served(Settings(), dialects=[logs]) as served:
        ask(served, *[request()] * 3)
        writers = [b"w%d" % number for number in range(10, 20)]
        with served.connect() as sock:
            sock.sendall(b"".join(request(body=writer) for writer in writers))
            assert [read_response(sock).headers[NAMES[1]] for _ in writers] == writers


def test_a_value_with_a_line_break_is_never_sent() -> None:
    logs = Logs()
    with Served(Settings(), dialects=[logs]) as served:
        ask(served, *[request()] * 3)
        logs.value = b"7\r\nset-cookie: a=b"
        first, second = ask(served, request()), ask(served, request())
    for answer in (*first, *second):
        assert answer.status == 500
        assert b"set-cookie" not in answer.headers


def test_the_same_over_http2() -> None:
    with Served(Settings(), dialects=[Logs()]) as served, Client(served) as client:
        for _ in range(3):
            stream = client.start(b"POST", b"/logs/a", [], end=False)
            client.send(stream, b"w1", end=True)
            done = client.finish(stream)
            assert (done.status, done.data) == (200, b"")
            assert {NOSNIFF, (NAMES[0], b"7"), (NAMES[1], b"w1")} <= set(done.headers.items())


def test_a_head_without_a_body_tells_no_length() -> None:
    with Served(Settings(), dialects=[Logs()]) as served:
        with served.connect() as sock:
            sock.sendall(b"HEAD /logs/a HTTP/1.1\r\nhost: localhost\r\n\r\n")
            head = read_until(sock, b"\r\n\r\n")
        with Client(served) as client:
            done = client.finish(client.start(b"HEAD", b"/logs/a", [], end=True))
    assert b"content-type: text/plain\r\n" in head and b"content-length" not in head
    assert done.headers[b"content-type"] == b"text/plain"
    assert b"content-length" not in done.headers


@pytest.mark.parametrize("origins", ["", PAGE.decode()])
@pytest.mark.parametrize("keys", ["", "secret:read"])
@pytest.mark.parametrize("origin", [PAGE, b"https://other.example"])
def test_a_row_for_options_answers_every_page_and_grants_only_those_that_are_listed(
    origins: str, keys: str, origin: bytes
) -> None:
    settings = Settings(cors_origins=origins, api_keys=keys, probe_auth=True)
    question = (
        b"OPTIONS /logs/a HTTP/1.1\r\nhost: localhost\r\norigin: %b\r\n"
        b"access-control-request-method: POST\r\n\r\n" % origin
    )
    with Served(settings, dialects=[Logs()]) as served:
        (answer,) = ask(served, question)
    assert answer.status == 204
    assert b"access-control-allow-headers" in answer.headers
    granted = answer.headers.get(b"access-control-allow-origin")
    assert granted == (PAGE if origins and origin == PAGE else None)


def test_the_slot_of_a_key_is_given_back() -> None:
    settings = Settings(api_keys="good:write", max_inflight_per_key=2)
    logs = Logs()
    with Served(settings, dialects=[logs]) as served:
        found = ask(served, *[request("Authorization: Bearer good")] * 8)
    assert {one.status for one in found} == {200}
    assert logs.admitted[-1]
