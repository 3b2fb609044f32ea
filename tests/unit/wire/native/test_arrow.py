"""Arrow bodies: the same records whichever way they were written and read, and every refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.errors import HeadraceError
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.engine.reading.walk import WINDOW_BLOCKS_MAX
from headrace.metrics.requests import Metrics
from headrace.storage.block import Batch
from headrace.storage.files.merge_policy import MergePolicy
from headrace.storage.files.store import DirectoryStore
from headrace.storage.segment.page_columns import LONG_ROWS_MIN
from headrace.testing.simdisk import SimDisk
from headrace.wire.exchange import ARROW_STREAM, JSON
from headrace.wire.native.arrow import OFF_LOOP_BYTES_MIN
from headrace.wire.native.dialect import NativeDialect
from headrace.wire.native.routes import topic_routes
from headrace.wire.routes import RouteTable
from headrace.wire.server_context import ServerContext
from tests.support.exchanges import AnsweredExchange

SMALL = {"wal_file_bytes": 256 << 10, "wal_batch_bytes_max": 64 << 10}
ARROW = {b"content-type": ARROW_STREAM}
COLUMNS = ["seq", "ts", "kind", "tag", "node", "meta", "data"]


class Lab:
    """An engine with the native API in front of it."""

    def __init__(self, disk: SimDisk, cold: DirectoryStore | None = None, **settings: int) -> None:
        self.disk = disk
        self.settings = Settings(**{**SMALL, **settings})  # type: ignore[arg-type]
        policy = MergePolicy(own_rows_min=1, own_bytes_min=1, own_topics_max=1_000)
        self.engine = Engine(
            disk, StepRuntime(ManualClock()), self.settings,
            random=SeededRandom(1), cold=cold, policy=policy if cold else None,
        )  # fmt: skip
        self.engine.recover()
        context = ServerContext(self.engine, self.settings, Metrics())
        self.table = RouteTable([NativeDialect(topic_routes(context))])

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[bytes, bytes] | None = None
    ) -> AnsweredExchange:
        path, _, query = path.partition("?")
        exchange = AnsweredExchange(
            method, path, query, {b"content-type": JSON, **(headers or {})}, 0
        )
        exchange.body = body
        exchange.route, exchange.params = self.table.match(method, path)
        try:
            exchange.route.handler(exchange)
        except HeadraceError as error:
            exchange.fail(error)
        runtime = self.engine.runtime
        assert isinstance(runtime, StepRuntime)
        runtime.drain()
        assert exchange.answered
        return exchange

    def append(self, columns: object, path: str = "t", **headers: str) -> AnsweredExchange:
        """Append a table, or the bytes of a stream."""
        body = columns if isinstance(columns, bytes) else stream(columns)
        given = {k.replace("_", "-").encode(): v.encode() for k, v in headers.items()}
        return self.ask("POST", f"/v0/topics/{path}", body, {**ARROW, **given})

    def append_json(self, *records: object) -> AnsweredExchange:
        return self.ask("POST", "/v0/topics/t", msgspec.json.encode({"records": records}))

    def diff(self, **body: object) -> pa.Table:
        asked = self.ask(
            "POST", "/v0/topics/t/diff", msgspec.json.encode(body), {b"accept": ARROW_STREAM}
        )
        assert (asked.status, asked.content_type) == (200, ARROW_STREAM), asked.reply
        table = pa.ipc.open_stream(asked.reply).read_all()
        table.validate(full=True)
        return table

    def diff_json(self, **body: object) -> Any:
        asked = self.ask("POST", "/v0/topics/t/diff", msgspec.json.encode(body))
        assert asked.status == 200
        return asked.json


def stream(columns: Any, rows_a_batch: int | None = None, **options: object) -> bytes:
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, **options) as writer:  # type: ignore[arg-type]
        writer.write_table(table, rows_a_batch)
    return sink.getvalue().to_pybytes()


def said(table: pa.Table) -> dict[str, str]:
    """What is beside the records of an answer."""
    return {
        key.decode().removeprefix("headrace."): value.decode()
        for key, value in (table.schema.metadata or {}).items()
    }


def as_json(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of an answer as the records of a JSON one."""
    rows = table.set_column(1, "ts", table["ts"].cast(pa.int64())).to_pylist()
    records = []
    for row in rows:
        record = {"$seq": row["seq"], "$ts": row["ts"], "data": msgspec.json.decode(row["data"])}
        record |= {f"${name}": row[name] for name in ("tag", "node") if row[name] is not None}
        if row["meta"] is not None:
            record["meta"] = msgspec.json.decode(row["meta"])
        records.append(record)
    return records


