"""Pipelines as a project of Spark's own: what fits, what does not, and the files."""

from __future__ import annotations

import ast
from typing import Any

import msgspec
import pytest
import yaml

from headrace.api.pipelines import (
    Declaration,
    EntryPoint,
    PipelineDest,
    PipelineSource,
    Watermark,
)
from headrace.pipelines.worker.declarative import (
    DEFAULTS,
    SINKS,
    SOURCES,
    SPEC,
    Fitted,
    fit,
    project_of,
    table_name,
)
from headrace.spark.options import Connection

COUNTS = Declaration(
    [
        PipelineSource(
            "web.clicks",
            alias="clicks",
            schema="user STRING, at TIMESTAMP",
            watermark=Watermark("1m", "data.at"),
        )
    ],
    PipelineDest(topic="clicks.per-minute"),
    sql="select data.user as tag, count(*) as n from clicks group by 1, window(event_time, '1m')",
)
CONNECTION = Connection("http://127.0.0.1:4000", "the secret", "/ca.pem")


def changed(**fields: Any) -> Declaration:
    return msgspec.structs.replace(COUNTS, **fields)


def source(**fields: Any) -> list[PipelineSource]:
    return [msgspec.structs.replace(COUNTS.sources[0], **fields)]


def fitted(declaration: Declaration, *, sinks: bool = True) -> Fitted:
    found, misfits = fit({"per-minute": declaration}, sinks=sinks)
    assert misfits == []
    return found[0]


def files(*all_of: Fitted) -> dict[str, str]:
    """The files; those of Python parse."""
    found = project_of("clicks", list(all_of), CONNECTION, "/a b").files
    for path, text in found.items():
        assert "the secret" not in text
        if path.endswith(".py"):
            ast.parse(text)
    return found


TABLE = PipelineDest(table="clicks")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"sql": None, "python": EntryPoint("f")}, "Python function"),
        ({"output_mode": "update"}, "update"),
        ({"on_error": "dead_letter", "dead_letter": "bad"}, "bad records"),
        ({"output_mode": "complete"}, "a topic only grows"),
        ({"output_mode": "complete", "dest": TABLE, "sources": source(start="latest")}, "latest"),
        (
            {"output_mode": "complete", "dest": TABLE, "sources": source(unique_by=["tag"])},
            "unique_by",
        ),
        ({"sql": "select count(*) from clicks"}, "without a name"),
        ({"sql": "select * from clicks"}, "without a name"),
        ({"sql": "select data, tag from clicks"}, "called data"),
    ],
)
def test_what_does_not_fit_says_why(fields: dict[str, Any], why: str) -> None:
    found, (misfit,) = fit({"a": changed(**fields), "b": COUNTS}, sinks=True)
    assert [one.pipeline for one in found] == ["b"]
    assert misfit.pipeline == "a" and why in misfit.why and misfit.fix


def test_what_is_about_records_does_not_matter_without_sinks() -> None:
    for sql in ("select * from clicks", "select data, tag from clicks"):
        assert fitted(changed(sql=sql), sinks=False).columns is None


def test_two_pipelines_of_one_table() -> None:
    found, (misfit,) = fit({"per.minute": COUNTS, "per-minute": COUNTS}, sinks=False)
    assert [one.table for one in found] == ["per_minute"]
    assert misfit.pipeline == "per.minute" and "'per-minute'" in misfit.why


def test_names_of_tables() -> None:
    assert table_name("Big:Orders_2") == "big_orders_2"
    assert table_name("_x") == "t__x"


def test_the_files_of_a_count() -> None:
    found = files(fitted(COUNTS))
    query = "transformations/per_minute.sql"
    assert set(found) == {SPEC, DEFAULTS, SOURCES, SINKS, query}
    spec = yaml.safe_load(found[SPEC])
    assert (spec["name"], spec["storage"]) == ("clicks", "file:///a b/storage")
    assert all(isinstance(value, str) for value in spec["configuration"].values())
    assert "spark.sql.warehouse.dir file:///a b/warehouse\n" in found[DEFAULTS]
    assert found[query].startswith(
        "-- The pipeline per-minute.\nCREATE STREAMING TABLE per_minute AS\nWITH\n"
        "  clicks AS (SELECT * FROM STREAM(per_minute__clicks))\nSELECT * FROM (\nselect data.user"
    )
    sources = found[SOURCES]
    assert "spark.readStream" in sources and "'subscribe': 'web.clicks'" in sources
    assert 'withWatermark("event_time", "60000 milliseconds")' in sources
    assert "SERVER[\"caFile\"] = '/ca.pem'" in sources
    sinks = found[SINKS]
    assert "to_json(struct(`n`), map('ignoreNullFields', 'false')) AS data" in sinks
    assert "CAST(tag AS STRING) AS tag" in sinks and "'clicks.per-minute'" in sinks
    assert SINKS not in files(fitted(COUNTS, sinks=False))


def test_what_replaces_itself_is_a_materialized_view() -> None:
    one = fitted(changed(output_mode="complete", dest=TABLE, sources=source(max_records=5)))
    found = files(one)
    assert "CREATE MATERIALIZED VIEW clicks AS" in found["transformations/clicks.sql"]
    assert "STREAM" not in found["transformations/clicks.sql"]
    assert "spark.read." in found[SOURCES] and "withWatermark" not in found[SOURCES]
    assert "maxRecordsPerTrigger" not in found[SOURCES] and SINKS not in found


def test_everything_of_a_source() -> None:
    plain = PipelineSource(
        "a,b", alias="ab", watermark=Watermark("1h"), unique_by=["tag", "data.id"], start="latest"
    )
    declaration = changed(sources=[plain, *COUNTS.sources], sql="select 1 as x from ab")
    declaration = msgspec.structs.replace(declaration, on_error="skip", dest=TABLE)
    text = files(fitted(declaration))[SOURCES]
    assert "try_parse_json(CAST(data AS STRING)) AS data" in text
    assert r"'subscribePattern': 'a,b'" in text and "'startingSeqs': 'latest'" in text
    assert "tag AS headrace_key_0" in text
    assert "variant_get(data, '$.id', 'string') AS headrace_key_1" in text
    assert "dropDuplicatesWithinWatermark(['headrace_key_0', 'headrace_key_1'])" in text
    assert text.count('where("data IS NOT NULL")') == 1, "of the source that has a schema"
    assert "'badRecords': 'null'" in text


def test_notes() -> None:
    after = changed(sources=[PipelineSource("clicks.per-minute", alias="m")], trigger="10s")
    after = msgspec.structs.replace(after, sql="select seq from m", dest=PipelineDest("other"))
    found, _ = fit({"per-minute": COUNTS, "after": after}, sinks=True)
    notes = project_of("p", found, CONNECTION, "/p").notes
    assert len(notes) == 4
    assert any("not every 10s" in note for note in notes)
    assert any("after: it reads what per-minute writes" in note for note in notes)
    assert sum("each result comes twice" in note for note in notes) == 2
