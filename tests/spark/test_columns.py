"""Which columns a query has, of which types, and that batches are exactly of them."""

from __future__ import annotations

import datetime
import pickle
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from headrace.core.errors import ConfigError
from headrace.spark.ddl import fields_of
from headrace.spark.options import source_options
from headrace.spark.reading.columns import LAST_MS, Shape, shape_of
from tests.support.record_pages import TS_MS, page


def shape(schema: StructType | None = None, /, **options: str) -> Shape:
    found = shape_of(source_options({"subscribe": "t", **options}, streaming=False), schema)
    # It travels to the executors.
    return pickle.loads(pickle.dumps(found))


def one(shaped: Shape, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows, which are exactly of the schema that Spark compares with."""
    (rows,) = shaped.rows("t", batch)
    expected = to_arrow_schema(shaped.schema, timezone="UTC")
    assert rows.schema.equals(expected, check_metadata=True)
    assert shaped.arrow.equals(expected, check_metadata=True)
    rows.validate(full=True)
    return rows


def user(*fields: tuple[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields])


def test_the_columns_when_nobody_chooses() -> None:
    found = shape()
    assert found.schema.simpleString() == (
        "struct<topic:string,seq:bigint,ts:timestamp,node:string,tag:string,meta:string,"
        "data:binary>"
    )
    assert found.needs == {"seq", "ts", "node", "tag", "meta", "data"}
    rows = one(found, page([b"\xff\x00", b"{}", b""], kind=1, first_seq=2)).to_pylist()
    at = datetime.datetime.fromtimestamp(TS_MS // 1000, datetime.UTC)
    assert rows[0] == {
        "topic": "t",
        "seq": 2,
        "ts": at + datetime.timedelta(milliseconds=TS_MS % 1000 + 2),
        "node": "node-2",
        "tag": "tag-2",
        "meta": None,
        "data": b"\xff\x00",
    }
    assert (rows[1]["meta"], rows[1]["tag"], rows[2]["data"]) == ('{"m": 1}', None, b"")


def test_chosen_columns_in_their_order() -> None:
    found = shape(columns="data,KIND,topic")
    assert found.needs == {"seq", "kind", "data"}
    rows = one(found, page([b"1", b"2", b"3"], kind=[0, 1, 2]))
    assert rows.schema.names == ["data", "kind", "topic"]
    assert rows.column("kind").to_pylist() == ["json", "bytes", "command"]
    only = shape(columns="topic")
    assert only.needs == {"seq"}
    assert one(only, page([b"", b""]).select(["seq"])).to_pylist() == [{"topic": "t"}] * 2


def test_a_time_beyond_the_year_9999_is_its_end() -> None:
    """Only writers of S2 streams give such; no date of Python or of a lake could show it."""
    batch = page([b"1", b"2", b"3"])
    at = batch.schema.get_field_index("ts")
    times = pa.array([7, LAST_MS, 2**63 - 1], pa.int64()).cast(batch.schema.field(at).type)
    rows = one(shape(columns="ts"), batch.set_column(at, batch.schema.field(at), times))
    end = datetime.datetime(9999, 12, 31, 23, 59, 59, 999_000, datetime.UTC)
    epoch = datetime.datetime.fromtimestamp(0, datetime.UTC)
    assert rows.column("ts").to_pylist() == [epoch + datetime.timedelta(milliseconds=7), end, end]


def test_no_pandas_is_imported_on_the_way() -> None:
    """Each process that Spark starts would wait for it, longer than for all else."""
    program = """if True:
        import sys
        import pyarrow as pa
        from headrace.spark.reading.columns import shape_of
        from headrace.spark.options import source_options
        from headrace.storage.segment.page_columns import PAGE_SCHEMA
        from headrace.spark.reading.payloads import alone
        arrays = [pa.nulls(1, field.type) for field in PAGE_SCHEMA]
        zero = [None, pa.py_buffer(bytes(8))]
        for at in (0, 2):
            arrays[at] = pa.Array.from_buffers(PAGE_SCHEMA[at].type, 1, zero)
        arrays[-1] = alone(pa.binary(), b'{"id": 1}')
        page = pa.RecordBatch.from_arrays(arrays, names=PAGE_SCHEMA.names)
        for extra in ({}, {"dataFormat": "json"}, {"schema": "id BIGINT"}):
            options = source_options({"subscribe": "t", **extra}, streaming=False)
            (rows,) = shape_of(options, None).rows("t", page)
            assert rows.num_rows == 1
        assert "pandas" not in sys.modules
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_columns_of_a_stream() -> None:
    found = shape(columns="seq,content_type,headers")
    assert found.needs == {"seq", "headers"}
    records = page([b"", b"", b"", b""])
    (rows,) = found.rows("ds:t", records, "image/png")
    assert rows.schema.equals(to_arrow_schema(found.schema, timezone="UTC"), check_metadata=True)
    rows.validate(full=True)
    assert rows.column("content_type").to_pylist() == ["image/png"] * 4
    pair = {"name": b"k", "value": b"\xff"}
    assert rows.column("headers").to_pylist() == [None, None, None, [pair]]
    # A topic is of no type, and a server of an older version sends no headers.
    older = one(found, records.drop_columns(["headers"]))
    assert older.column("content_type").to_pylist() == [None] * 4
    assert older.column("headers").to_pylist() == [None] * 4


def test_an_empty_page_is_no_batch() -> None:
    assert list(shape().rows("t", page([]))) == []


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, BinaryType()),
        ({"dataFormat": "json"}, StringType()),
        ({"dataFormat": "variant"}, VariantType()),
        ({"schema": "id BIGINT, at TIMESTAMP, m MAP<STRING, INT>"}, None),
    ],
)
def test_the_same_by_options_and_by_schema(options: dict[str, str], kind: DataType | None) -> None:
    kind = kind or fields_of(options["schema"])
    declared = user(("seq", LongType()), ("data", kind))
    by_options = shape(columns="seq,data", **options)
    assert by_options.schema == declared
    record = b'{"id": 1, "at": "2026-01-31", "m": {"a": 1}}'
    for found in (shape(declared), shape(declared, **options), by_options):
        assert found.schema == declared
        assert found.needs == by_options.needs
        assert one(found, page([record])).equals(one(by_options, page([record])))


