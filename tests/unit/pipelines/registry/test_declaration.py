"""What a declaration may hold, and what a checkpoint depends on."""

from __future__ import annotations

import msgspec
import pytest

from headrace.api.pipelines import (
    Declaration,
    EntryPoint,
    PipelineDest,
    PipelineSource,
    Watermark,
)
from headrace.core.errors import InvalidRequest
from headrace.pipelines.registry.declaration import (
    check_declaration,
    check_pipeline_name,
    plan_of,
)

ORDERS = PipelineSource("orders", schema="id BIGINT")
GOOD = Declaration([ORDERS], PipelineDest("out"), sql="select data.id from orders")


def changed(**fields: object) -> Declaration:
    return msgspec.structs.replace(GOOD, **fields)


@pytest.mark.parametrize(
    "declaration",
    [
        GOOD,
        changed(sources=[PipelineSource("a.b:c", alias="abc")], sql="select * from abc"),
        changed(
            sources=[PipelineSource("a", watermark=Watermark("1h"), unique_by=["tag", "data.x"])]
        ),
        changed(trigger="10s"),
        changed(trigger="available_now"),
        changed(dest=PipelineDest(table="counts"), output_mode="complete"),
        changed(dest=PipelineDest(topic="ds:totals/per minute")),
        changed(sources=[PipelineSource("ds:" + "x" * 597, alias="x")], sql="select 1 from x"),
        changed(on_error="skip"),
        changed(on_error="dead_letter", dead_letter="orders.bad"),
        changed(sql=None, python=EntryPoint("sessions", {"gap": "10m", "n": 3, "x": None})),
        changed(sources=[PipelineSource("orders", watermark=Watermark("10m"))]),
        changed(
            sources=[
                PipelineSource(
                    "orders", schema="at TIMESTAMP", watermark=Watermark("1h", "data.at")
                )
            ]
        ),
    ],
)
def test_what_is_taken(declaration: Declaration) -> None:
    check_declaration(declaration)
    assert msgspec.json.decode(declaration.encode(), type=Declaration) == declaration


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"sources": []}, "no source"),
        ({"sources": [PipelineSource(f"t{n}") for n in range(17)]}, "17 sources"),
        ({"sources": [PipelineSource("a-b")]}, "'a-b' is no name that SQL takes"),
        ({"sources": [PipelineSource("a", alias="x y")]}, "'x y' is no name"),
        ({"sources": [PipelineSource("a"), PipelineSource("b", alias="A")]}, "two sources"),
        ({"sources": [PipelineSource("", alias="a")]}, "topic has 0 bytes"),
        ({"sources": [PipelineSource("ds:" + "x" * 598, alias="a")]}, "topic has 601 bytes"),
        ({"sources": [PipelineSource("ds:" + "é" * 299, alias="a")]}, "topic has 601 bytes"),
        ({"sources": [PipelineSource("a", schema="")]}, "schema has 0 bytes"),
        ({"sources": [PipelineSource("a", watermark=Watermark("soon"))]}, "watermark.delay"),
        ({"sources": [PipelineSource("a", watermark=Watermark("1m", "tag"))]}, "column is 'tag'"),
        ({"sources": [PipelineSource("a", watermark=Watermark("1m", "data.at"))]}, "schema"),
        ({"sources": [PipelineSource("a", unique_by=["data.id"])]}, "without a watermark"),
        ({"sources": [PipelineSource("a", unique_by=["a b"])]}, "unique_by has 'a b'"),
        ({"sources": [PipelineSource("a", unique_by=["tag"] * 9)]}, "unique_by has 9 fields"),
        ({"sql": None}, "both given, or neither"),
        ({"python": EntryPoint("x")}, "both given, or neither"),
        ({"sql": " "}, "sql has 1 bytes"),
        ({"sql": "x" * 20_000}, "sql has 20000 bytes"),
        ({"sql": None, "python": EntryPoint("lambda: 1")}, "python.entry"),
        ({"sql": None, "python": EntryPoint("os;system")}, "python.entry"),
        ({"sql": None, "python": EntryPoint("x", {"a": "b" * 20_000})}, "python.args have"),
        ({"dest": PipelineDest()}, "no topic and no table"),
        ({"dest": PipelineDest("a", "b")}, "or both"),
        ({"dest": PipelineDest(topic="_pipelines")}, "dest.topic is '_pipelines'"),
        ({"dest": PipelineDest(topic="x" * 201)}, "dest.topic is 'xxx"),
        ({"dest": PipelineDest(topic="ds:" + "x" * 598)}, "dest.topic has 601 bytes"),
        ({"on_error": "dead_letter", "dead_letter": "ds:x"}, "dead_letter is 'ds:x'"),
        ({"dest": PipelineDest(table="../x")}, "dest.table is '../x'"),
        ({"dest": PipelineDest(topic="orders")}, "read what it writes"),
        ({"trigger": "often"}, "trigger is 'often'"),
        ({"trigger": "9" * 30}, "trigger is"),
        ({"checkpoint": "/etc"}, "checkpoint is '/etc'"),
        ({"checkpoint": ".."}, "checkpoint is '..'"),
        ({"on_error": "dead_letter"}, "dead_letter None"),
        ({"dead_letter": "bad"}, "on_error is 'fail'"),
        ({"on_error": "dead_letter", "dead_letter": "orders"}, "read what it writes"),
        ({"on_error": "skip", "sources": [PipelineSource("orders")]}, "no source has a schema"),
    ],
)  # fmt: skip
def test_what_is_refused(fields: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as raised:
        check_declaration(changed(**fields))
    assert raised.value.fix


@pytest.mark.parametrize("name", ["", "a/b", "..", ".a", "-a", "a b", "x" * 101, "é", "a\n"])
def test_bad_names(name: str) -> None:
    with pytest.raises(InvalidRequest, match="not a name"):
        check_pipeline_name(name)
    check_pipeline_name("A1.b_c-d")


def test_what_a_checkpoint_depends_on() -> None:
    same = [
        {"trigger": "1s"},
        {"on_error": "skip"},
        {"dest": PipelineDest("other")},
        {"checkpoint": "2"},
        {"sources": [msgspec.structs.replace(ORDERS, max_records=5, start="latest")]},
    ]
    other = [
        {"sql": "select 1 from orders"},
        {"output_mode": "update"},
        {"sources": [msgspec.structs.replace(ORDERS, schema="id INT")]},
        {"sources": [msgspec.structs.replace(ORDERS, watermark=Watermark("1m"))]},
        {"sources": [ORDERS, PipelineSource("more")]},
    ]
    assert {plan_of(changed(**fields)) for fields in same} == {plan_of(GOOD)}
    assert len({plan_of(changed(**fields)) for fields in other} | {plan_of(GOOD)}) == 6
