"""Import: every row once, wherever files are cut, whatever they are called, and however often."""

from __future__ import annotations

import bz2
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError, HeadraceError, InvalidRequest, RowsRefused
from headrace.lake.loading import import_formats, importing
from headrace.lake.loading import producers as feeding
from headrace.lake.loading.import_formats import lines_of, texts_of
from headrace.lake.tables.tasks import run_inline
from headrace.storage.files.store import BytesFile
from tests.support.lakes import Bench, Died, bring, data, records

LINES = [json.dumps({"n": n, "x": "é" * (n % 40)}, ensure_ascii=False) for n in range(500)]


@given(st.lists(st.text("ab\r", max_size=9), max_size=12), st.integers(1, 20), st.booleans())
def test_every_line_is_in_one_part(lines: list[str], cut: int, ended: bool) -> None:
    content = "\n".join(lines).encode() + (b"\n" if ended else b"")
    file = BytesFile("x", content)
    blocks = [
        block
        for start in range(0, len(content), cut)
        for block in lines_of(file, start, min(len(content), start + cut))
    ]
    assert b"".join(blocks) == content
    assert all(block.endswith(b"\n") for block in blocks[:-1])


@given(st.lists(st.binary(max_size=4) | st.sampled_from([b"", b" a", b"a\r", b"\t", b"1"])))
def test_lines_are_those_that_hold_something(lines: list[bytes]) -> None:
    block = b"\n".join(lines)
    given = [line.strip(b" \t\r") for line in block.split(b"\n")]
    wanted = [feeding.decoded(line) for line in given if line]
    assert texts_of(block).to_pylist() == wanted


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many parts and chunks of few lines."""
    monkeypatch.setattr(importing, "PART_BYTES", 1_000)
    monkeypatch.setattr(import_formats, "BLOCK_BYTES", 300)
    monkeypatch.setattr(feeding, "CHUNK_ROWS_MAX", 7)


def test_lines(small: None, bench: Bench, topic: str, tmp_path: Path) -> None:
    a, b = tmp_path / "a.jsonl", tmp_path / "b.ndjson"
    a.write_text("\ufeff" + "\n".join(LINES[:300]))
    b.write_text("\r\n\n".join(LINES[300:]) + "\n \n")
    done = bring(bench, topic, a, b, in_order=True)
    assert (done.rows, done.files, done.rows_before) == (500, 2, 0)
    assert done.parts > 10
    assert data(bench, topic) == LINES
    assert {record[0] for record in records(bench.client, topic)} == {0}
    again = bring(bench, topic, a, b)
    assert (again.rows, bench.client.topic(topic).count) == (0, 500), "the same import again"
    assert bring(bench, topic, a, name="again").rows == 300
    assert bench.client.topic(topic).count == 800


def test_a_file_is_known_by_its_bytes(bench: Bench, topic: str, tmp_path: Path) -> None:
    a, b, c = (tmp_path / f"{name}.jsonl" for name in "abc")
    a.write_text("1\n2\n")
    assert bring(bench, topic, a).rows == 2
    a.rename(b)
    assert bring(bench, topic, b).rows == 0, "under another name"
    c.write_text("3\n4\n")
    done = bring(bench, topic, b, c)
    assert (done.rows, done.rows_before) == (2, 2), "one file more"
    b.write_text("1\n5\n")
    assert bring(bench, topic, b).rows == 2, "as long as before, and another one"
    a.write_text("3\n4\n")
    assert bring(bench, topic, a, c).rows == 2, "two files that are the same are two"
    assert data(bench, topic) == ["1", "2", "3", "4", "1", "5", "3", "4"]
    with pytest.raises(ConfigError, match="named twice"):
        bring(bench, topic, a, tmp_path / "?.jsonl")


def dies_after(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make sending fail once as many chunks were sent as the only item of the list says."""
    real, left = feeding._Feeding._send, [0]

    def send(self: Any, *chunk: Any) -> bool:
        left[0] -= 1
        if left[0] < 0:
            raise Died
        return real(self, *chunk)

    monkeypatch.setattr(feeding._Feeding, "_send", send)
    return left


