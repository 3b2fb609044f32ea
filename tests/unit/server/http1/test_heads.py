"""Requests whose head was seen before are not parsed, and mean exactly what parsing says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from headrace.core.errors import InvalidRequest
from headrace.core.settings import Settings
from headrace.server.http1 import heads as http1_heads
from headrace.server.http1 import reader as http1_reader
from headrace.server.http1.connection import Http1Connection
from headrace.server.http1.heads import HeadLayout, KnownHead, KnownHeads
from headrace.wire.exchange import Exchange
from headrace.wire.routes import Route
from tests.support.memory_transport import MemoryTransport
from tests.support.served_app import Response, Served, read_response

SETTINGS = Settings(
    body_bytes_max=1 << 16, record_bytes_max=1 << 16, header_timeout_ms=1000, body_timeout_ms=1000
)
FIRST = b"POST /echo?a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nX: 1\r\n\r\nhello"


def echo(exchange: Exchange) -> None:
    """All that was understood."""
    headers = b"|".join(b"%b=%b" % item for item in sorted(exchange.headers.items()))
    parts = (exchange.method.encode(), exchange.path.encode(), exchange.query.encode())
    exchange.answer(200, b"\n".join((*parts, headers, exchange.body)), b"text/plain")


def refuse(exchange: Exchange) -> None:
    raise InvalidRequest("no", fix="ask for something else")


def stream(exchange: Exchange) -> None:
    exchange.stream(b"text/plain").write(b"x")


ROUTES = [
    Route("POST", "/stream", stream),
    Route("POST", "/echo", echo), Route("POST", "/other", echo), Route("POST", "/refuse", refuse),
]  # fmt: skip


@pytest.fixture
def served() -> Iterator[Served]:
    with Served(SETTINGS, ROUTES) as server:
        yield server


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Notes each request that was taken without the parser."""
    found: list[bool] = []
    take = Http1Connection._take_known

    def noted(self: Http1Connection, *arguments: Any) -> None:
        found.append(True)
        take(self, *arguments)

    monkeypatch.setattr(Http1Connection, "_take_known", noted)
    return found


def answers(served: Served, *requests: bytes) -> list[Response]:
    """The answers to requests of one connection, each sent after the last was answered."""
    with served.connect() as sock:
        found = []
        for request in requests:
            sock.sendall(request)
            found.append(read_response(sock))
        return found


def test_only_the_body_and_its_length_may_differ(served: Served, taken: list[bool]) -> None:
    longer = FIRST.replace(b": 5", b": 12").replace(b"hello", b"hello, world")
    empty = FIRST.replace(b": 5", b": 0").replace(b"hello", b"")
    requests = [FIRST, FIRST, longer, empty, FIRST]
    found = answers(served, *requests)
    assert len(taken) == 4
    with Served(SETTINGS, ROUTES) as another:
        assert found == [answers(another, one)[0] for one in requests]


def test_lines_and_layouts_are_remembered_for_all_connections(
    served: Served, taken: list[bool]
) -> None:
    other = FIRST.replace(b"/echo?a", b"/other").replace(b": 5", b": 3").replace(b"hello", b"you")
    third = FIRST.replace(b"X: 1", b"X: 3")
    alone = {one: answers(served, one)[0] for one in (FIRST, other, third)}
    assert len(taken) == 0, "nothing was seen before"
    crossed = other.replace(b"X: 1", b"X: 3")  # a line of one, the layout of another
    many = [FIRST, other, third, FIRST, third, crossed, other]
    found = answers(served, *many)
    assert len(taken) == len(many)
    assert [one for one, request in zip(found, many, strict=True) if request is not crossed] == [
        alone[request] for request in many if request is not crossed
    ]
    assert found[5].body == alone[other].body.replace(b"x=1", b"x=3")


HOLES = FIRST.replace(
    b"X: 1",
    b"Authorization: Bearer s3cret\r\nProducer-Seq: 1\r\nX: 1\r\ntraceparent: 00-ab-cd-01",
)


# Of a producer, whose name and epoch stay: known by all its bytes but those of the number.
NUMBERED = FIRST.replace(b"X: 1", b"Producer-Id: a\r\nProducer-Epoch: 0\r\nProducer-Seq: 1\r\nX: 1")


