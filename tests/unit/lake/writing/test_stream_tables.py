"""Tables of streams: content types and headers beside the bytes, forks whole, old tables as is."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.core.errors import StreamClosed, StreamConflict
from headrace.lake.loading.replay import Wanted, replay
from headrace.lake.serving.data_file import as_page
from headrace.lake.tables.columns import NAMES, STREAM_NAMES, file_schema
from headrace.lake.tables.files import as_stored
from headrace.lake.tables.layout import Identity
from headrace.lake.tables.table import create_table
from headrace.lake.tables.tasks import run_inline
from headrace.lake.writing.compact import compact
from headrace.lake.writing.verify import verify
from headrace.storage.segment.page_columns import HEADERS, rows_of_page
from tests.support.http_streams import delete_stream, make_stream
from tests.support.lakes import Bench, accounted, rows_in
from tests.support.sealed_topics import fill, seal

PNG = b"\x89PNG\r\n\x1a\n\x00\xff"


def checked(bench: Bench, topic: str) -> None:
    found = verify(bench.table(topic), run_inline, bench.client, bench.connection)
    assert (found.findings, found.source) == ([], "compared")


@pytest.mark.parametrize("sealed", [True, False])
def test_bytes_and_their_type(bench: Bench, unsealed: Bench, topic: str, sealed: bool) -> None:
    one = bench if sealed else unsealed
    name = make_stream(one.server, f"{topic}/{sealed}, a.png", "image/png", (PNG, b"\x00"))
    if sealed:
        seal(one.client, name)
    assert one.sync(name).error is None
    rows = rows_in(one.table(name))
    assert [(row["kind"], row["data"], row["content_type"], row["headers"]) for row in rows] == [
        ("bytes", PNG, "image/png", None),
        ("bytes", b"\x00", "image/png", None),
    ]
    checked(one, name)


def test_a_name_of_full_length(bench: Bench, topic: str) -> None:
    path = topic + "/" + "é" * ((597 - len(topic) - 1) // 2)
    name = make_stream(bench.server, path, "application/json", (b"[1,2]", b"3"))
    assert len(name.encode()) >= 599
    assert bench.sync(name).error is None
    assert [row["data"] for row in rows_in(bench.table(name))] == [b"1", b"2", b"3"]


def test_a_fork_has_what_it_inherited(bench: Bench, topic: str) -> None:
    """Also of sealed files of its source, which is deleted then."""
    many = tuple(b"%d," % n for n in range(50))
    source = make_stream(bench.server, topic, "text/plain", many)
    seal(bench.client, source)
    fork = make_stream(
        bench.server, f"{topic}/fork", "", (b"own",), stream_forked_from=f"/v1/stream/{topic}"
    )
    delete_stream(bench.server, topic)
    assert bench.sync(fork).error is None
    rows = rows_in(bench.table(fork))
    assert [row["seq"] for row in rows] == list(range(1, 52))
    assert b"".join(row["data"] for row in rows) == b"".join(many) + b"own"
    assert {row["content_type"] for row in rows} == {"text/plain"}
    assert accounted(bench.table(fork)) == 51
    checked(bench, fork)


def test_compaction_keeps_the_columns(bench: Bench, topic: str) -> None:
    name = make_stream(bench.server, topic, "application/json", (b"1",))
    bench.sync(name)
    bench.client.append(name, [2])
    bench.sync(name)
    done = compact(bench.table(name), run_inline)
    assert done is not None and (done.files_before, done.files_after) == (2, 1)
    rows = rows_in(bench.table(name))
    assert [(row["data"], row["content_type"]) for row in rows] == [
        (b"1", "application/json"),
        (b"2", "application/json"),
    ]
    checked(bench, name)


def test_a_table_that_was_made_before_keeps_its_columns(bench: Bench, topic: str) -> None:
    """It is synced, compacted and verified without the columns of streams, as before."""
    fill(bench.client, topic, 10)
    manifest = bench.client.segments(topic)
    create_table(bench.lake, Identity.of(manifest), None)
    for first in (11, 21):
        bench.sync(topic)
        fill(bench.client, topic, 10, first)
    bench.sync(topic)
    table = bench.table(topic)
    assert not table.is_stream
    assert compact(table, run_inline) is not None
    assert set(rows_in(table)[0]) == {*NAMES, "day"}
    assert accounted(table) == 30
    checked(bench, topic)


def test_a_topic_has_no_columns_of_streams(bench: Bench, topic: str) -> None:
    fill(bench.client, topic, 3)
    bench.sync(topic)
    assert set(rows_in(bench.table(topic))[0]) == {*NAMES, "day"}


def test_headers_go_there_and_back() -> None:
    """Rows with headers as a file has them are the page that they were."""
    pair = {"name": b"k", "value": b"\xff"}
    columns = {
        "seq": [1, 2], "ts": [0, 0], "node": [None] * 2, "tag": [None] * 2, "meta": [None] * 2,
        "kind": ["bytes"] * 2, "data": [b"a", b"b"], "content_type": ["x/y"] * 2,
        "headers": [[pair, pair], None],
    }  # fmt: skip
    schema = file_schema(None, stream=True)
    assert tuple(schema.names) == STREAM_NAMES
    rows = pa.RecordBatch.from_pydict(columns, schema=schema)
    page = as_page(as_stored(rows, schema))
    assert page.column(HEADERS).to_pylist() == [[pair, pair], None]
    assert rows_of_page(page).headers == [[(b"k", b"\xff")] * 2, None]
    without = as_page(rows.select(list(NAMES)))
    assert rows_of_page(without).headers is None


def test_a_replay_into_a_stream(bench: Bench, topic: str) -> None:
    """Into an open stream of the kind of its rows; else one clear line, and nothing is stored."""
    bench.client.append(topic, [{"n": 1}, {"n": 2}])
    bench.sync(topic)
    table = bench.table(topic)
    json = make_stream(bench.server, f"{topic}/json", "application/json")
    text = make_stream(bench.server, f"{topic}/text", "text/plain")
    shut = make_stream(bench.server, f"{topic}/shut", "application/json", stream_closed="true")
    for dest, refusal in ((text, StreamConflict), (shut, StreamClosed)):
        with pytest.raises(refusal, match=dest) as raised:
            replay(table, Wanted(dest), bench.connection, None, in_order=True)
        assert "\n" not in str(raised.value)
        assert bench.client.topic(dest).head_seq == 0
    replay(table, Wanted(json), bench.connection, None, in_order=True)
    assert [record.data for record in bench.client.diff(json).records] == [{"n": 1}, {"n": 2}]