@pytest.mark.parametrize("runner", [None, run_inline])
@pytest.mark.parametrize("packed", [False, True])
def test_one_that_was_cut_off(
    small: None,
    bench: Bench,
    topic: str,
    tmp_path: Path,
    packed: bool,
    runner: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whichever chunk was the last that was sent."""
    path = tmp_path / "a.jsonl"
    if packed:
        path = tmp_path / "a.jsonl.gz"
        path.write_bytes(gzip.compress("\n".join(LINES).encode()))
    else:
        path.write_text("\n".join(LINES))
    left = dies_after(monkeypatch)
    count = 0
    for sent in (3, 5, 20, 45):
        left[0] = sent
        with pytest.raises(Died):
            bring(bench, topic, path, runner=runner, workers=3)
        found = bench.client.topic(topic).count
        assert count <= found < 500
        count = found
    left[0] = 1_000
    done = bring(bench, topic, path, runner=runner)
    assert done.rows == 500 - count > 0
    assert done.rows_before == count
    assert sorted(data(bench, topic)) == sorted(LINES)


def test_what_a_topic_lost_is_sent_again(bench: Bench, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("1\n2\n")
    assert bring(bench, topic, path).rows == 2
    bench.client.delete_topic(topic)
    assert bring(bench, topic, path).rows == 2
    bench.client.delete_records(topic, before_seq=2)
    assert bring(bench, topic, path).rows == 0, "records that somebody deleted stay deleted"


def test_a_topic_that_is_deleted_meanwhile(
    small: None, bench: Bench, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not made anew with half of the rows."""
    path, real, sent = tmp_path / "a.jsonl", feeding._Feeding._send, []
    path.write_text("\n".join(LINES))
    bench.client.append(topic, [0])

    def send(self: Any, *chunk: Any) -> bool:
        sent.append(chunk)
        if len(sent) == 10:
            bench.client.delete_topic(topic)
        return real(self, *chunk)

    monkeypatch.setattr(feeding._Feeding, "_send", send)
    with pytest.raises(HeadraceError, match="does not exist"):
        bring(bench, topic, path)
    bench.client.append(topic, [0])
    assert bring(bench, topic, path).rows == 500


def test_it_can_be_watched(small: None, bench: Bench, topic: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(LINES))
    seen: list[float] = []
    bring(bench, topic, tmp_path / "a.jsonl", watch=lambda fed, share: seen.append(share))
    assert sorted(seen) == seen
    assert seen[-1] == 1.0


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".zst"])
def test_packed_files(bench: Bench, topic: str, tmp_path: Path, ending: str) -> None:
    content = b"\xef\xbb\xbf" + "\n".join(LINES).encode()
    half = len(content) // 2
    path = tmp_path / f"a.jsonl{ending}"
    packed = {
        ".gz": gzip.compress(content[:half]) + gzip.compress(content[half:]),
        ".bz2": bz2.compress(content),
        ".zst": pa.compress(content, "zstd", asbytes=True),
    }[ending]
    path.write_bytes(packed)
    assert bring(bench, topic, path).rows == 500
    assert data(bench, topic) == LINES
    path.write_bytes(packed[: len(packed) - 9])
    with pytest.raises(InvalidRequest, match="cannot be imported"):
        bring(bench, topic, path)


def test_patterns(bench: Bench, topic: str, tmp_path: Path) -> None:
    for name in ("b-2.jsonl", "a-1.jsonl", "a-2.jsonl", "a-[1].jsonl"):
        (tmp_path / name).write_text(f'"{name}"')
    assert bring(bench, topic, tmp_path / "a-?.jsonl", in_order=True).files == 2
    assert bring(bench, topic, tmp_path / "a-[1].jsonl").files == 1, "a file of that name"
    assert data(bench, topic) == ['"a-1.jsonl"', '"a-2.jsonl"', '"a-[1].jsonl"']
    with pytest.raises(ConfigError, match=r"no file is called .*/c-\*"):
        bring(bench, topic, tmp_path / "c-*")


