"""Import: every line once, wherever files are cut, and however often it is run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError, HeadraceError
from headrace.lake import importing
from headrace.lake.importing import import_files, lines_of
from headrace.lake.tasks import run_inline
from headrace.storage.tier import BytesFile
from tests.unit.lake.lakes import Bench, Died
from tests.unit.lake.test_replay import records


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


def bring(bench: Bench, to: str, *paths: Path, **how: Any) -> Any:
    runner = how.pop("runner", run_inline)
    return import_files([str(path) for path in paths], to, bench.connection, runner, **how)


def test_lines(bench: Bench, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "PART_BYTES", 1_000)
    monkeypatch.setattr(importing, "BLOCK_BYTES", 300)
    lines = [json.dumps({"n": n, "x": "é" * (n % 40)}, ensure_ascii=False) for n in range(500)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines[:300]))
    (tmp_path / "b.ndjson").write_text("\r\n\n".join(lines[300:]) + "\n \n")
    done = bring(bench, topic, tmp_path / "a.jsonl", tmp_path / "b.ndjson")
    assert (done.rows, done.files) == (500, 2)
    assert done.parts > 10
    found = records(bench.client, topic)
    assert [record[1].decode() for record in found] == lines
    assert {record[0] for record in found} == {0}
    assert bring(bench, topic, tmp_path / "a.jsonl", tmp_path / "b.ndjson").id == done.id
    assert bench.client.topic(topic).count == 500, "the same import again"
    assert bring(bench, topic, tmp_path / "a.jsonl", write_id="again").rows == 300
    assert bench.client.topic(topic).count == 800


def test_one_that_was_cut_off(
    bench: Bench, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "PART_BYTES", 2_000)
    (tmp_path / "a.jsonl").write_text("".join(f'{{"n":{n}}}\n' for n in range(2_000)))

    def dies(work: Callable[[Any], Any], jobs: Sequence[Any]) -> list[Any]:
        run_inline(work, jobs[1 : len(jobs) // 2])
        raise Died

    with pytest.raises(Died):
        bring(bench, topic, tmp_path / "a.jsonl", runner=dies)
    assert 0 < bench.client.topic(topic).count < 2_000
    assert bring(bench, topic, tmp_path / "a.jsonl").rows == 2_000
    found = sorted(json.loads(record[1])["n"] for record in records(bench.client, topic))
    assert found == list(range(2_000))


def test_kafka(bench: Bench, topic: str, tmp_path: Path) -> None:
    lines = [
        {"topic": "t", "partition": 0, "offset": 7, "ts": 5, "key": "k", "payload": '{"a": 1.50}'},
        {"payload": "no JSON", "key": None},
        {"topic": "t", "payload": None},
        {"value": {"b": 2}, "headers": ["h", "v"]},
    ]
    (tmp_path / "k").write_text("\n".join(map(json.dumps, lines)))
    assert bring(bench, topic, tmp_path / "k", format="kafka-json").rows == 4
    assert [(r[1], r[2], r[4]) for r in records(bench.client, topic)] == [
        (b'{"a": 1.50}', "k", b'{"kafka":{"topic":"t","partition":0,"offset":7,"ts":5}}'),
        (b'"no JSON"', None, None),
        (b"null", None, b'{"kafka":{"topic":"t"}}'),
        (b'{"b": 2}', None, b'{"kafka":{"headers":["h","v"]}}'),
    ]


def test_csv(bench: Bench, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('id,name,price\n1,"a\nb",1.5\n2,,2\n')
    assert bring(bench, topic, path).rows == 2
    assert [json.loads(record[1]) for record in records(bench.client, topic)] == [
        {"id": 1, "name": "a\nb", "price": 1.5},
        {"id": 2, "name": None, "price": 2.0},
    ]
    bring(bench, f"{topic}-s", path, strings=True)
    assert json.loads(records(bench.client, f"{topic}-s")[1][1]) == {
        "id": "2", "name": "", "price": "2"
    }  # fmt: skip


def test_parquet(bench: Bench, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "PART_BYTES", 1)
    rows = pa.table({"id": range(100), "items": [["a"] * (n % 3) for n in range(100)]})
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=30)
    done = bring(bench, topic, tmp_path / "a.parquet")
    assert (done.rows, done.parts) == (100, 4)
    assert [json.loads(record[1]) for record in records(bench.client, topic)] == rows.to_pylist()


def test_files_of_a_lake(bench: Bench, topic: str, tmp_path: Path) -> None:
    bench.client.append_arrow(topic, pa.table({"data": pa.array([b"\xff", b"1"], pa.binary())}))
    bench.client.append(topic, [{"a": 1}])
    assert bench.sync(topic).error is None
    table = bench.table(topic)
    path = Path(table.lake.uri(table.name)) / table.files()[0].path
    assert bring(bench, f"{topic}-2", path).rows == 3
    assert records(bench.client, f"{topic}-2") == records(bench.client, topic)


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("a.csv", b"a,b\n1,2,3\n", "a.csv cannot be imported"),
        ("a.parquet", b"no", "a.parquet cannot be imported"),
        ("a.jsonl", b'{"a":1}\n{"a":\n', "does not take a chunk"),
        ("a.jsonl", b'"\xff"\n', "a.jsonl cannot be imported"),
    ],
)
def test_what_is_wrong_with_a_file(
    bench: Bench, topic: str, tmp_path: Path, name: str, content: bytes, match: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(HeadraceError, match=match) as caught:
        bring(bench, "t-wrong", tmp_path / name)
    assert caught.value.detail["file"] == str(tmp_path / name)


def test_files_that_are_not_there(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        bring(bench, "t", tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match="give --format"):
        bring(bench, "t", tmp_path / "none.txt")