def test_values_that_differ_from_request_to_request_are_read_beside_the_head(
    served: Served, taken: list[bool]
) -> None:
    second = HOLES.replace(b"Seq: 1", b"Seq: 22").replace(b"s3cret", b"other k").replace(b"ab", b"")
    first_found, second_found = answers(served, HOLES, second)
    assert taken == [True]
    assert (
        first_found.body.replace(b"seq=1", b"seq=22")
        .replace(b"s3cret", b"other k")
        .replace(b"ab", b"")
        == second_found.body
    )


@pytest.mark.parametrize(
    "value",
    [
        b"", b" ", b" 2", b"2 ", b"2\t", b"\t2", b"2\nX-More: 1", b"2\x00", b"2\x7f", b"\xff",
        b"2\r\n folded", b"2\r\nProducer-Seq: 3", b"2\r\nTransfer-Encoding: chunked",
        b"2" * 600,
    ],
)  # fmt: skip
@pytest.mark.parametrize("known", [HOLES, NUMBERED], ids=["holes", "numbered"])
def test_a_value_means_what_the_parser_says(served: Served, known: bytes, value: bytes) -> None:
    second = known.replace(b"Seq: 1", b"Seq: " + value)
    found = answers(served, known, known, known, second)[3]
    with Served(SETTINGS, ROUTES) as another:
        assert found == answers(another, second)[0]


def test_a_producers_head_is_known_as_a_whole_but_for_its_number() -> None:
    """Whatever each request says beside it is read as the parser does, in any order."""
    heads = KnownHeads()
    with Served(SETTINGS, ROUTES, heads=heads) as server:
        requests = [NUMBERED.replace(b"Seq: 1", b"Seq: %d" % number) for number in range(5)]
        requests += [one.replace(b"Epoch: 0", b"Epoch: 1") for one in requests]
        requests += [FIRST, FIRST, requests[2], NUMBERED.replace(b"Seq: 1", b"Seq: "), requests[3]]
        requests += [NUMBERED.replace(b"Producer-Seq: 1\r\n", b""), requests[4]]
        found = [answers(server, *requests), answers(server, *reversed(requests))]
    assert {head.partition(b"Producer-Seq: ")[2][:2] for head in heads.whole} >= {b"\r\n"}
    with Served(SETTINGS, ROUTES) as another:
        wanted = [answers(another, one)[0] for one in requests]
    assert found == [wanted, wanted[::-1]]


def test_a_number_that_is_not_there_is_not_that_of_another() -> None:
    """The bytes of a head without its number are those of one that sends an empty one."""
    empty = NUMBERED.replace(b"Seq: 1", b"Seq: ")
    with Served(SETTINGS, ROUTES) as server:
        answers(server, *[NUMBERED] * 4)
        (found,) = answers(server, empty)
    assert b"producer-seq=|" in found.body


def test_no_key_is_kept() -> None:
    heads = KnownHeads()
    with Served(SETTINGS, ROUTES, heads=heads) as server:
        answers(server, HOLES, HOLES)
    assert len(heads) == 3, "a line, a layout, and the head that they are together"
    (layout,), (known,) = heads._layouts.values(), heads._known.values()
    kept = [getattr(layout, name) for name in HeadLayout.__slots__]
    kept += [getattr(known, name) for name in KnownHead.__slots__]
    assert "s3cret" not in repr([heads._lines, *heads._layouts, *kept])


def test_a_full_table_drops_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1_heads, "LINES_MAX", 2)
    heads = KnownHeads()
    with Served(SETTINGS, ROUTES, heads=heads) as server:
        answers(server, *(FIRST.replace(b"?a", b"?%d" % number) for number in range(5)))
    assert [line.split()[1] for line in heads._lines] == [b"/echo?3", b"/echo?4"]