def test_kafka(bench: Bench, topic: str, tmp_path: Path) -> None:
    lines = [
        {"topic": "t", "partition": 0, "offset": 7, "ts": 5, "key": "k", "payload": '{"a": 1.50}'},
        {"payload": "no JSON", "key": None},
        {"topic": "t", "payload": None},
        {"value": {"b": 2}, "headers": ["h", None]},
    ]
    (tmp_path / "k").write_text("\n".join(map(json.dumps, lines)) + "\n[1]\n\n")
    with pytest.raises(RowsRefused, match="k:5: it is no record, or not UTF-8"):
        bring(bench, topic, tmp_path / "k", format="kafka-json")
    done = bring(bench, topic, tmp_path / "k", format="kafka-json", skip_bad=True)
    assert (done.rows, done.bad_rows) == (4, 1)
    assert [(r[1], r[2], r[4]) for r in records(bench.client, topic)] == [
        (b'{"a": 1.50}', "k", b'{"kafka":{"topic":"t","partition":0,"offset":7,"ts":5}}'),
        (b'"no JSON"', None, None),
        (b"null", None, b'{"kafka":{"topic":"t"}}'),
        (b'{"b": 2}', None, b'{"kafka":{"headers":["h", null]}}'),
    ]


def test_parquet(bench: Bench, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "PART_BYTES", 1)
    rows = pa.table({"id": range(100), "items": [["a"] * (n % 3) for n in range(100)]})
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=30)
    done = bring(bench, topic, tmp_path / "a.parquet", in_order=True)
    assert (done.rows, done.parts) == (100, 4)
    assert [json.loads(text) for text in data(bench, topic)] == rows.to_pylist()
    assert bring(bench, topic, tmp_path / "a.parquet").rows == 0
    pq.write_table(rows.slice(0, 0), tmp_path / "none.parquet")
    assert bring(bench, topic, tmp_path / "none.parquet").rows == 0
    columns = pa.table({"data": ["1", "x", None]})
    pq.write_table(columns, tmp_path / "b.parquet", row_group_size=1)
    done = bring(bench, f"{topic}-2", tmp_path / "b.parquet", skip_bad=True)
    assert (done.rows, done.bad_rows) == (1, 2)
    assert done.bad_rows_named[1] == f"{tmp_path}/b.parquet: row 3: it is no record, or not UTF-8"


def test_files_of_a_lake(bench: Bench, topic: str) -> None:
    bench.client.append_arrow(topic, pa.table({"data": pa.array([b"\xff", b"1"], pa.binary())}))
    bench.client.append(topic, [{"a": 1}])
    assert bench.sync(topic).error is None
    table = bench.table(topic)
    path = Path(table.lake.uri(table.name)) / table.files()[0].path
    assert bring(bench, f"{topic}-2", path).rows == 3
    assert records(bench.client, f"{topic}-2") == records(bench.client, topic)


# What is wrong


