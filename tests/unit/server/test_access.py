"""Access control: the order in which a request is judged, slots, and web pages of other origins."""

from __future__ import annotations

import pytest

from headrace.core.errors import Forbidden, HeadraceError, Throttled, Unauthorized
from headrace.core.settings import Settings
from headrace.server.access import HOSTS_REMEMBERED_MAX, AccessControl, same_origin
from headrace.server.auth import KeyRing
from headrace.wire.exchange import Exchange
from headrace.wire.native.dialect import NativeDialect
from headrace.wire.routes import ADMIN, DELETE, READ, WRITE, Route, RouteTable
from tests.support.exchanges import AnsweredExchange

CORS = NativeDialect.cors
KEYS = (
    "all,reader:r,writer:w,both:rw,deleter:d,boss:a,"
    "orders:rw:orders.|audit:,allorders::orders.,spy:r:orders."
)


def unused(_: Exchange) -> None:
    raise AssertionError("access control calls no handler")


def route(method: str, template: str, *scopes: str, **more: bool) -> Route:
    return Route(method, template, unused, frozenset(scopes), **more)


ROUTES = [
    route("PUT", "/v0/topics/{topic}", ADMIN),
    route("GET", "/v0/topics/{topic}", READ),
    route("POST", "/v0/topics/{topic}", WRITE),
    route("DELETE", "/v0/topics/{topic}", DELETE),
    route("POST", "/v0/topics/{topic}/claim", READ, WRITE),
    route("GET", "/v0/topics/{topic}/work", READ, WRITE, token_query=True, long_lived=True),
    route("GET", "/v0/topics", READ),
    route(
        "GET",
        "/v0/watch/{wid}",
        own_auth=True,
        token_query=True,
        name_param=False,
        long_lived=True,
    ),
    route("GET", "/v0/ws", long_lived=True),
    route("GET", "/v0/health", public=True, unready=True),
]
TABLE = RouteTable([NativeDialect(ROUTES)])


def ask(method: str, target: str, key: str = "", **headers: str) -> AnsweredExchange:
    path, _, query = target.partition("?")
    found = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    if key:
        found[b"authorization"] = b"Bearer " + key.encode()
    return AnsweredExchange(method, path, query, found, 0)


def send(access: AccessControl, exchange: Exchange) -> Exchange:
    """What the application does with a request up to its handler."""
    try:
        exchange.route, exchange.params = TABLE.match(exchange.method, exchange.path)
    except HeadraceError as error:
        exchange.route = TABLE.unrouted(exchange.path)
        access.admit(exchange, exchange.route)
        if not exchange.answered:
            raise error
    else:
        access.admit(exchange, exchange.route)
    return exchange


def outcome(access: AccessControl, exchange: Exchange) -> int:
    try:
        send(access, exchange)
    except HeadraceError as error:
        return error.status
    return 200


def access_of(keys: str = KEYS, **settings: object) -> AccessControl:
    return AccessControl(Settings(**settings), KeyRing.parse(keys))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v0/topics/t", {"all", "boss"}),
        ("GET", "/v0/topics/t", {"all", "reader", "both"}),
        ("HEAD", "/v0/topics/t", {"all", "reader", "both"}),
        ("POST", "/v0/topics/t", {"all", "writer", "both"}),
        ("DELETE", "/v0/topics/t", {"all", "deleter"}),
        ("POST", "/v0/topics/t/claim", {"all", "both"}),
        ("GET", "/v0/topics/t/work", {"all", "both"}),
        ("GET", "/v0/ws", {"all", "reader", "writer", "both", "deleter", "boss"}),
    ],
)
def test_each_route_asks_for_its_scopes(method: str, path: str, allowed: set[str]) -> None:
    access = access_of()
    for key in ("all", "reader", "writer", "both", "deleter", "boss"):
        expected = 200 if key in allowed else 403
        assert outcome(access, ask(method, path, key)) == expected, key
    assert outcome(access, ask(method, path)) == 401
    assert outcome(access, ask(method, path, "nobody")) == 401