def test_a_comment_of_the_user_stays() -> None:
    field = StructField("seq", LongType(), metadata={"comment": "the number"})
    assert one(shape(StructType([field])), page([b""])).schema.field("seq").metadata


def test_gaps_are_rows() -> None:
    found = shape(failOnDataLoss="false", dataFormat="variant")
    assert found.schema.names[-1] == "gap"
    batch = found.gap("t", 3, 9, "ttl")
    assert batch.schema.equals(found.arrow, check_metadata=True)
    (row,) = batch.to_pylist()
    told = {"topic": "t", "gap": {"first": 3, "last": 9, "reason": "ttl"}}
    assert row == dict.fromkeys(found.schema.names) | told
    assert one(found, page([b"{}"])).column("gap").to_pylist() == [None]
    named = shape(failOnDataLoss="false", columns="gap,seq")
    assert named.gap("t", 1, 1, "cap").to_pylist() == [
        {"gap": {"first": 1, "last": 1, "reason": "cap"}, "seq": None}
    ]
    assert one(shape(columns="seq,gap"), page([b""])).to_pylist() == [{"seq": 1, "gap": None}]


@pytest.mark.parametrize(
    ("options", "schema", "said"),
    [
        ({"columns": "seq,dat"}, None, "columns names 'dat', .* did you mean data"),
        ({"columns": "seq,data", "failOnDataLoss": "false"}, None, "no column `gap`"),
        ({"failOnDataLoss": "false"}, user(("seq", LongType())), "no column `gap`"),
        ({}, user(("sequence", LongType())), r"\.schema\(\) has 'sequence', .* did you mean seq"),
        ({}, user(("Seq", LongType())), "did you mean seq"),
        ({}, user(("seq", IntegerType())), "seq as INT; with these options it is BIGINT"),
        ({}, user(("ts", LongType())), "it is TIMESTAMP"),
        ({}, user(("gap", StringType())), "it is STRUCT<FIRST:BIGINT,LAST:BIGINT"),
        ({}, user(("data", LongType())), "it is BINARY, STRING, VARIANT or a STRUCT"),
        ({}, user(("data", user(("x", BinaryType())))), r"data\.x is BINARY"),
        ({"dataFormat": "json"}, user(("data", BinaryType())), "it is STRING"),
        ({"schema": "x INT"}, user(("data", user(("y", IntegerType())))), "it is STRUCT<X:INT>"),
        ({}, user(("seq", LongType()), ("seq", LongType())), "seq twice"),
        ({}, StructType([]), "no column"),
        ({"columns": "data,seq"}, user(("seq", LongType())), "give one of them"),
        ({}, StructType([StructField("seq", LongType(), nullable=False)]), "seq as NOT NULL"),
    ],
)
def test_columns_that_cannot_be(options: dict[str, str], schema: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        shape(schema, **options)


def test_fields_of_every_type() -> None:
    text = (
        "a boolean, b tinyint, c SMALLINT, d int, e BIGINT, f FLOAT, g DOUBLE, h DECIMAL,"
        " i decimal(5), j DEC(20, 10), `k k` STRING, `l``` DATE, m TIMESTAMP, n TIMESTAMP_NTZ,"
        " o ARRAY<ARRAY<INT>>, p MAP<STRING, STRUCT<x: INT, y STRING>>, struct STRUCT<map: INT>"
    )
    found = fields_of(text)
    assert found.simpleString() == (
        "struct<a:boolean,b:tinyint,c:smallint,d:int,e:bigint,f:float,g:double,h:decimal(10,0),"
        "i:decimal(5,0),j:decimal(20,10),k k:string,l`:date,m:timestamp,n:timestamp_ntz,"
        "o:array<array<int>>,p:map<string,struct<x:int,y:string>>,struct:struct<map:int>>"
    )
    assert fields_of("t TIMESTAMP, n DECIMAL(3, 3)") == user(
        ("t", TimestampType()), ("n", DecimalType(3, 3))
    )
    assert fields_of("a ARRAY<INT>, m MAP<STRING, INT>") == user(
        ("a", ArrayType(IntegerType())), ("m", MapType(StringType(), IntegerType()))
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id", "at its end"),
        ("id BIGNIT", "'BIGNIT' .* did you mean BIGINT"),
        ("id BIGINT,", "name of a field is missing at its end"),
        ("id BIGINT x", "',' is missing at 'x'"),
        ("id BIGINT; x", "does not belong there at '; x'"),
        ("id BIGINT NOT NULL", "id is NOT NULL"),
        ("id INT, id INT", "a second field 'id'"),
        ("id BINARY", "unbase64"),
        ("id VARIANT", "no type that a field of JSON can have"),
        ("id ARRAY<INT", "'>' is missing at its end"),
        ("id MAP<INT, INT>", "keys of a MAP are not STRING"),
        ("id DECIMAL(39)", "no number of at most 38"),
        ("id DECIMAL(3, 4)", "no number of at most 3"),
        ("id STRUCT<>", "name of a field is missing at '>'"),
        ("id `INT`", "no type"),
        ("id " + "ARRAY<" * 100 + "INT" + ">" * 100, "more than 64 types"),
    ],
)
def test_fields_that_are_spelt_wrong(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fields_of(text)