@pytest.fixture
def labs() -> Iterator[Callable[..., Lab]]:
    made: list[Lab] = []

    def make(disk: SimDisk | None = None, **settings: Any) -> Lab:
        made.append(Lab(disk or SimDisk(), **settings))
        return made[-1]

    yield make
    for one in made:
        one.engine.abandon()


@pytest.fixture
def lab(labs: Callable[..., Lab]) -> Lab:
    return labs()


# Round trips

RECORDS = [
    {"data": {"id": n, "text": "\u00e9" * (n % 5)}, "tag": f"t{n % 3}", "node": f"n{n % 2}",
     "meta": {"n": n}} if n % 4 else {"data": n}
    for n in range(40)
]  # fmt: skip


def table_of(records: list[dict[str, Any]], data: pa.DataType, text: pa.DataType) -> pa.Table:
    encoded = [msgspec.json.encode(record["data"]).decode() for record in records]
    metas = [msgspec.json.encode(r["meta"]).decode() if "meta" in r else None for r in records]
    return pa.table(
        {
            "data": pa.array(encoded, data),
            "tag": pa.array([r.get("tag") for r in records], text),
            "node": pa.array([r.get("node") for r in records], text),
            "meta": pa.array(metas, pa.utf8()),
        }
    )


@pytest.mark.parametrize("data", [pa.utf8(), pa.large_utf8(), pa.string_view()], ids=str)
@pytest.mark.parametrize(
    "text",
    [pa.utf8(), pa.large_utf8(), pa.string_view(), pa.dictionary(pa.int8(), pa.utf8())],
    ids=str,
)
@pytest.mark.parametrize("rows_a_batch", [None, 7])
def test_written_as_arrow_read_as_json(lab, data, text, rows_a_batch) -> None:
    reply = lab.append(stream(table_of(RECORDS, data, text), rows_a_batch))
    assert reply.status == 201, reply.reply
    answer = reply.json
    assert (answer["first_seq"], answer["last_seq"], answer["count"]) == (1, 40, 40)
    assert "seqs" not in answer
    found = lab.diff_json(include_tags=True)["records"]
    for record, sent in zip(found, RECORDS, strict=True):
        wanted = {"data": sent["data"], "$seq": record["$seq"], "$ts": record["$ts"]}
        wanted |= {f"${k}": sent[k] for k in ("tag", "node") if k in sent}
        assert record == (wanted | {"meta": sent["meta"]} if "meta" in sent else wanted)


TIERS = ["memory", "hot", "hot, not cached", "cold", "all of them"]


def in_tier(labs: Callable[..., Lab], tier: str, parts: list[list[dict[str, Any]]]) -> Lab:
    """Each part appended, by Arrow and by JSON in turn, and put where `tier` says."""
    cold_disk = SimDisk()
    many = tier in ("cold", "all of them")
    options: dict[str, Any] = {"hot_retain_segments": 1} if many else {}
    lab = labs(cold=DirectoryStore(cold_disk) if many else None, **options)
    for number, part in enumerate(parts):
        if number % 2:
            lab.append(table_of(part, pa.utf8(), pa.utf8()))
        else:
            lab.append_json(*part)
        last = number == len(parts) - 1
        if tier == "memory" or (tier == "all of them" and last):
            continue
        lab.engine.checkpoint().result()
        for topic in lab.engine.state.by_id.values():
            lab.engine.state.forget_blocks(topic)
        for segment in lab.engine.state.catalog.segments():
            lab.engine.state.cache.drop(segment.meta.file_id, 100)
    if many:
        assert {meta.tier for meta in lab.engine.state.catalog.metas()} == {0, 1}
        cold_disk.cached = False
    lab.disk.cached = tier != "hot, not cached"
    return lab


@pytest.mark.parametrize("tier", TIERS)
def test_arrow_and_json_read_the_same_from_every_tier(labs, tier) -> None:
    """Whatever the tier, the cursor, the limits, the nodes left out and the holes."""
    lab = in_tier(labs, tier, [RECORDS[n : n + 7] for n in range(0, 40, 7)])
    for hole in (None, "t1", "t2"):
        if hole is not None:
            lab.engine.delete("t", match=hole).result()
        for from_seq, limits, node in product(
            (0, 1, 8, 23, 39, 40),
            ({}, {"limit": 3}, {"limit": 11}, {"max_batch_bytes": 100}),
            ([], "n0", ["n0", "n1"]),
        ):
            asked = {"from_seq": from_seq, "node": node, **limits}
            page = lab.diff_json(include_tags=True, **asked)
            table = lab.diff(**{"limit": 256, **asked})
            assert as_json(table) == page["records"], asked
            beside = said(table)
            for name in ("next_from_seq", "head_seq", "earliest_seq", "lag", "epoch"):
                assert int(beside[name]) == page[name], (name, asked)
            assert beside["caught_up"] == str(page["caught_up"]).lower()