@pytest.mark.parametrize(
    ("key", "path", "status"),
    [
        ("orders", "/v0/topics/orders.eu", 200),
        ("orders", "/v0/topics/audit:1", 200),
        ("orders", "/v0/topics/audit%3A1", 200),
        ("orders", "/v0/topics/%6frders.eu", 200),
        ("orders", "/v0/topics/order", 403),
        ("orders", "/v0/topics/orders%2eeu", 200),
        ("orders", "/v0/topics/xorders.eu", 403),
        ("spy", "/v0/topics", 200),
        ("spy", "/v0/topics/other", 403),
    ],
)
def test_names_are_compared_decoded(key: str, path: str, status: int) -> None:
    assert outcome(access_of(), ask("GET", path, key)) == status


def test_the_order_of_refusals() -> None:
    access = access_of(max_inflight_per_key=1)
    held = send(access, ask("GET", "/v0/topics/orders.1", "spy"))
    # No key before everything, the cap before the scope, the scope before the name.
    assert outcome(access, ask("DELETE", "/v0/topics/x", "nobody")) == 401
    assert outcome(access, ask("DELETE", "/v0/topics/x", "spy")) == 429
    access.release(held)
    with pytest.raises(Forbidden, match="scope delete"):
        send(access, ask("DELETE", "/v0/topics/x", "spy"))
    with pytest.raises(Forbidden, match="name 'x'"):
        send(access, ask("GET", "/v0/topics/x", "spy"))


@pytest.mark.parametrize(
    ("method", "path", "scopes"),
    [
        ("POST", "/v0/topics/t/unknown", {"writer", "both", "all"}),
        ("GET", "/v0/topics/t/unknown", {"writer", "both", "all"}),
        ("POST", "/v0/boxes/t/unknown", {"writer", "both", "all"}),
        ("POST", "/v0/topics/t/claim/more", {"writer", "both", "all"}),
        ("GET", "/v0/topics/t/", {"writer", "both", "all"}),
        ("PATCH", "/v0/topics/t", {"boss", "all"}),
        ("DELETE", "/v0/topics", {"boss", "all"}),
        ("PATCH", "/v0/routers/r", {"boss", "all"}),
        ("POST", "/v0/routers/r/x", {"boss", "all"}),
        ("GET", "/v0/routers", {"reader", "both", "all"}),
        ("DELETE", "/v0/routers/r", {"deleter", "all"}),
        ("GET", "/nowhere", {"all", "reader", "writer", "both", "deleter", "boss"}),
    ],
)
def test_what_no_route_serves_is_refused_first(method: str, path: str, scopes: set[str]) -> None:
    access = access_of()
    assert outcome(access, ask(method, path)) == 401
    assert outcome(access, ask(method, path, "nobody")) == 401
    for key in ("all", "reader", "writer", "both", "deleter", "boss"):
        status = outcome(access, ask(method, path, key))
        assert status in ((404, 405) if key in scopes else (403,)), key


def test_what_no_route_serves_is_refused_by_name_as_well() -> None:
    access = access_of()
    assert outcome(access, ask("POST", "/v0/topics/other/unknown", "orders")) == 403
    assert outcome(access, ask("POST", "/v0/topics/orders%2e1/unknown", "orders")) == 404
    assert outcome(access, ask("PATCH", "/v0/topics/%ff", "allorders")) == 403


def test_a_path_that_does_not_decode_is_no_way_past_the_checks() -> None:
    access = access_of()
    assert outcome(access, ask("GET", "/v0/topics/%ff")) == 401
    assert outcome(access, ask("POST", "/v0/topics/%ff/claim", "reader")) == 403
    assert outcome(access, ask("POST", "/v0/topics/%ff/claim", "all")) == 400


def test_probes_are_open_unless_the_setting_says_otherwise() -> None:
    for key in ("", "nobody", "reader"):
        assert outcome(access_of(), ask("GET", "/v0/health", key)) == 200
    closed = access_of(probe_auth=True)
    assert outcome(closed, ask("GET", "/v0/health")) == 401
    assert outcome(closed, ask("GET", "/v0/health", "boss")) == 200


def test_a_query_token_counts_only_where_the_route_says() -> None:
    access = access_of()
    assert outcome(access, ask("GET", "/v0/topics/t/work?token=both")) == 200
    assert outcome(access, ask("GET", "/v0/topics/t/work?token=reader")) == 403
    assert outcome(access, ask("GET", "/v0/topics/t/work?token=nobody&token=both")) == 401
    assert outcome(access, ask("GET", "/v0/topics/t/work?token=%62oth")) == 200
    for path in ("/v0/topics/t", "/v0/topics", "/v0/ws", "/nowhere"):
        assert outcome(access, ask("GET", f"{path}?token=all")) == 401


