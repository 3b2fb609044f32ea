"""Every decoder of bodies and words on damaged input: refused by name, never worse than that.

Nothing but a `HeadraceError` comes out, nothing hangs, and what is accepted comes back byte for
byte.  The seeds are fixed; `./run test --long` takes others, for longer.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import time
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headrace.engine.topics.config import decode_config
from headrace.server import auth, compression
from headrace.wire.exchange import ARROW_STREAM, Exchange
from headrace.wire.native.append import whole_number
from headrace.wire.native.request_checks import check_new_name
from headrace.wire.native.topics import parse_match, read_cursor, write_cursor
from headrace.wire.native.watch_ids import Position, decode_id, encode_id
from headrace.wire.queries import query_of
from headrace.wire.routes import decode_segment
from tests.support.wire_fuzz import (
    Damage,
    OddJson,
    World,
    fields_of,
    items_of,
    only_refusals,
)

# How often each decoder is run by the suite: together some 200,000 times.
REQUESTS, APPENDS, FUNCTIONS, ARROWS = 10_000, 10_000, 5_000, 3_000


# JSON bodies

BODIES = {
    "POST /v0/topics/t": [
        b'{"records":[{"data":{"id":1},"tag":"x","node":"n","meta":{"k":"v"}},{"data":null}],'
        b'"node":"n1","idempotency_key":"k1","create":true,"disable_backpressure":false,'
        b'"expected_head_seq":2,"config":{"type":"log","ttl_ms":5}}',
        b'{"records":[{"data":[1,2.5,"\\u00e9"]}]}',
    ],
    "POST /v0/boxes/b": [b'{"records":[{"data":1}],"config":{"durability":"memory"}}'],
    "POST /v0/topics/t/diff": [
        b'{"from_seq":0,"limit":10,"node":["a","b"],"include_tags":true,"include_meta":false,'
        b'"wait_ms":10,"max_batch_bytes":1000,"epoch":1}',
        b'{"from_ts":1700000000000,"node":"a"}',
        b'{"last":5}',
        b"",
    ],
    "POST /v0/topics/t/delete": [
        b'{"before_seq":1,"match":["tag","Glob","x*"]}',
        b'{"match":["tag","Eq","x"]}',
        b'{"match":"chat-4*"}',
    ],
    "POST /v0/topics/t/archived": [b'{"epoch":1,"to_seq":1}'],
    "PUT /v0/topics/p": [
        b'{"type":"log","ttl_ms":0,"cap_records":5,"cap_bytes":9,"discard":"reject","durable":true,'
        b'"durability":"disk","priority":null,"auto_priority":true,"auto_create":false,'
        b'"idempotency_window_ms":1,"dedupe_node":false,"lease_ms":3,"claim_jitter_ms":0,'
        b'"max_deliveries":4,"dead_letter":"dead","leases_durable":true,'
        b'"retain_until_archived":true,"retain_bytes_max":7}',
        b"{}",
    ],
    "POST /v0/topics/q/claim": [b'{"node":"w","max":2,"lease_ms":1000}', b'{"node":"w"}'],
    "POST /v0/topics/q/ack": [
        b'{"node":"w","seqs":[1,2],"lease_ids":["lease_00000000000000ff",""]}',
        b'{"node":"w","seqs":[3]}',
    ],
    "POST /v0/topics/q/nack": [b'{"node":"w","seqs":[1],"delay_ms":5,"lease_ids":["lease_1"]}'],
    "POST /v0/boxes/q/extend": [b'{"node":"w","seqs":[1],"lease_ms":500,"lease_ids":[""]}'],
    "POST /v0/topics/t/redrive": [
        b'{"match":["tag","Glob","x*"],"meta":{"k":[1]},"limit":5,"to":"q","from_seq":0}',
        b"{}",
    ],
    "PUT /v0/routers/r": [
        b'{"source":"ra","dest":"rb"}',
        b'{"source":"ra","dest":"rb","preserve_node":false,"preserve_tag":true,"create_dest":true,'
        b'"filter":["tag","Glob","x*"],"allow_cycle":true,"guarantee":"exactly_once",'
        b'"backfill":false}',
        b'{"source":"ra","dest":"rb","filter":"chat-4*","backfill":0}',
    ],
    "POST /v0/watch": [
        b'{"topics":{"t":{"from_seq":0,"tail":false,"epoch":1},"o*":null},"node":["a"],"limit":5,'
        b'"max_batch_bytes":9,"heartbeat_ms":1000,"include_meta":true,"include_tags":true,'
        b'"include_data":false,"consistency":"strong","cursor":"eyJ0IjoxfQ"}',
        b'{"boxes":{"t":{}}}',
    ],
}
HEADERS = [
    {b"content-type": b"application/json"},
    {b"content-type": b"application/json; charset=utf-8", b"idempotency-key": b"\xff"},
    {b"content-type": b"application/x-www-form-urlencoded"},
    {b"content-type": b"application/json", b"producer-id": b"p", b"producer-epoch": b"1"},
]


def fuzz_bodies(world: World, target: str, seed: int, count: int) -> Counter[int]:
    method, _, path = target.partition(" ")
    damage = Damage(seed, BODIES[target])
    statuses: Counter[int] = Counter()
    for body in BODIES[target]:  # a router stays where it is put first
        world.ask(method, path, body, HEADERS[0])
    for _ in range(count):
        body = damage.next()
        headers = HEADERS[0] if damage.draw.random() < 0.9 else damage.draw.choice(HEADERS)
        statuses[world.ask(method, path, body, headers).status] += 1
    return statuses


@pytest.mark.parametrize("target", BODIES)
def test_json_bodies(world, target) -> None:
    statuses = fuzz_bodies(world, target, seed=1, count=REQUESTS)
    assert statuses[400] > REQUESTS // 4, statuses
    assert statuses[200] + statuses[201] > REQUESTS // 20, statuses


def check_round_trip(world: World, body: bytes) -> bool:
    """Append; whether it was accepted, and then what is read is what was sent."""
    answer = world.ask("POST", "/v0/topics/odd", body)
    if answer.status >= 300:
        return False
    done = answer.json
    sent = items_of(fields_of(body.decode())["records"])
    assert done["count"] == len(sent), body
    page = {"from_seq": done["first_seq"] - 1, "limit": len(sent), "include_tags": True}
    reply = world.ask("POST", "/v0/topics/odd/diff", json.dumps(page).encode()).reply
    found = items_of(fields_of(reply.decode())["records"])
    assert len(found) == len(sent)
    whole = fields_of(body.decode())
    for one, other in zip(map(fields_of, sent), map(fields_of, found), strict=True):
        assert other["data"] == one["data"], body
        meta = one.get("meta", "null")
        assert other.get("meta", "null") == meta, body
        assert json.loads(other.get("$tag", "null")) == json.loads(one.get("tag", "null")), body
        node = one.get("node", "null")
        node = whole.get("node", "null") if node == "null" else node
        assert json.loads(other.get("$node", "null")) == json.loads(node), body
    return True


def fuzz_appends(world: World, seed: int, count: int) -> int:
    odd = OddJson(seed)
    damage = Damage(seed, [b'{"records":[{"data":1}]}'])
    accepted = 0
    for number in range(count):
        body = odd.append()
        if number % 2:
            body = damage.of(body)
        accepted += check_round_trip(world, body)
    return accepted


def test_what_is_accepted_comes_back_byte_for_byte(world) -> None:
    accepted = fuzz_appends(world, seed=2, count=APPENDS)
    assert APPENDS // 2 < accepted < APPENDS


# Words in headers, queries, paths and settings


def asked(query: str) -> Exchange:
    return Exchange("GET", "/v0/topics", query, {}, 0)


def decompressed(data: bytes) -> object:
    encoding = ("gzip", "zstd", "", "br")[data[0] % 4 if data else 0]
    return compression.decode_body(data[1:], encoding, 10_000)


FUNCTION_CORPUS: dict[str, tuple[Callable[[bytes], object], list[bytes]]] = {
    "cursor": (
        lambda data: read_cursor(data.decode("latin-1")),
        [write_cursor("orders").encode(), b"eyJhZnRlciI6Im9yZGVycyJ9", b"eyJhZnRlciI6MX0="],
    ),
    "watch id": (
        lambda data: decode_id(data.decode("latin-1")),
        [
            encode_id([Position("jobs", 4, 1), Position("t", 1 << 60, 1 << 60)]),
            encode_id([Position(f"t{n}", n + 1, n * n) for n in range(80)]),
            b"cp_AQ",
            b"eyJqb2JzIjoxfQ",
        ],
    ),
    "API keys": (
        lambda data: auth.KeyRing.parse(data.decode("utf-8", "surrogateescape")),
        [b"s3cret:rw:orders:|audit., other", b"k::a|b", b"a:read+WRITE+d,b:admin", b" , "],
    ),
    "authorization": (auth.bearer_token, [b"Bearer  k1 ", b"bearer k", b"Basic eDp5"]),
    "token": (
        lambda data: (
            auth.query_token(data.decode("latin-1")),
            auth.redacted(data.decode("latin-1")),
        ),
        [b"max=2&token=s3cret&%74oken=s3cret&x", b"token=a%2Bb+c&token=d"],
    ),
    "query": (
        lambda data: query_of(asked(data.decode("latin-1"))),
        [b"prefix=a%20b&page_size=10&cursor=x&touch=true", b"a&b=&=c&&d=%", b"x=1&" * 120],
    ),
    "config": (decode_config, [*BODIES["PUT /v0/topics/p"], b'{"type":null,"ttl_ms":5}']),
    "compressed body": (
        decompressed,
        [
            b"\0" + gzip.compress(b"hello" * 100, mtime=0),
            b"\0" + gzip.compress(bytes(20_000), mtime=0),
            b"\1" + compression.encode_body(b"hello" * 100, "zstd") * 2,
            b"\1" + compression.encode_body(bytes(20_000), "zstd"),
            b"\2plain",
            b"\0" + zlib.compress(b"x"),
        ],
    ),
    "accepted encodings": (
        lambda data: compression.choose(data),
        [b"gzip;q=0.5, zstd;q=0", b"*, identity;q=nan", b"br;q=1e400;x, x-gzip"],
    ),
    "path segment": (
        lambda data: decode_segment(data.decode("latin-1")),
        [b"jobs-%3Eaudit", b"%c3%a9%", b"a%2Fb"],
    ),
    "name": (
        lambda data: check_new_name(data.decode("latin-1")),
        [b"orders:eu-1", b"ds:x", b"a" * 255],
    ),
    "number": (
        lambda data: whole_number("n", data.decode("latin-1")),
        [b"12", b"\xef\xbc\x91", b"18446744073709551616"],
    ),
    "match": (
        lambda data: parse_match(data.decode("latin-1").split(",")),
        [b"tag,Glob,tenant42:*", b"tag,Eq,x", b"x*"],
    ),
}


def fuzz_function(name: str, seed: int, count: int) -> int:
    """How often the input was taken."""
    function, corpus = FUNCTION_CORPUS[name]
    damage = Damage(seed, corpus)
    return sum(only_refusals(lambda: function(damage.next())) for _ in range(count))


@pytest.mark.parametrize("name", FUNCTION_CORPUS)
def test_words(name) -> None:
    assert fuzz_function(name, seed=3, count=FUNCTIONS) > 0


def test_what_is_written_is_read_back() -> None:
    draw = random.Random(4)
    for _ in range(2_000):
        name = "".join(chr(draw.choice([65, 0x7F, 0xE9, 0x20AC, 0x1F600])) for _ in range(9))
        assert read_cursor(write_cursor(name)) == name
        data = draw.randbytes(draw.randrange(300)) * draw.randrange(5)
        for encoding in ("gzip", "zstd"):
            packed = compression.encode_body(data, encoding)
            assert compression.decode_body(packed, encoding, len(data)) == data
        places = [
            Position(f"t{n:03}", draw.randrange(1, 1 << 40), draw.randrange(1 << 53))
            for n in range(draw.randrange(1, 90))
        ]
        told = decode_id(encode_id(places).decode())
        assert told is not None
        by_epoch = {place.epoch: place.cursor for place in places}
        for place in places:
            if len(by_epoch) == len(places):
                assert told.of(place.name, place.epoch) == (place.epoch, place.cursor)


TARGETS = [
    b"/v0/topics?prefix=a&page_size=10&cursor=" + write_cursor("a").encode() + b"&touch=1",
    b"/v0/topics/t?touch=false",
    b"/v0/topics/%74/segments",
    b"/v0/topics/t/segments/pin_x",
    b"/v0/watch/wid_AAAAAAAAAAAAAAAAAAAAAA?token=x",
    b"/v0/boxes/b",
    b"/v0/health",
    b"/v0/ready",
    b"/v0/metrics",
    b"/v0/ws",
    b"/docs",
    b"/openapi.json",
]


def fuzz_targets(world: World, seed: int, count: int) -> Counter[int]:
    damage = Damage(seed, TARGETS, [b"/v0/", b"/topics/", b"//", b"/../", b"?", b"#"])
    statuses: Counter[int] = Counter()
    for _ in range(count):
        # A target reaches the application as printable ASCII: transports refuse all else.
        target = re.sub(rb"[^!-~]", b"", damage.next()).decode()
        method = damage.draw.choice(["GET", "GET", "HEAD", "DELETE", "POST", "PUT", "PATCH"])
        headers = {b"accept": damage.draw.choice([b"*/*", b"", b"application/json", b"text/html"])}
        statuses[world.ask(method, target, b"", headers).status] += 1
    return statuses


def test_targets(world) -> None:
    statuses = fuzz_targets(world, seed=5, count=2 * REQUESTS)
    assert {200, 404, 405} <= statuses.keys(), statuses


# Arrow


def arrow_streams() -> list[bytes]:
    tables: list[dict[str, Any]] = [
        {"data": pa.array([b"x", b"", b"\xff"], pa.binary())},
        {"data": pa.array(['{"a":1}', "2"], pa.utf8()), "tag": ["a", None], "node": ["n", "m"]},
        {"data": pa.array([b"1"], pa.large_binary()), "meta": pa.array(['{"k":1}'], pa.utf8())},
    ]
    bodies = []
    for columns in tables:
        table = pa.table(columns)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        bodies.append(sink.getvalue().to_pybytes())
    return bodies


def fuzz_arrow(world: World, seed: int, count: int) -> Counter[int]:
    damage = Damage(seed, arrow_streams(), [b"\xff\xff\xff\x7f", bytes(8), b"\xff" * 8])
    statuses: Counter[int] = Counter()
    for _ in range(count):
        headers = {b"content-type": ARROW_STREAM}
        if damage.draw.random() < 0.2:
            headers[b"idempotency-key"] = damage.of(b"key")
            headers[b"expected-head-seq"] = damage.of(b"1")
        statuses[world.ask("POST", "/v0/topics/arrow", damage.next(), headers).status] += 1
    page = world.ask("POST", "/v0/topics/arrow/diff", b'{"limit":1000}')
    assert page.status == 200
    return statuses


def test_arrow_bodies(world) -> None:
    statuses = fuzz_arrow(world, seed=6, count=ARROWS)
    assert statuses[400] > ARROWS // 4 and statuses[200] > 20, statuses


# All of them for longer


@pytest.mark.long
def test_everything_for_long(sweep) -> None:
    until = time.monotonic() + sweep.seconds
    rounds = 0
    while time.monotonic() < until:
        seed = sweep.seed * 1_000 + rounds
        with World() as world:
            for target in BODIES:
                fuzz_bodies(world, target, seed, 1_000)
            fuzz_appends(world, seed, 1_000)
            fuzz_targets(world, seed, 1_000)
            fuzz_arrow(world, seed, 500)
        for name in FUNCTION_CORPUS:
            fuzz_function(name, seed, 1_000)
        rounds += 1
    print(f"{rounds} rounds of 21,500 executions")