def test_the_schema_is_the_same_whatever_is_in_a_page(lab) -> None:
    lab.append_json({"data": 1})
    plain = lab.diff().schema
    lab.append_json({"data": 1, "tag": "x", "node": "y", "meta": {}})
    assert lab.diff().schema.equals(plain)
    assert lab.diff(from_seq=2).schema.equals(plain)
    assert plain.names == COLUMNS
    assert plain.types == [
        pa.int64(), pa.timestamp("ms", "UTC"), pa.int8(), pa.utf8(), pa.utf8(), pa.binary(),
        pa.binary(),
    ]  # fmt: skip
    without = lab.diff(include_tags=False, include_meta=False)
    assert without.column_names == ["seq", "ts", "kind", "node", "data"]


def test_a_page_without_records(lab) -> None:
    lab.ask("PUT", "/v0/topics/t")
    table = lab.diff()
    assert (len(table), said(table)["caught_up"], said(table)["next_from_seq"]) == (0, "true", "0")


def test_a_tombstone_is_beside_the_records(lab) -> None:
    lab.ask("PUT", "/v0/topics/t", b'{"cap_records":3}')
    for n in range(6):
        lab.append_json({"data": n})
    table = lab.diff()
    assert table["data"].to_pylist() == [b"3", b"4", b"5"]
    page = lab.diff_json()
    assert msgspec.json.decode(said(table)["tombstone"]) == page["tombstone"]
    assert "tombstone" not in said(lab.diff(from_seq=3))


def test_bytes_are_stored_unchecked_and_as_they_are(lab) -> None:
    payloads = [b"", b"\xff\xfe", b"{", bytes(range(256))]
    assert lab.append({"data": pa.array(payloads, pa.binary_view())}).status == 201
    table = lab.diff()
    assert table["data"].to_pylist() == payloads
    assert table["kind"].to_pylist() == [1, 1, 1, 1]


def test_json_comes_back_as_it_was_spelt(lab) -> None:
    spelt = ['{"b":1, "a":1.50}', " [1,\n2] ", "null", '"\\u00e9"', "1e3", '{"x":",]"}']
    lab.append({"data": spelt})
    assert lab.diff()["data"].to_pylist() == [text.encode() for text in spelt]
    assert lab.diff()["kind"].to_pylist() == [0] * 6


def test_a_meta_of_null_is_none(lab) -> None:
    metas = ["null", None, "{}", "[1]"]
    for kind in (pa.utf8(), pa.binary(), pa.large_binary()):
        lab.append({"data": ["1"] * 4, "meta": pa.array(metas, pa.utf8()).cast(kind)})
    assert lab.diff()["meta"].to_pylist() == [None, None, b"{}", b"[1]"] * 3
    assert "meta" not in lab.diff_json()["records"][0]
    lab.append({"data": ["1"], "meta": pa.array([None], pa.utf8())})
    assert lab.diff()["meta"].to_pylist()[-1] is None


def test_restart_after_an_arrow_append(labs) -> None:
    lab = labs()
    lab.append(stream(table_of(RECORDS, pa.utf8(), pa.utf8()), 7), idempotency_key="k")
    lab.append({"data": [b"\xff", b""]})
    before = lab.diff()
    lab.engine.abandon()
    image = lab.disk.image(lab.disk.position, "all", 0, power_loss=False)
    again = labs(image)
    assert again.diff().equals(before)
    repeated = again.append({"data": ["1"]}, idempotency_key="k").json
    assert (repeated["deduped"], repeated["count"]) == (True, 40)


def test_limits_of_an_answer(labs) -> None:
    lab = labs(arrow_rows_max=50, arrow_bytes_max=2_000, read_bytes_max=1_000,
               read_bytes_default=500)  # fmt: skip
    lab.append({"data": [b"x"] * 50})
    lab.append({"data": [b"x" * 100] * 50})
    assert len(lab.diff()) == 50
    assert len(lab.diff(limit=1_000_000)) == 50
    assert len(lab.diff(from_seq=50)) == 20
    assert len(lab.diff(from_seq=50, max_batch_bytes=1)) == 1


# Conditions