def test_the_header_beats_the_query() -> None:
    access = access_of()
    assert outcome(access, ask("GET", "/v0/topics/t/work?token=both", "nobody")) == 401
    assert outcome(access, ask("GET", "/v0/topics/t/work?token=nobody", "both")) == 200
    other = ask("GET", "/v0/topics/t/work?token=both", authorization="Basic eA==")
    assert outcome(access, other) == 200


def test_a_route_that_authorises_itself_is_told_who_asks() -> None:
    keys = KeyRing.parse(KEYS)
    access = AccessControl(Settings(), keys)
    for exchange, key in (
        (ask("GET", "/v0/watch/w"), None),
        (ask("GET", "/v0/watch/w", "nobody"), None),
        (ask("GET", "/v0/watch/w", "writer"), keys.find(b"writer")),
        (ask("GET", "/v0/watch/w?token=writer"), keys.find(b"writer")),
        (ask("GET", "/v0/watch/w?token=nobody"), None),
    ):
        assert send(access, exchange).key is key


def test_a_cap_admits_exactly_so_many_requests_of_a_key() -> None:
    access = access_of(max_inflight_per_key=3)
    held = [send(access, ask("GET", "/v0/topics/t", "reader")) for _ in range(3)]
    with pytest.raises(Throttled) as caught:
        send(access, ask("GET", "/v0/topics/t", "reader"))
    assert not caught.value.detail
    # Others have their own, what goes on for long needs none, and neither do probes.
    assert outcome(access, ask("GET", "/v0/topics/t", "both")) == 200
    assert outcome(access, ask("GET", "/v0/ws", "reader")) == 200
    assert outcome(access, ask("GET", "/v0/health", "reader")) == 200
    assert outcome(access, ask("GET", "/v0/watch/w", "reader")) == 200
    assert outcome(access, ask("GET", "/nowhere", "reader")) == 429
    access.release(held[0])
    access.release(held[0])
    again = send(access, ask("GET", "/v0/topics/t", "reader"))
    assert outcome(access, ask("GET", "/v0/topics/t", "reader")) == 429
    for exchange in (*held[1:], again):
        access.release(exchange)
    assert outcome(access, ask("GET", "/v0/topics/t", "reader")) == 200


def test_whoever_is_refused_holds_no_slot() -> None:
    access = access_of(max_inflight_per_key=1)
    for _ in range(3):
        for refused in (
            ask("DELETE", "/v0/topics/t", "spy"),
            ask("GET", "/v0/topics/t", "spy"),
            ask("GET", "/nowhere", "spy"),
        ):
            assert outcome(access, refused) in (403, 404)
            access.release(refused)
    assert outcome(access, ask("GET", "/v0/topics/orders.1", "spy")) == 200


def test_streams_hold_no_slot() -> None:
    access = access_of(max_inflight_per_key=1)
    streams = [send(access, ask("GET", "/v0/ws", "reader")) for _ in range(5)]
    held = send(access, ask("GET", "/v0/topics/t", "reader"))
    for stream in streams:
        access.release(stream)
    assert outcome(access, ask("GET", "/v0/topics/t", "reader")) == 429
    access.release(held)
    assert outcome(access, ask("GET", "/v0/topics/t", "reader")) == 200


def test_a_cap_of_zero_is_none() -> None:
    access = access_of(max_inflight_per_key=0)
    for _ in range(50):
        send(access, ask("GET", "/v0/topics/t", "reader"))


def test_without_keys_the_caps_and_the_header_do_nothing() -> None:
    access = access_of("", max_inflight_per_key=1)
    for _ in range(5):
        assert send(access, ask("PUT", "/v0/topics/t", "whoever")).key is None
    assert outcome(access, ask("GET", "/nowhere")) == 404


# Without keys: which names, and which pages


OWN_NAMES = """
    localhost LOCALHOST:4000 localhost:1 localhost. 127.0.0.1 127.0.0.1:4000 127.8.9.1:80
    [::1] [::1]:4000 [0:0:0:0:0:0:0:1]:4000 dev.example DEV.example:99 other.example
    fd00::7 [fd00::7]:4000
"""