def test_rows_that_are_no_records(
    small: None, bench: Bench, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is named by its line; the others can be brought by going on."""
    monkeypatch.setattr(import_formats, "BLOCK_BYTES", 100_000)  # one line has a megabyte
    lines: list[bytes] = [line.encode() for line in LINES]
    lines[200] = b'{"n":'
    lines[301:301] = [b""]
    lines[333] = b'"\xff"'
    lines[444] = b'"' + b"x" * (1 << 20) + b'"'
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(RowsRefused, match=r"a.jsonl:201: data is not JSON") as caught:
        bring(bench, topic, path, in_order=True)
    assert "--bad-rows skip" in str(caught.value)
    assert bench.client.topic(topic).count < 201
    done = bring(bench, topic, path, skip_bad=True, in_order=True)
    assert (done.bad_rows, bench.client.topic(topic).count) == (3, 497)
    assert [named[len(str(path)) :].split(":")[1] for named in done.bad_rows_named] == [
        "201", "334", "445"
    ]  # fmt: skip
    left = [n for n in range(500) if n not in (200, 332, 443)]
    assert [json.loads(text)["n"] for text in data(bench, topic)] == left


def test_going_on_behind_chunks_of_bad_rows(
    small: None, bench: Bench, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk of which nothing is left has no number, whoever counts."""
    monkeypatch.setattr(importing, "PART_BYTES", 1 << 20)
    lines = list(LINES)
    for at in (*range(7), *range(70, 84), *range(140, 147)):
        lines[at] = "x"
    good = [line for line in lines if line != "x"]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines))
    left = dies_after(monkeypatch)
    for sent in (2, 12, 20, 15):
        left[0] = sent
        with pytest.raises(Died):
            bring(bench, topic, path, skip_bad=True)
        assert data(bench, topic) == good[: bench.client.topic(topic).count]
    left[0] = 1_000
    assert bring(bench, topic, path, skip_bad=True).rows > 0
    assert data(bench, topic) == good
    left[0] = 1_000
    assert bring(bench, topic, path, skip_bad=True).rows == 0
    assert left[0] > 990, "what is stored is not sent again"


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("a.csv", b"a,b\n1,2,3\n", "a.csv: row 2: 3 values, and the heading has 2"),
        ("a.csv", b"a,a\n1,2\n", "a.csv cannot be imported: two columns are called 'a'"),
        ("a.parquet", b"no", "a.parquet cannot be imported"),
        ("a.parquet", b"", "a.parquet cannot be imported"),
        ("a.jsonl", b'{"a":1}\n{"a":\n', "a.jsonl:2: data is not JSON"),
        ("a.jsonl", b'1\n\n"\xff"\n', "a.jsonl:3: it is no record, or not UTF-8"),
        ("a.jsonl.gz", b"no", "a.jsonl.gz cannot be imported"),
    ],
)
def test_what_is_wrong_with_a_file(
    bench: Bench, tmp_path: Path, name: str, content: bytes, match: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(HeadraceError, match=match):
        bring(bench, "t-wrong", tmp_path / name)


def test_files_that_cannot_be_read(bench: Bench, topic: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        bring(bench, "t", tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match="give --format"):
        bring(bench, "t", tmp_path / "none.txt")
    with pytest.raises(ConfigError, match="unpack it first"):
        bring(bench, "t", tmp_path / "a.parquet.gz")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        bring(bench, "t", tmp_path, format="jsonl")
    reads, writes = os.pipe()
    os.close(writes)
    with pytest.raises(ConfigError, match="cannot be read: Illegal seek"):
        bring(bench, "t", Path(f"/dev/fd/{reads}"), format="jsonl")
    os.close(reads)
    for name in ("empty.jsonl", "empty.csv"):
        (tmp_path / name).touch()
        assert bring(bench, topic, tmp_path / name).rows == 0


def test_a_file_that_grows_meanwhile(
    bench: Bench, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = tmp_path / "a.jsonl", importing.parts_of
    path.write_text("1\n2\n")

    def parts_of(*given: Any) -> Any:
        path.write_text("1\n2\n3\n")
        return real(*given)

    monkeypatch.setattr(importing, "parts_of", parts_of)
    with pytest.raises(InvalidRequest, match="it has 6 bytes now, and had 4"):
        bring(bench, topic, path)


def test_a_line_without_end(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_formats, "LINE_BYTES_MAX", 100)
    monkeypatch.setattr(import_formats, "BLOCK_BYTES", 30)
    (tmp_path / "a.jsonl").write_bytes(b"1" * 200)
    with pytest.raises(InvalidRequest, match="a line is longer than 100 bytes"):
        bring(bench, "t-wrong", tmp_path / "a.jsonl")