def test_conditions_in_headers_and_query(lab) -> None:
    one = {"data": ["1", "2"]}
    assert lab.append(one, "t?create=false").code == "topic_not_found"
    assert lab.append(one, "t?expected_head_seq=1").code == "head_mismatch"
    first = lab.append(one, "t?return_seqs=true&expected_head_seq=0", idempotency_key="k")
    assert (first.status, first.json["seqs"]) == (201, [1, 2])
    again = lab.append(one, "t?return_seqs=1", idempotency_key="k").json
    assert (again["deduped"], again["seqs"]) == (True, [1, 2])
    assert lab.append(one, expected_head_seq="1").code == "head_mismatch"
    assert lab.append(one, expected_head_seq="2").json["first_seq"] == 3
    assert lab.append(one, expected_head_seq="two").code == "invalid_request"
    who = {"producer_id": "p", "producer_epoch": "0"}
    assert lab.append(one, **who, producer_seq="0").json["first_seq"] == 5
    assert lab.append(one, **who, producer_seq="1").json["first_seq"] == 7
    assert lab.append(one, **who, producer_seq="0").json["first_seq"] == 5
    assert lab.append(one, **who, producer_seq="3").code == "producer_gap"
    assert lab.append(one, producer_id="p").code == "invalid_request"
    assert lab.append(one, "ds:x").code == "invalid_request"


def test_caps_hold_for_columns(lab) -> None:
    lab.ask("PUT", "/v0/topics/t", b'{"cap_records":3,"discard":"reject"}')
    assert lab.append({"data": ["1"] * 4}).code == "record_too_large"
    assert lab.append({"data": ["1"] * 2}).status == 200
    assert lab.append({"data": ["1"] * 2}).code == "topic_full"
    assert lab.engine.topic("t").head_seq == 2


# Refusals


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"data": ["1"], "key": ["a"], "value": ["b"]}, "'key', 'value'"),
        ({"tag": ["a"]}, "no column data"),
        ({"data": ["1", None]}, "1 rows have no data"),
        ({"data": pa.array([None], pa.string_view())}, "1 rows have no data"),
        ({"data": [1]}, "int64"),
        ({"data": pa.nulls(1)}, "null"),
        ({"data": [["1"]]}, "list"),
        ({"data": pa.array(["1"]).dictionary_encode()}, "dictionary"),
        ({"data": ["1"], "tag": [b"a"]}, "column tag"),
        ({"data": ["1"], "node": [1]}, "column node"),
        ({"data": ["1"], "meta": pa.array(["{}"]).dictionary_encode()}, "column meta"),
        ({"data": pa.array([], pa.utf8())}, "without records"),
        ({"data": ["1", "", "2"]}, "row 1 is not JSON"),
        ({"data": ["1", "1,2"]}, "row 1 is not JSON"),
        ({"data": ["[1", "2]"]}, "row 0 is not JSON"),
        ({"data": ['"a', 'b"']}, "row 0 is not JSON"),
        ({"data": ["1", "nul"]}, "row 1 is not JSON"),
        ({"data": ["1", "[" * 100_000 + "]" * 100_000]}, "row 1 is not JSON"),
        ({"data": ["1"], "meta": ["{"]}, "meta of row 0 is not JSON"),
        ({"data": ["1"], "meta": [b"\xff"]}, "not UTF-8"),
        ({"data": ["1"], "meta": ['"' + "x" * 20_000 + '"']}, "meta has 20002 bytes"),
        ({"data": ["1"], "tag": ["\u00e9" * 129]}, "tag has 258 bytes"),
        ({"data": ["1"], "tag": pa.array(["x" * 257]).dictionary_encode()}, "tag has 257 bytes"),
        ({"data": ["1"], "node": ["x" * 129]}, "node has 129 bytes"),
        (
            {"data": ["1"], "meta": [msgspec.json.encode({str(n): n for n in range(65)})]},
            "meta has 65 keys",
        ),
    ],
)  # fmt: skip
def test_what_no_append_can_hold(lab, columns, words) -> None:
    reply = lab.append(columns)
    assert (reply.status, reply.code) == (400, "invalid_request")
    assert words in reply.json["error"]["message"]
    assert "t" not in lab.engine.state.by_name


def test_a_row_is_named_beyond_the_first_chunk(lab) -> None:
    """JSON is checked a megabyte at a time."""
    texts = ['"' + "x" * 1_000 + '"'] * 2_500
    texts[2_400] = "oops"
    reply = lab.append({"data": texts})
    assert "row 2400 is not JSON" in reply.json["error"]["message"]
    texts[2_400] = "  1"
    assert lab.append({"data": texts}).status == 201