@pytest.mark.parametrize("host", OWN_NAMES.split())
def test_names_of_a_server_on_loopback(host: str) -> None:
    access = access_of("", allowed_hosts="dev.example, other.example:80,[fd00::7]")
    for _ in range(2):
        assert outcome(access, ask("GET", "/v0/topics/t", host=host)) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:4000",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "128.0.0.1",
        "[::2]:4000",
        "localhost@evil.example",
        "",
        "127.1",
        "2130706433",
        "localhost, evil.example",
    ],
)
def test_a_name_that_is_not_its_own_is_refused(host: str) -> None:
    access = access_of("")
    for target in ("/v0/topics/t", "/nowhere", "/v0/health"):
        with pytest.raises(Forbidden, match="HEADRACE_ALLOWED_HOSTS"):
            send(access, ask("GET", target, host=host))


def test_a_request_without_a_name_is_taken() -> None:
    assert outcome(access_of(""), ask("GET", "/v0/topics/t")) == 200


def test_the_names_that_were_allowed_are_not_remembered_without_bound() -> None:
    access = access_of("")
    for port in range(3 * HOSTS_REMEMBERED_MAX):
        assert outcome(access, ask("GET", "/v0/topics/t", host=f"localhost:{port}")) == 200
    assert access._hosts is not None
    assert len(access._hosts.known) <= HOSTS_REMEMBERED_MAX


@pytest.mark.parametrize("settings", [{"host": "0.0.0.0"}, {"host": "::"}, {"keys": "k"}])
def test_names_matter_only_on_loopback_without_keys(settings: dict[str, str]) -> None:
    keys = settings.pop("keys", "")
    access = access_of(keys, **settings)
    assert outcome(access, ask("GET", "/v0/topics/t", keys, host="evil.example")) == 200


def test_the_bound_host_is_one_of_its_names() -> None:
    access = access_of("", host="ip6-localhost")
    status = outcome(access, ask("GET", "/v0/topics/t", host="ip6-localhost:4000"))
    assert status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:5000", "file://", "localhost:4000"]
)
def test_a_page_of_another_origin_changes_nothing(method: str, origin: str) -> None:
    access = access_of("")
    exchange = ask(method, "/v0/topics/t", host="localhost:4000", origin=origin)
    with pytest.raises(Forbidden, match="HEADRACE_CORS_ORIGINS"):
        send(access, exchange)


@pytest.mark.parametrize("origin", ["http://evil.example", "null"])
def test_a_page_of_another_origin_opens_no_websocket(origin: str) -> None:
    exchange = ask("GET", "/v0/ws", host="localhost", origin=origin, upgrade="websocket")
    assert outcome(access_of(""), exchange) == 403


def test_a_page_of_another_origin_may_ask_and_cannot_read() -> None:
    access = access_of("")
    exchange = ask("GET", "/v0/topics/t", host="localhost", origin="http://evil.example")
    assert outcome(access, exchange) == 200
    assert access.response_headers(exchange, CORS) == ()
    assert not access.adds_headers


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:4000", "http://localhost:4000"),
        ("LOCALHOST:4000", "http://localhost:4000"),
        ("localhost", "https://localhost"),
        ("localhost:443", "https://localhost"),
        ("localhost:80", "http://localhost"),
        ("[::1]:4000", "http://[::1]:4000"),
    ],
)
def test_its_own_pages_may_do_everything(host: str, origin: str) -> None:
    access = access_of("")
    assert outcome(access, ask("POST", "/v0/topics/t", host=host, origin=origin)) == 200
    upgrade = ask("GET", "/v0/ws", host=host, origin=origin, upgrade="websocket")
    assert outcome(access, upgrade) == 200


def test_same_origin_needs_the_same_port() -> None:
    assert not same_origin(b"http://localhost:80", b"localhost:443")
    assert not same_origin(b"https://localhost", b"localhost:80")
    assert not same_origin(b"ws://localhost", b"localhost")


def test_with_keys_a_page_needs_one_and_no_more() -> None:
    exchange = ask("POST", "/v0/topics/t", "all", host="h", origin="http://evil.example")
    assert outcome(access_of(), exchange) == 200