def test_a_head_that_repeats_is_known_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to a number of them, and never one with a key in it."""
    monkeypatch.setattr(http1_heads, "WHOLE_HEADS_MAX", 2)
    heads = KnownHeads()
    with Served(SETTINGS, ROUTES, heads=heads) as server:
        for _ in range(3):
            answers(server, *(FIRST.replace(b"?a", b"?%d" % number) for number in range(5)))
            answers(server, HOLES, HOLES)
    assert [head.split()[1] for head in heads.whole] == [b"/echo?3", b"/echo?4"]
    assert all(head.endswith(b"\r\n\r\n") for head in heads.whole)


def test_what_handlers_keep_with_a_head_is_kept_for_that_head_alone() -> None:
    seen: list[object] = []

    def note(exchange: Exchange) -> None:
        if exchange.memo is not None:
            seen.append(exchange.memo.setdefault("query", exchange.query))
        exchange.answer(200, exchange.query.encode(), b"text/plain")

    requests = [FIRST.replace(b"?a", b"?%d" % (number % 3)) for number in range(12)]
    with Served(SETTINGS, [Route("POST", "/echo", note)]) as server:
        found = answers(server, *requests)
    assert [one.body for one in found] == [b"%d" % (number % 3) for number in range(12)]
    assert seen == [str(number % 3) for number in range(12)][-len(seen) :] and len(seen) >= 3


def test_a_body_too_large_is_refused_however_well_its_head_is_known() -> None:
    large = FIRST.replace(b": 5", b": 70000").replace(b"hello", b"x" * 70_000)
    heads = KnownHeads()
    with Served(SETTINGS, ROUTES, heads=heads) as server:
        answers(server, FIRST, FIRST, FIRST)
        for known in heads.whole.values():
            heads.whole.put(large[: large.index(b"\r\n\r\n") + 4], known)
            known.length = 70_000
            break
        assert answers(server, large)[0].status == 413


def test_what_is_refused_is_not_remembered() -> None:
    heads = KnownHeads()
    with Served(SETTINGS, ROUTES, heads=heads) as server:
        for request in (
            FIRST.replace(b"localhost", b"evil"),
            FIRST.replace(b"/echo", b"/none"),
            FIRST.replace(b"/echo", b"/refuse"),
        ):
            assert answers(server, request)[0].status >= 400
    assert len(heads) == 0


def test_a_known_head_is_let_in_or_not_each_time(served: Served) -> None:
    """The line of one request and the headers of another make a third, which is looked at."""
    get = FIRST.replace(b"localhost", b"evil")
    statuses = [one.status for one in answers(served, FIRST, FIRST, get, FIRST)]
    assert statuses == [200, 200, 403, 200]


ALIKE = [
    FIRST.replace(b"X: 1", b"X: 2"),
    FIRST.replace(b"X: 1", b"x: 1"),
    FIRST.replace(b"X: 1\r\n", b""),
    FIRST.replace(b"X: 1\r\n", b"X: 1\r\nY: 2\r\n"),
    FIRST.replace(b"/echo?a", b"/other"),
    FIRST.replace(b"/echo?a", b"/none"),
    FIRST.replace(b"POST", b"PUT"),
    FIRST.replace(b"HTTP/1.1", b"HTTP/1.0"),
    FIRST.replace(b": 5", b": 05"),
    FIRST.replace(b": 5", b":5"),
    FIRST.replace(b": 5", b": +5"),
    FIRST.replace(b": 5", b": -5"),
    FIRST.replace(b": 5", b": 5 "),
    FIRST.replace(b": 5", b": 5, 5"),
    FIRST.replace(b": 5", b": 0x5"),
    FIRST.replace(b": 5", b": \xb25"),
    FIRST.replace(b": 5", b": 5\r\nContent-Length: 6"),
    FIRST.replace(b"Content-Length: 5", b"Transfer-Encoding: chunked").replace(
        b"hello", b"5\r\nhello\r\n0\r\n\r\n"
    ),
    FIRST.replace(b": 5", b": 70000").replace(b"hello", b"h" * 70_000),
]


@pytest.mark.parametrize("second", ALIKE)
def test_what_only_looks_alike_means_the_same_as_on_a_new_connection(
    served: Served, second: bytes
) -> None:
    found = answers(served, FIRST, FIRST, second)[2]
    with Served(SETTINGS, ROUTES) as another:
        assert found == answers(another, second)[0]


@pytest.mark.parametrize("cut", [1, 30, 60, len(FIRST) - 2])
def test_a_request_in_pieces_is_parsed(served: Served, cut: int) -> None:
    with served.connect() as sock:
        for pieces in ([FIRST], [FIRST[:cut], FIRST[cut:]], [FIRST]):
            for piece in pieces:
                sock.sendall(piece)
                served.call(lambda: None)
            assert read_response(sock) == answers(served, FIRST)[0]


def test_two_requests_in_one_piece_are_two(served: Served) -> None:
    with served.connect() as sock:
        sock.sendall(FIRST)
        first = read_response(sock)
        sock.sendall(FIRST + FIRST + FIRST[:-3])
        assert [read_response(sock), read_response(sock)] == [first, first]
        sock.sendall(FIRST[-3:])
        assert read_response(sock) == first


@pytest.mark.parametrize(
    "header", [b"Expect: 100-continue", b"Connection: close", b"Upgrade: x\r\nConnection: upgrade"]
)
def test_heads_that_ask_for_more_are_not_remembered(
    served: Served, taken: list[bool], header: bytes
) -> None:
    request = FIRST.replace(b"X: 1", header)
    with served.connect() as sock:
        for _ in range(2):
            sock.sendall(request)
            response = read_response(sock)
            if response.status == 100:
                response = read_response(sock)
            assert response.status == 200
            if b"close" in header:
                assert sock.recv(1) == b""
                break
    assert taken == []


@pytest.mark.parametrize("upgrade", [b"h2c", b"websocket"])
@pytest.mark.parametrize("pieces", [1, 2])
def test_a_request_that_would_like_another_protocol_keeps_its_body(
    served: Served, upgrade: bytes, pieces: int
) -> None:
    header = b"Upgrade: %b\r\nConnection: Upgrade, HTTP2-Settings" % upgrade
    plain = FIRST.replace(b"X: 1", header)
    chunked = plain.replace(b"Content-Length: 5", b"Transfer-Encoding: chunked").replace(
        b"hello", b"5\r\nhello\r\n0\r\n\r\n"
    )
    for request in (plain, chunked):
        with served.connect() as sock:
            for _ in range(2):
                cut = request.index(b"hello") + 2 if pieces == 2 else len(request)
                sock.sendall(request[:cut])
                served.call(lambda: None)
                sock.sendall(request[cut:])
                response = read_response(sock)
                assert response.status == 200
                assert response.body.endswith(b"\nhello")
            sock.sendall(request + FIRST + FIRST)
            assert [read_response(sock).status for _ in range(3)] == [200] * 3


def test_a_known_head_with_too_large_a_body_is_refused(served: Served) -> None:
    """Whole in one read, as a client on the same machine may send it."""
    large = SETTINGS.body_bytes_max + 1
    data = FIRST.replace(b": 5", b": %d" % large).replace(b"hello", b"h" * large)
    transport, connection = MemoryTransport(), Http1Connection(served.app, KnownHeads())

    def send() -> None:
        connection.connection_made(transport)
        for one in (FIRST, FIRST, data):
            connection.data_received(one)

    served.call(send)
    assert (transport.sent.count(b"HTTP/1.1 200"), transport.sent.count(b"HTTP/1.1 413")) == (2, 1)


def test_nothing_of_a_read_stays_with_an_answer_that_goes_on(served: Served) -> None:
    with served.connect() as sock:
        sock.sendall(FIRST.replace(b"/echo", b"/stream"))
        assert sock.recv(1000).startswith(b"HTTP/1.1 200")
        (connection,) = served.app.connections
        exchange = connection.queue[0]  # type: ignore[attr-defined]
        assert exchange.head == exchange.body == b""


def numbered(numbers: Iterable[int]) -> list[bytes]:
    """The same request to as many targets."""
    return [FIRST.replace(b"?a", b"?%d" % number) for number in numbers]


def test_heads_that_never_repeat_are_given_up(
    served: Served, taken: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http1_reader, "ATTEMPTS_MAX", 10)
    assert [one.status for one in answers(served, *numbered(range(40)))] == [200] * 40
    assert not any(taken)
    answers(served, *numbered(reversed(range(40))))
    assert len(taken) == 10, "the connection before was given up after so many"


def test_a_connection_that_comes_first_everywhere_is_learnt_from(
    served: Served, taken: list[bool]
) -> None:
    """As one is that goes from topic to topic ahead of all others."""
    answers(served, *numbered(range(300)))
    assert not taken
    answers(served, *numbered(range(300)))
    assert len(taken) == 300


def test_a_client_whose_values_begin_or_end_to_vary_is_understood(
    served: Served, taken: list[bool]
) -> None:
    with Served(SETTINGS, ROUTES) as another:
        alone = {one: answers(another, one)[0] for one in (FIRST, HOLES)}
    requests = [FIRST, FIRST, FIRST, HOLES, HOLES, HOLES, FIRST, HOLES, FIRST, FIRST]
    assert answers(served, *requests) == [alone[one] for one in requests]
    assert len(taken) == len(requests) - 2