def test_sizes_that_are_too_large(labs) -> None:
    lab = labs(arrow_rows_max=10, record_bytes_max=20_000, meta_bytes_max=16_384)
    assert lab.append({"data": [b"x"] * 10}).status == 201
    too_many = lab.append({"data": [b"x"] * 11})
    assert (too_many.status, too_many.code) == (400, "batch_too_large")
    too_many = lab.append(stream({"data": [b"x"] * 11}, 4))
    assert too_many.code == "batch_too_large"
    assert lab.append({"data": [b"x" * 20_001]}).code == "record_too_large"
    together = {"data": [b"x" * 10_000], "meta": ['"' + "x" * 10_000 + '"']}
    assert lab.append(together).code == "record_too_large"
    assert lab.engine.topic("t").head_seq == 10


def test_views_that_show_the_same_bytes_many_times_are_not_written_out(labs) -> None:
    lab = labs(body_bytes_max=1 << 20)
    one = pa.array([b"x" * 10_000], pa.binary_view())
    view = one.buffers()[1]
    shown = pa.Array.from_buffers(
        pa.binary_view(), 1_000, [None, pa.py_buffer(view.to_pybytes()[:16] * 1_000),
                                  one.buffers()[2]]
    )  # fmt: skip
    reply = lab.append({"data": shown})
    assert (reply.status, reply.code) == (413, "payload_too_large")


def test_content_types(lab) -> None:
    body = stream({"data": ["1"]})
    given = ARROW_STREAM + b"; charset=binary"
    assert lab.ask("POST", "/v0/topics/t", body, {b"content-type": given}).status == 201
    other = b"application/vnd.apache.arrow.file"
    reply = lab.ask("POST", "/v0/topics/t", body, {b"content-type": other})
    assert (reply.status, reply.code) == (415, "unsupported_media_type")


def test_large_bodies_are_not_for_the_loop_thread(labs) -> None:
    """They are read and written in a lane; what is said is the same."""
    lab = labs(wal_file_bytes=64 << 20, wal_batch_bytes_max=16 << 20)
    rows = OFF_LOOP_BYTES_MIN // 1_000 + 100
    texts = ['"' + "x" * 1_000 + '"'] * rows
    assert lab.append({"data": texts}).json["count"] == rows
    assert lab.diff()["data"].to_pylist() == [text.encode() for text in texts]
    texts[-1] = "oops"
    refused = lab.append({"data": texts})
    assert (refused.status, refused.code) == (400, "invalid_request")
    assert lab.append({"data": texts[:-1]}, "bad name").code == "invalid_request"


def test_many_single_records_are_not_for_the_loop_thread(lab) -> None:
    for n in range(WINDOW_BLOCKS_MAX + 50):
        lab.append_json({"data": n, "node": "a"} if n % 3 else {"data": n})
    table = lab.diff()
    assert table["data"].to_pylist() == [b"%d" % n for n in range(WINDOW_BLOCKS_MAX + 50)]
    kept = lab.diff(node="a")["data"].to_pylist()
    assert kept == [b"%d" % n for n in range(0, WINDOW_BLOCKS_MAX + 50, 3)]


@pytest.mark.parametrize("sealed", [False, True])
def test_headers_are_a_column_for_those_who_ask(labs: Callable[..., Lab], sealed: bool) -> None:
    """§12h: in memory and in files, of records with and without."""
    lab = labs()
    pairs = [[(b"k", b"\xff"), (b"k", b"")], None, []]
    lab.engine.append("t", Batch([b"a", b"b", b"c"], headers=pairs))
    lab.engine.append("t", Batch([b"d"] * LONG_ROWS_MIN))
    numbered = [[(b"n", b"%d" % n)] for n in range(LONG_ROWS_MIN)]
    lab.engine.append("t", Batch([b"e"] * LONG_ROWS_MIN, headers=numbered))
    lab.engine.runtime.drain()
    if sealed:
        lab.engine.checkpoint()
        lab.engine.runtime.drain()
        lab.engine.abandon()
        lab = labs(lab.disk.image(lab.disk.position, "all", 0, power_loss=False))
    found = lab.diff(include_headers=True)
    assert found.schema.names == [*COLUMNS[:-1], "headers", "data"]
    headers = found["headers"].to_pylist()
    assert headers[:4] == [
        [{"name": b"k", "value": b"\xff"}, {"name": b"k", "value": b""}], None, [], None,
    ]  # fmt: skip
    assert headers[-1] == [{"name": b"n", "value": b"%d" % (LONG_ROWS_MIN - 1)}]
    assert lab.diff(from_seq=1, limit=2, include_headers=True)["headers"].to_pylist() == [None, []]
    assert lab.diff().schema.names == COLUMNS
    assert "content_type" not in said(found)