# CORS


def test_listed_origins_may_do_everything() -> None:
    access = access_of("", cors_origins="http://app.example:3000/, https://Other.example")
    for origin in ("http://app.example:3000", "https://other.example", "HTTPS://other.EXAMPLE"):
        exchange = ask("POST", "/v0/topics/t", host="localhost", origin=origin)
        assert outcome(access, exchange) == 200
        headers = dict(access.response_headers(exchange, CORS))
        assert headers[b"access-control-allow-origin"] == origin.encode()
        assert headers[b"vary"] == b"Origin"
        assert b"Retry-After" in headers[b"access-control-expose-headers"]
    other = ask("POST", "/v0/topics/t", host="localhost", origin="http://app.example")
    assert outcome(access, other) == 403
    assert dict(access.response_headers(other, CORS)) == {b"vary": b"Origin"}
    assert access.adds_headers


def test_any_origin() -> None:
    access = access_of("", cors_origins="*")
    exchange = ask("POST", "/v0/topics/t", host="localhost", origin="null")
    assert outcome(access, exchange) == 200
    assert dict(access.response_headers(exchange, CORS))[b"access-control-allow-origin"] == b"*"


@pytest.mark.parametrize("keys", ["", KEYS])
@pytest.mark.parametrize("target", ["/v0/topics/t", "/v0/watch/w", "/nowhere"])
def test_a_preflight_is_answered_without_a_key(keys: str, target: str) -> None:
    access = access_of(keys, cors_origins="http://app.example", max_inflight_per_key=1)
    exchange = ask(
        "OPTIONS",
        target,
        host="localhost",
        origin="http://app.example",
        access_control_request_method="POST",
    )
    send(access, exchange)
    assert (exchange.answered, exchange.status) == (True, 204)
    headers = exchange.reply_headers
    assert b"DELETE" in headers[b"access-control-allow-methods"]
    for name in (b"Authorization", b"Idempotency-Key", b"Content-Type", b"Last-Event-ID"):
        assert name in headers[b"access-control-allow-headers"]
    assert b"Producer-Id" in headers[b"access-control-allow-headers"]
    assert int(headers[b"access-control-max-age"]) > 0
    origin = dict(access.response_headers(exchange, CORS))[b"access-control-allow-origin"]
    assert origin == b"http://app.example"


@pytest.mark.parametrize(
    ("keys", "cors", "headers", "status"),
    [
        ("", "", {"origin": "http://a", "access_control_request_method": "PUT"}, 405),
        (KEYS, "", {"origin": "http://a", "access_control_request_method": "PUT"}, 401),
        ("", "http://a", {"origin": "http://b", "access_control_request_method": "PUT"}, 403),
        (KEYS, "http://a", {"origin": "http://b", "access_control_request_method": "PUT"}, 403),
        ("", "http://a", {"origin": "http://a"}, 405),
        (KEYS, "http://a", {"origin": "http://a"}, 401),
        ("", "http://a", {"access_control_request_method": "PUT"}, 405),
    ],
)
def test_other_options_requests(keys: str, cors: str, headers: dict[str, str], status: int) -> None:
    access = access_of(keys, cors_origins=cors)
    exchange = ask("OPTIONS", "/v0/topics/t", host="localhost", **headers)
    assert outcome(access, exchange) == status
    assert not exchange.answered


def test_a_preflight_is_no_way_past_the_host_rule() -> None:
    access = access_of("", cors_origins="*")
    exchange = ask(
        "OPTIONS", "/v0/topics/t", host="evil", origin="http://a", access_control_request_method="P"
    )
    assert outcome(access, exchange) == 403


def test_no_refusal_repeats_a_credential() -> None:
    access = access_of(max_inflight_per_key=1)
    send(access, ask("GET", "/v0/topics/orders.1", "spy"))
    for exchange in (
        ask("GET", "/v0/topics/t", "hush-hush"),
        ask("GET", "/v0/topics/t/work?token=hush-hush"),
        ask("GET", "/nowhere?token=hush-hush", "hush-hush"),
    ):
        with pytest.raises(Unauthorized) as caught:
            send(access, exchange)
        assert "hush" not in f"{caught.value} {caught.value.detail}"
