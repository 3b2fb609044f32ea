"""CSV, and columns as JSON: what each value becomes."""

from __future__ import annotations

import datetime
import decimal
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import HeadraceError
from headrace.lake.loading import import_formats
from headrace.lake.loading.json_rows import json_objects
from headrace.lake.loading.kafka_json import each_row, quick_rows
from tests.support.lakes import Bench, bring, data


def objects(**columns: Any) -> list[Any]:
    return [json.loads(text) for text in json_objects(pa.record_batch(columns)).to_pylist()]


@given(
    st.lists(
        st.tuples(
            st.none() | st.text(),
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.none() | st.floats(),
            st.none() | st.booleans(),
            st.none() | st.lists(st.text(max_size=3), max_size=2),
        ),
        min_size=1,
    )
)
def test_values_are_the_same_after_json(rows: list[tuple[Any, ...]]) -> None:
    texts, whole, floats, flags, lists = (list(column) for column in zip(*rows, strict=True))
    found = objects(
        **{
            't"\\\n': pa.array(texts, pa.utf8()),
            "i": pa.array(whole, pa.int64()),
            "f": pa.array(floats, pa.float64()),
            "b": pa.array(flags, pa.bool_()),
            "l": pa.array(lists, pa.list_(pa.utf8())),
        }
    )
    finite = [None if one is None or not math.isfinite(one) else one for one in floats]
    wanted = zip(texts, whole, finite, flags, lists, strict=True)
    assert found == [
        {'t"\\\n': t, "i": i, "f": f, "b": b, "l": many} for t, i, f, b, many in wanted
    ]


def test_rarer_types() -> None:
    at = datetime.datetime(2026, 1, 31, 10, 0, 0, 5, tzinfo=datetime.UTC)
    found = objects(
        us=pa.array([at, None], pa.timestamp("us", "UTC")),
        ns=pa.array([1_700_000_000_000_000_001, None], pa.timestamp("ns")),
        s=pa.array([1_700_000_000, None], pa.timestamp("s")),
        day=pa.array([at.date(), None]),
        time=pa.array([datetime.time(1, 2, 3), None]),
        money=pa.array([decimal.Decimal("1.50"), None]),
        raw=pa.array([b"\xff", None], pa.binary()),
        small=pa.array([0.1, None], pa.float32()),
        word=pa.array(["a", None]).dictionary_encode(),
        nothing=pa.nulls(2),
        inner=pa.array([{"at": at, "n": 1}, None]),
    )
    assert found[0] == {
        "us": "2026-01-31T10:00:00.000005Z",
        "ns": "2023-11-14T22:13:20.000000001",
        "s": "2023-11-14T22:13:20",
        "day": "2026-01-31",
        "time": "01:02:03.000000",
        "money": "1.50",
        "raw": "/w==",
        "small": 0.1,
        "word": "a",
        "nothing": None,
        "inner": {"at": "2026-01-31T10:00:00.000005Z", "n": 1},
    }
    assert found[1] == dict.fromkeys(found[0])


texts = st.text(max_size=5) | st.sampled_from(["{}", '{"a": 1.50}', "null", " 1", '"é"'])
lines_of_kafka = st.fixed_dictionaries(
    {"payload": texts | st.none() | st.just({"a": 1})},
    optional={
        "key": texts | st.none(),
        "topic": texts | st.none(),
        "partition": st.integers(0, 9) | st.just("x"),
        "offset": st.integers(0, 2**64),
        "headers": st.just(["a", None]),
        "value": texts,
        "broker": st.integers(),
    },
)


@given(st.lists(lines_of_kafka | st.just({"payload": "{}", "offset": 1}), min_size=1), st.data())
def test_both_ways_to_read_kafka(lines: list[dict[str, Any]], more: Any) -> None:
    ends = more.draw(st.sampled_from(["\n", "\r\n", "\n\n", ""]))
    block = (ends or "\n").join(map(json.dumps, lines)).encode() + ends.encode()
    quick = quick_rows(block)
    if quick is not None:
        assert quick.to_pylist() == each_row(block).to_pylist()


def test_kafka_is_quick_where_it_can_be() -> None:
    line = {"topic": 'a"b', "partition": 0, "offset": 7, "ts": 5, "key": "k", "payload": "{}"}
    block = "\n".join(map(json.dumps, [line, {**line, "key": None}])).encode()
    quick = quick_rows(block)
    assert quick is not None
    assert quick.to_pylist() == each_row(block).to_pylist()
    for odd in ({**line, "payload": "x"}, {**line, "headers": []}, {"value": 1}, {"payload": 1}):
        assert quick_rows(block + b"\n" + json.dumps(odd).encode()) is None
    assert quick_rows(block + b" " + block) is None, "two on one line"
    assert quick_rows(block.replace(b'"k"', b'"\xff"')) is None


def test_csv(bench: Bench, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('id,name,price\n1,"a\nb",1.5\n2,,2\n3,"",NaN\n4,NA,3\n')
    assert bring(bench, topic, path).rows == 4
    assert [json.loads(text) for text in data(bench, topic)] == [
        {"id": 1, "name": "a\nb", "price": 1.5},
        {"id": 2, "name": None, "price": 2.0},
        {"id": 3, "name": "", "price": None},
        {"id": 4, "name": "NA", "price": 3.0},
    ]
    bring(bench, f"{topic}-s", path, strings=True)
    assert json.loads(data(bench, f"{topic}-s")[1]) == {"id": "2", "name": "", "price": "2"}
    path.write_text("a;b\n1;x,y\n")
    bring(bench, f"{topic}-d", path, delimiter=";")
    assert data(bench, f"{topic}-d") == ['{"a":1,"b":"x,y"}']


def test_csv_in_many_blocks(
    bench: Bench, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line breaks within values lie wherever a block ends."""
    monkeypatch.setattr(import_formats, "BLOCK_BYTES", 1_000)
    path = tmp_path / "a.csv"
    values = ["\n".join(["x" * (n % 7)] * (n % 5 + 1)) for n in range(2_000)]
    path.write_text("n,v\n" + "".join(f'{n},"{v}"\n' for n, v in enumerate(values)))
    assert bring(bench, topic, path).rows == 2_000
    found = [json.loads(text) for text in data(bench, topic)]
    assert found == [{"n": n, "v": value} for n, value in enumerate(values)]
    path.write_text("n\n" + "1\n" * 2_000 + "x\n")
    with pytest.raises(HeadraceError, match="with --strings values stay text"):
        bring(bench, topic, path)
    path.write_text("a,b\n1,2\n1,2,3\n3,4\n1\n")
    done = bring(bench, f"{topic}-2", path, skip_bad=True)
    assert (done.rows, done.bad_rows) == (2, 2)
    assert done.bad_rows_named[0] == f"{path}: row 3: 3 values, and the heading has 2"
