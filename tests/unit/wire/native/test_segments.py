"""The manifest over HTTP: who may have it, how a pin is renewed and given back, and the words."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from headrace.api.segments import Manifest, Pin, PinReleased
from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.errors import HeadraceError
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.storage.fs import read_file
from headrace.storage.identity import IDENTITY_PATH, decode_identity
from headrace.testing.simdisk import SimDisk
from headrace.wire.exchange import Key
from headrace.wire.native.dialect import NativeDialect
from headrace.wire.native.segments import SegmentsApi
from headrace.wire.routes import READ, RouteTable
from tests.support.exchanges import AnsweredExchange

SETTINGS = Settings(wal_file_bytes=64 << 10, wal_batch_bytes_max=16 << 10, manifest_pins_max=2)


class Limited:
    """A key that may read some names only."""

    has_prefixes = True

    def allows_scope(self, scope: str) -> bool:
        return True

    def allows_name(self, name: str) -> bool:
        return name.startswith("t")


class Lab:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.runtime = StepRuntime(self.clock)
        self.engine = Engine(SimDisk(), self.runtime, SETTINGS, random=SeededRandom(1))
        self.engine.recover()
        self.table = RouteTable([NativeDialect(SegmentsApi(self.engine, SETTINGS).routes())])

    def __call__(self, method: str, path: str, key: Key | None = None) -> AnsweredExchange:
        exchange = AnsweredExchange(method, path, "", {}, 0)
        exchange.route, exchange.params = self.table.match(method, path)
        exchange.key = key
        try:
            exchange.route.handler(exchange)
        except HeadraceError as error:
            exchange.fail(error)
        self.runtime.run()
        assert exchange.answered
        return exchange


@pytest.fixture
def ask() -> Iterator[Lab]:
    lab = Lab()
    lab.engine.append("t", [b"1", b"2"]).result()
    lab.engine.checkpoint().result()
    lab.engine.append("t", [b"3"]).result()
    yield lab
    lab.engine.abandon()


def test_a_manifest_has_the_documented_form(ask: Lab) -> None:
    reply = ask("GET", "/v0/topics/t/segments")
    assert reply.status == 200
    made = msgspec.json.decode(reply.reply, type=Manifest)
    assert reply.json.keys() == {*Manifest.__struct_fields__, *Manifest.added_fields}
    assert (made.topic, made.head_seq, made.earliest_seq, made.tail_from_seq) == ("t", 3, 1, 3)
    (file,) = made.files
    assert (file.first_seq, file.last_seq, file.row_count) == (1, 2, 2)
    assert made.pin.startswith("pin_") and len(made.pin) == 26
    assert made.pin_expires_ms == ask.engine.state.clock.now_ms() + made.pin_ms
    kept = read_file(ask.engine.state.fs, IDENTITY_PATH)
    assert made.directory == decode_identity(kept, IDENTITY_PATH)


def test_a_pin_is_renewed_and_given_back(ask: Lab) -> None:
    pin = ask("GET", "/v0/topics/t/segments").json["pin"]
    ask.clock.advance(1_000)
    renewed = ask("POST", f"/v0/topics/t/segments/{pin}")
    assert renewed.status == 200
    made = msgspec.json.decode(renewed.reply, type=Pin)
    assert made.pin_expires_ms == ask.engine.state.clock.now_ms() + SETTINGS.manifest_pin_ms
    released = ask("DELETE", f"/v0/topics/t/segments/{pin}")
    assert msgspec.json.decode(released.reply, type=PinReleased).released
    for method in ("POST", "DELETE"):
        gone = ask(method, f"/v0/topics/t/segments/{pin}")
        assert (gone.status, gone.json["error"]["code"]) == (404, "not_found")


def test_a_pin_lapses(ask: Lab) -> None:
    pin = ask("GET", "/v0/topics/t/segments").json["pin"]
    ask.clock.advance(SETTINGS.manifest_pin_ms)
    assert ask("POST", f"/v0/topics/t/segments/{pin}").status == 404


def test_pins_are_bounded(ask: Lab) -> None:
    for _ in range(2):
        assert ask("GET", "/v0/topics/t/segments").status == 200
    refused = ask("GET", "/v0/topics/t/segments")
    assert (refused.status, refused.json["error"]["code"]) == (429, "throttled")
    assert refused.json["error"]["detail"] == {"limit": "manifest_pins_max", "max": 2}


def test_a_key_with_prefixes_reads_over_http_only(ask: Lab) -> None:
    pin = ask("GET", "/v0/topics/t/segments").json["pin"]
    for method, path in (("GET", ""), ("POST", f"/{pin}"), ("DELETE", f"/{pin}")):
        refused = ask(method, f"/v0/topics/t/segments{path}", Limited())
        assert (refused.status, refused.json["error"]["code"]) == (403, "forbidden")


def test_no_such_topic(ask: Lab) -> None:
    refused = ask("GET", "/v0/topics/nothing/segments")
    assert (refused.status, refused.json["error"]["code"]) == (404, "topic_not_found")


def test_as_boxes(ask: Lab) -> None:
    made = ask("GET", "/v0/boxes/t/segments").json
    assert made["box"] == "t" and "topic" not in made
    assert ask("POST", f"/v0/boxes/t/segments/{made['pin']}").json["box"] == "t"
    assert ask("GET", "/v0/boxes/nothing/segments").json["error"]["code"] == "box_not_found"


def test_all_of_it_takes_the_scope_read(ask: Lab) -> None:
    assert {route.scopes for route in ask.table.routes} == {frozenset({READ})}
