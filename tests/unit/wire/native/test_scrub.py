"""`GET /v0/storage/scrub` (native §10f): pages of files, and who may see them."""

from __future__ import annotations

from headrace.core.clock import ManualClock
from headrace.core.errors import HeadraceError
from headrace.testing.simdisk import SimDisk
from headrace.wire.native.dialect import NativeDialect
from headrace.wire.native.scrub import ScrubApi
from headrace.wire.routes import RouteTable
from tests.support.engines import open_engines
from tests.support.exchanges import AnsweredExchange, GivenKey
from tests.support.scrubbing import SCRUBBED, flip, pass_time, seal


def test_pages_of_files_and_what_is_wrong_with_them(clock: ManualClock, disk: SimDisk) -> None:
    """§10f: each file once, by kind and number; a key with prefixes sees none."""
    with open_engines(clock) as start:
        engine = start(disk, **SCRUBBED)
        table = RouteTable([NativeDialect(ScrubApi(engine, engine.settings).routes())])

        def ask(query: str = "", key: GivenKey | None = None) -> AnsweredExchange:
            exchange = AnsweredExchange("GET", "/v0/storage/scrub", query, {}, 0)
            exchange.key = key
            exchange.route, exchange.params = table.match("GET", "/v0/storage/scrub")
            try:
                exchange.route.handler(exchange)
            except HeadraceError as error:
                exchange.fail(error)
            return exchange

        off = ask().json
        assert (off["enabled"], off["total"], off["files"]) == (False, 0, [])
        for name in ("a", "b", "c"):
            seal(engine, name)
        engine.scrub.start()
        engine.runtime.drain()
        first = ask("page_size=1").json
        assert first["files"][0]["verified_ms"] is None
        path = first["files"][0]["file"]
        flip(disk, path, 70_000)
        pass_time(engine, clock, 60_000)

        whole = ask().json
        assert (whole["enabled"], whole["damaged"]) == (True, 1)
        assert "next_cursor" not in whole
        listed, query = [], "page_size=2"
        while True:
            page = ask(query).json
            assert 0 < len(page["files"]) <= 2
            listed += page["files"]
            if "next_cursor" not in page:
                break
            query = f"page_size=2&cursor={page['next_cursor']}"
        assert listed == whole["files"] and len(listed) == whole["total"] == page["total"] > 4
        assert [file["file"] for file in listed if file["damaged"]] == [path]
        assert path in listed[0]["why"] and listed[0]["tier"] == "hot"
        assert all(file["verified_ms"] for file in listed[1:])
        assert "why" not in listed[1] and "tier" not in listed[-1]
        assert ask("cursor=%21").status == 400
        assert ask(key=GivenKey("read", "a")).status == 403
