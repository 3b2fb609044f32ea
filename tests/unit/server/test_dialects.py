"""A second dialect beside the native one on a real socket, over both transports.

It differs wherever a dialect may: paths, methods, errors, headers, web pages, names, and how a
request is handled.  Nothing in the server was written for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from headrace.core.errors import HeadraceError, InvalidRequest
from headrace.core.settings import Settings
from headrace.wire.dialect import Cors, Dialect, Requirement
from headrace.wire.exchange import EVENT_STREAM, Exchange, Outlet, Reply
from headrace.wire.native.dialect import NativeDialect
from headrace.wire.routes import READ, WRITE, Handling, PathRest, Route
from tests.support.http2_client import Client
from tests.support.served_app import Response, Served, read_response, read_until

PLAIN = b"text/plain"
SESSION = b"session/notes"
NOSNIFF = (b"x-content-type-options", b"nosniff")
POLICY = (b"cross-origin-resource-policy", b"cross-origin")
TOO_MUCH = b"x" * 100_000
PAGE = b"http://app.example"
SMALL = Settings(body_bytes_max=1 << 16, record_bytes_max=1 << 16)

Ask = Callable[..., Response]


class Notes(Dialect):
    """Texts at paths: `GET` and `PATCH /notes/{any path}`."""

    name = "notes"
    paths = ("/notes",)
    headers = (NOSNIFF, POLICY)
    cors = Cors(b"GET, PATCH", b"If-None-Match, Note-Seq", b"Note-Offset", max_age_seconds=60)

    def __init__(self) -> None:
        self.began: list[bytes] = []  # the content type of each PATCH, when its handler is called
        self.segments: list[tuple[str, ...]] = []
        self.outlets: list[Outlet] = []
        self.ticks: list[int] = []
        self.drained = 0

    def routes(self) -> Sequence[Route]:
        read, write = frozenset({READ}), frozenset({WRITE})
        return [
            Route("GET", "/notes/{path*}", self.get, read, handling=self.handling),
            Route("PATCH", "/notes/{path*}", self.patch, write, handling=self.handling),
        ]

    def handling(self, exchange: Exchange) -> Handling:
        session = exchange.headers.get(b"content-type") == SESSION
        return Handling(streamed=session, long_lived=session or exchange.query == "live=sse")

    def get(self, exchange: Exchange) -> None:
        (path,) = exchange.params
        assert isinstance(path, PathRest)
        self.segments.append(path.segments)
        if exchange.query == "live=sse":
            outlet = exchange.stream(EVENT_STREAM)
            outlet.write(b"data:here\n\n")
            self.outlets.append(outlet)
        elif path == "bad":
            raise InvalidRequest("a bad note", fix="write a good one")
        else:
            exchange.answer(200, path.encode(), PLAIN, ((b"note-offset", b"7"),))

    def patch(self, exchange: Exchange) -> None:
        self.began.append(exchange.headers.get(b"content-type", b""))
        if not exchange.streamed:
            exchange.answer(200, exchange.body.upper(), PLAIN)
            return
        outlet = exchange.stream(SESSION)

        def piece(data: bytes) -> None:
            outlet.write(data.upper())
            if not data:
                outlet.close()

        exchange.on_body = piece

    def failure(self, error: HeadraceError, exchange: Exchange) -> Reply:
        return error.status, error.code.encode(), PLAIN, ((b"note-path", exchange.path.encode()),)

    def engine_name(self, exchange: Exchange) -> str | None:
        return f"notes:{exchange.params[0]}"

    def required_by_unknown(self, method: str, path: str) -> Requirement:
        return Requirement(frozenset({READ}), "notes:" + path.removeprefix("/notes"))

    def tick(self, now_ms: int) -> None:
        self.ticks.append(now_ms)

    def drain(self) -> None:
        self.drained += 1
        for outlet in self.outlets:
            outlet.close()


@contextmanager
def serving(notes: Notes, settings: Settings = SMALL) -> Iterator[Served]:
    def echo(exchange: Exchange) -> None:
        exchange.answer(200, exchange.params[0].encode(), PLAIN)

    native = NativeDialect([Route("GET", "/v0/topics/{topic}", echo, frozenset({READ}))])
    with Served(settings, dialects=[native, notes]) as served:
        yield served


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def served(notes: Notes) -> Iterator[Served]:
    with serving(notes) as served:
        yield served


def over_http1(served: Served) -> Ask:
    def ask(method: str, path: str, body: bytes = b"", **headers: bytes) -> Response:
        with served.connect() as sock:
            lines = [f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n".encode()]
            lines += [b"%b: %b\r\n" % (_name(n), v) for n, v in headers.items()]
            lines.append(b"content-length: %d\r\n\r\n" % len(body))
            sock.sendall(b"".join(lines) + body)
            if method == "HEAD":
                line, *fields = read_until(sock, b"\r\n\r\n")[:-4].split(b"\r\n")
                sent = dict(field.split(b": ", 1) for field in fields)
                return Response(int(line.split()[1]), sent, b"")
            return read_response(sock)

    return ask


def over_http2(served: Served) -> Ask:
    def ask(method: str, path: str, body: bytes = b"", **headers: bytes) -> Response:
        with Client(served) as client:
            fields = [(_name(n), v) for n, v in headers.items()]
            stream = client.start(method.encode(), path.encode(), fields, end=not body)
            if body:
                client.send(stream, body, end=True)
            done = client.finish(stream)
            return Response(done.status, done.headers, done.data)

    return ask


def _name(name: str) -> bytes:
    return name.replace("_", "-").encode()


TRANSPORTS = pytest.mark.parametrize("transport", [over_http1, over_http2])


@TRANSPORTS
def test_both_dialects_are_served(transport: Callable[[Served], Ask], served: Served) -> None:
    ask = transport(served)
    assert ask("GET", "/notes/a/b").body == b"a/b"
    assert ask("PATCH", "/notes/a", b"text").body == b"TEXT"
    assert ask("GET", "/v0/topics/t").body == b"t"


@TRANSPORTS
def test_a_slash_and_an_encoded_one_are_told_apart(
    transport: Callable[[Served], Ask], served: Served, notes: Notes
) -> None:
    ask = transport(served)
    assert ask("GET", "/notes/a/b").body == ask("GET", "/notes/a%2Fb").body
    assert notes.segments == [("a", "b"), ("a/b",)]


@TRANSPORTS
@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/notes/bad", b"", 400, b"invalid_request"),  # by the handler
        ("GET", "/notes/%ff", b"", 400, b"invalid_request"),  # by the route table
        ("GET", "/notes", b"", 404, b"not_found"),
        ("DELETE", "/notes/a", b"", 405, b"method_not_allowed"),
        ("PATCH", "/notes/a", TOO_MUCH, 413, b"payload_too_large"),  # by the transport
    ],
)
def test_a_refusal_has_the_form_of_the_dialect_whose_path_it_is(
    transport: Callable[[Served], Ask],
    served: Served,
    method: str,
    path: str,
    body: bytes,
    status: int,
    code: bytes,
) -> None:
    answer = transport(served)(method, path, body)
    assert (answer.status, answer.body) == (status, code)
    assert answer.headers[b"note-path"] == path.encode()
    assert answer.headers[b"content-type"] == PLAIN


@TRANSPORTS
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v0/nowhere"), ("PUT", "/v0/topics/t"), ("GET", "/elsewhere")]
)
def test_the_other_paths_stay_native(
    transport: Callable[[Served], Ask], served: Served, method: str, path: str
) -> None:
    answer = transport(served)(method, path)
    assert answer.status in (404, 405)
    assert answer.json["error"]["code"] in ("not_found", "method_not_allowed")


@TRANSPORTS
def test_every_answer_carries_the_headers_of_its_dialect(
    transport: Callable[[Served], Ask], served: Served
) -> None:
    ask = transport(served)
    answers = [
        ask("GET", "/notes/a"),
        ask("HEAD", "/notes/a"),
        ask("GET", "/notes/bad"),
        ask("GET", "/notes"),
        ask("POST", "/notes/a"),
        ask("OPTIONS", "/notes/a"),
        ask("PATCH", "/notes/a", TOO_MUCH),
        ask("PATCH", "/notes/a", b"streamed", content_type=SESSION)
        if transport is over_http2
        else ask("PATCH", "/notes/a", b"whole"),
    ]
    assert [answer.status for answer in answers] == [200, 200, 400, 404, 405, 405, 413, 200]
    for answer in answers:
        assert {NOSNIFF, POLICY} <= set(answer.headers.items()), answer
    for answer in (ask("GET", "/v0/topics/t"), ask("GET", "/v0/nowhere")):
        assert NOSNIFF[0] not in answer.headers
        assert POLICY[0] not in answer.headers


@pytest.mark.parametrize(
    ("line", "fields", "status"),
    [
        (b"GET /notes/a?x=1 HTTP/1.1", b"x: " + b"y" * 70_000, 431),
        (b"GET /notes/" + b"a" * 70_000 + b" HTTP/1.1", b"x: y", 431),
        (b"GET /notes/a HTTP/1.1", b"no colon", 400),
        (b"GET /notes/a HTTP/1.1", b"host: twice", 400),
    ],
)
def test_what_is_refused_while_its_head_arrives_is_refused_by_its_dialect(
    served: Served, line: bytes, fields: bytes, status: int
) -> None:
    with served.connect() as sock:
        sock.sendall(b"%b\r\nhost: localhost\r\n%b\r\n\r\n" % (line, fields))
        answer = read_response(sock)
    assert answer.status == status
    assert {NOSNIFF, POLICY} <= set(answer.headers.items())


@TRANSPORTS
def test_web_pages_are_told_what_each_dialect_allows(
    transport: Callable[[Served], Ask], notes: Notes
) -> None:
    settings = Settings(cors_origins=PAGE.decode(), api_keys="all")
    with serving(notes, settings) as served:
        ask = transport(served)
        page = {"origin": PAGE, "access_control_request_method": b"PATCH"}
        for path in ("/notes/a/b", "/notes"):  # with a route, and without
            allowed = ask("OPTIONS", path, **page)
            assert allowed.status == 204
            assert allowed.headers[b"access-control-allow-methods"] == b"GET, PATCH"
            assert allowed.headers[b"access-control-allow-headers"] == b"If-None-Match, Note-Seq"
            assert allowed.headers[b"access-control-max-age"] == b"60"
            assert allowed.headers[b"access-control-allow-origin"] == PAGE
            assert {NOSNIFF, POLICY} <= set(allowed.headers.items())
        native = ask("OPTIONS", "/v0/topics/t", **page).headers
        assert b"PATCH" not in native[b"access-control-allow-methods"]
        assert b"Idempotency-Key" in native[b"access-control-allow-headers"]
        exposed = b"access-control-expose-headers"
        key = {"origin": PAGE, "authorization": b"Bearer all"}
        assert ask("GET", "/notes/a", **key).headers[exposed] == b"Note-Offset"
        assert ask("GET", "/notes", **key).headers[exposed] == b"Note-Offset"
        assert b"Server-Timing" in ask("GET", "/v0/topics/t", **key).headers[exposed]


def test_keys_are_checked_by_the_names_that_the_dialect_gives(notes: Notes) -> None:
    keys = "all,spy:r:notes:a/,elsewhere:r:orders,writer:w"
    with serving(notes, Settings(api_keys=keys)) as served:
        ask = over_http1(served)

        def status(method: str, path: str, key: bytes) -> int:
            return ask(method, path, authorization=b"Bearer " + key).status

        assert status("GET", "/notes/a/b", b"spy") == 200
        assert status("GET", "/notes/b", b"spy") == 403
        assert status("GET", "/notes/a/b", b"elsewhere") == 403
        assert status("PATCH", "/notes/a/b", b"spy") == 403
        assert status("PATCH", "/notes/a/b", b"writer") == 200
        # What is not there is not told to a key that could not use it.
        assert status("DELETE", "/notes", b"writer") == 403  # the scope
        assert status("DELETE", "/notes", b"spy") == 403  # the name
        assert status("DELETE", "/notes", b"all") == 404
        assert ask("GET", "/notes").status == 401
        # The native names are not prefixed.
        assert status("GET", "/v0/topics/orders.1", b"elsewhere") == 200
        assert status("GET", "/v0/topics/a", b"spy") == 403


# How a request is handled


def test_http1_decides_for_each_request_whether_its_body_is_streamed(
    served: Served, notes: Notes
) -> None:
    whole = b"PATCH /notes/a HTTP/1.1\r\nhost: h\r\ncontent-type: text/plain\r\n"
    session = b"PATCH /notes/a HTTP/1.1\r\nhost: localhost\r\ncontent-type: session/notes\r\n"
    whole = whole.replace(b"host: h", b"host: localhost")
    with served.connect() as sock:
        for text in (b"one", b"two", b"three"):  # the head of the later ones is known
            sock.sendall(whole + b"content-length: %d\r\n\r\n%b" % (len(text), text))
            assert read_response(sock).body == text.upper()
        sock.sendall(session + b"content-length: 8\r\n\r\nhalf")
        head = read_until(sock, b"\r\n\r\n")  # before the body has arrived
        assert b"nosniff" in head
        assert read_until(sock, b"HALF\r\n")
        sock.sendall(b"more")
        assert read_until(sock, b"0\r\n\r\n") == b"4\r\nMORE\r\n0\r\n\r\n"
        sock.sendall(whole + b"content-length: 3\r\n\r\nend")
        assert read_response(sock).body == b"END"
    assert notes.began == [PLAIN, PLAIN, PLAIN, SESSION, PLAIN]


def test_http2_decides_for_each_request_whether_its_body_is_streamed(
    served: Served, notes: Notes
) -> None:
    with Client(served) as client:
        whole = client.start(b"PATCH", b"/notes/a", [(b"content-type", PLAIN)], end=False)
        session = client.start(b"PATCH", b"/notes/a", [(b"content-type", SESSION)], end=False)
        client.send(session, b"half")
        client.until(lambda: client.streams[session].data == b"HALF")
        assert notes.began == [SESSION]
        client.send(whole, b"text", end=True)
        assert client.finish(whole).data == b"TEXT"
        client.send(session, b"more", end=True)
        assert client.finish(session).data == b"HALFMORE"
    assert notes.began == [SESSION, PLAIN]


def test_a_streamed_body_is_bounded_by_no_setting_and_not_decompressed(served: Served) -> None:
    more = {"content_type": SESSION, "content_encoding": b"gzip"}
    answer = over_http2(served)("PATCH", "/notes/a", TOO_MUCH, **more)
    assert answer.body == TOO_MUCH.upper()
    with served.connect() as sock:
        head = b"PATCH /notes/a HTTP/1.1\r\nhost: localhost\r\ncontent-type: session/notes\r\n"
        length = b"content-length: %d\r\n\r\n" % len(TOO_MUCH)
        sock.sendall(head + b"content-encoding: gzip\r\n" + length + TOO_MUCH)
        assert read_until(sock, b"0\r\n\r\n").count(b"X") == len(TOO_MUCH)


def test_a_request_that_is_long_lived_holds_no_slot_of_its_key(notes: Notes) -> None:
    with serving(notes, Settings(api_keys="all", max_inflight_per_key=1)) as served:
        key = [(b"authorization", b"Bearer all")]
        with Client(served) as client:
            live = [client.start(b"GET", b"/notes/a?live=sse", key) for _ in range(3)]
            client.until(lambda: all(client.streams[s].data == b"data:here\n\n" for s in live))
            assert client.get(b"/notes/a", key).status == 200


def test_a_known_head_is_no_way_past_the_decision(notes: Notes) -> None:
    """Requests of one head on one connection: none of them holds the slot of the key."""
    seen: list[bool] = []

    def get(exchange: Exchange) -> None:
        seen.append(exchange.long_lived)
        exchange.answer(200, b"", PLAIN)

    notes.get = get  # type: ignore[method-assign]
    with serving(notes) as served, served.connect() as sock:
        for _ in range(4):
            head = b"GET /notes/a?live=sse HTTP/1.1\r\nhost: localhost\r\n"
            sock.sendall(head + b"content-length: 0\r\n\r\n")
            assert read_response(sock).status == 200
    assert seen == [True] * 4


def test_the_duration_of_what_is_long_lived_is_not_counted(served: Served, notes: Notes) -> None:
    with Client(served) as client:
        live = client.start(b"GET", b"/notes/a?live=sse")
        client.until(lambda: bool(client.streams[live].data))
        client.get(b"/notes/a")
        served.call(notes.outlets[0].close)
        client.finish(live)
    text = served.call(served.app.metrics.registry.text)
    labels = 'dialect="notes",method="GET",route="/notes/{path*}"'
    assert f'headrace_http_requests_total{{{labels},status="200"}} 2\n' in text
    assert f"headrace_http_request_duration_seconds_count{{{labels}}} 1\n" in text


# The life of a dialect


def test_every_dialect_is_ticked_about_once_a_second(served: Served, notes: Notes) -> None:
    served.wait(lambda: len(notes.ticks) >= 2)
    first, second = notes.ticks[:2]
    assert 900 <= second - first <= 10_000


def test_a_dialect_that_fails_at_its_tick_does_not_end_the_ticks(
    notes: Notes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ticks: list[int] = []

    def fail(now_ms: int) -> None:
        ticks.append(now_ms)
        raise RuntimeError("a mistake")

    monkeypatch.setattr(notes, "tick", fail)
    with serving(notes) as served:
        served.wait(lambda: len(ticks) >= 2)
    assert "the dialect notes failed at its tick" in caplog.text


def test_a_stop_ends_the_streams_of_every_dialect(served: Served, notes: Notes) -> None:
    with Client(served) as client:
        live = client.start(b"GET", b"/notes/a?live=sse")
        client.until(lambda: bool(client.streams[live].data))
        served.call(served.app.drain)
        assert client.finish(live).ended
    assert notes.drained == 1
