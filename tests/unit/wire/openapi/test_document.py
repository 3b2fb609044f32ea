"""The OpenAPI document: every route is in it, and what it says of bodies is what is sent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from typing import Any

import jsonschema
import msgspec
import pytest
import schemathesis

from headrace.cli.compose import compose
from headrace.core import errors
from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.runtime import StepRuntime
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.server.auth import KeyRing
from headrace.testing.simdisk import SimDisk
from headrace.wire.dialect import Dialect
from headrace.wire.native.docs.bodies import DESCRIPTIONS
from headrace.wire.native.docs.endpoints import NOTES
from headrace.wire.openapi.document import ERRORS, document
from headrace.wire.openapi.json_schema import Components
from headrace.wire.openapi.page import FILES, HEADERS
from headrace.wire.routes import RouteTable
from tests.support.exchanges import AnsweredExchange

PAGE_BYTES_MAX = 60_000


@pytest.fixture(scope="module")
def table() -> Iterator[RouteTable]:
    """The table of a server as it is put together."""
    engine = Engine(SimDisk(), StepRuntime(ManualClock()), Settings(), random=SeededRandom(1))
    table = compose(Settings(), engine, KeyRing.parse("")).app.routes
    yield table
    engine.abandon()


@pytest.fixture(scope="module")
def made(table: RouteTable) -> dict[str, Any]:
    """As a client reads it."""
    decoded = msgspec.json.decode(msgspec.json.encode(document(table.routes, Settings())))
    assert isinstance(decoded, dict)
    return decoded


def operations(made: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in made["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def validator(made: dict[str, Any], schema: dict[str, Any]) -> jsonschema.Draft202012Validator:
    whole = {**schema, "components": made["components"]}
    jsonschema.Draft202012Validator.check_schema(whole)
    return jsonschema.Draft202012Validator(whole)


def routes_shown(table: RouteTable, dialect: Dialect) -> set[tuple[str, str]]:
    return {
        (route.method, route.template)
        for route in table.routes
        if route.dialect is dialect and not route.hidden
    }


def test_every_route_that_is_not_hidden_is_there(table: RouteTable, made: dict[str, Any]) -> None:
    """Those of dialects that have notes: a protocol that is documented elsewhere has none."""
    documented = [dialect for dialect in table.dialects if dialect.notes is not None]
    shown = set[tuple[str, str]]().union(*(routes_shown(table, each) for each in documented))
    assert {(method, path) for method, path, _ in operations(made)} == shown
    assert len(shown) >= 13
    assert ("GET", "/docs") not in shown


def test_every_route_has_a_note_and_every_note_a_route(table: RouteTable) -> None:
    noted = [dialect for dialect in table.dialects if dialect.notes is not None]
    assert "native" in {dialect.name for dialect in noted}
    for dialect in noted:
        assert dialect.notes is not None
        assert routes_shown(table, dialect) == set(dialect.notes.endpoints), dialect.name


def test_every_described_field_exists(made: dict[str, Any]) -> None:
    schemas = made["components"]["schemas"]
    for place, fields in DESCRIPTIONS.items():
        name, _, direction = place.partition(":")
        assert direction == "request"
        for field, text in fields.items():
            assert schemas[name]["properties"][field]["description"] == text
    for name in ("TopicConfig", "AppendBody", "DiffBody", "DeleteBody", "WatchBody", "RecordIn"):
        for field, schema in schemas[name]["properties"].items():
            assert schema.get("description") or field == "records", (name, field)


def test_names_of_operations_are_unique(made: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, _, operation in operations(made)]
    assert len(set(names)) == len(names)


def test_each_operation_has_its_parameters(made: dict[str, Any]) -> None:
    for _, path, operation in operations(made):
        in_path = [one["name"] for one in operation["parameters"] if one["in"] == "path"]
        assert in_path == re.findall(r"\{(\w+)\}", path)
        names = [(one["in"], one["name"]) for one in operation["parameters"]]
        assert len(set(names)) == len(names), path


def test_every_reference_leads_somewhere(made: dict[str, Any]) -> None:
    for target in set(re.findall(r'"\$ref":"#/([^"]+)"', msgspec.json.encode(made).decode())):
        value = made
        for part in target.split("/"):
            value = value[part]
        assert value, target


def test_schemas_are_schemas(made: dict[str, Any]) -> None:
    for name, schema in made["components"]["schemas"].items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["description"], name


def test_examples_are_what_the_schemas_say(made: dict[str, Any]) -> None:
    checked = 0
    for _, _, operation in operations(made):
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        for example in body.get("examples", {}).values():
            validator(made, body["schema"]).validate(example["value"])
            checked += 1
        for answer in operation["responses"].values():
            json = answer.get("content", {}).get("application/json", {})
            if "example" in json:
                validator(made, json["schema"]).validate(json["example"])
                checked += 1
    assert checked >= 10


def test_somebody_else_can_load_it(made: dict[str, Any]) -> None:
    schema = schemathesis.openapi.from_dict(made)
    loaded = [result.ok() for result in schema.get_all_operations()]
    assert len(loaded) == sum(1 for _ in operations(made))


@pytest.mark.parametrize(
    ("component", "value"),
    [
        ("AppendBody", {"records": []}),
        ("AppendBody", {"records": [{}]}),
        ("AppendBody", {"records": [{"data": 1, "tag": "x" * 257}]}),
        ("AppendBody", {"records": [{"data": 1}], "expected_head_seq": -1}),
        ("AppendBody", {"records": [{"data": 1}], "config": {"ttl_ms": "1"}}),
        ("AppendBody", {}),
        ("DiffBody", {"limit": -1}),
        ("DiffBody", {"limit": 1 << 32}),
        ("DiffBody", {"from_seq": 1 << 64}),
        ("DiffBody", {"node": [1]}),
        ("DiffBody", {"from_ts": 1, "last": 1}),
        ("DiffBody", {"from_seq": 1, "last": 1}),
        ("DeleteBody", {}),
        ("DeleteBody", {"before_seq": None, "match": None}),
        ("DeleteBody", {"match": ["tag", "Glob", "x"]}),
        ("DeleteBody", {"match": ["node", "Eq", "x"]}),
        ("WatchBody", {"topics": {}}),
        ("WatchBody", {}),
        ("WatchBody", {"topics": {"a": {"from_seq": -1}}}),
        ("WatchBody", {"topics": {"a": {}}, "consistency": "perhaps"}),
        ("TopicConfig", {"ttl_ms": -1}),
        ("TopicConfig", {"durability": "sometimes"}),
        ("TopicConfig", {"priority": 1 << 31}),
        ("TopicConfig", {"dead_letter": "ds:x"}),
        ("RouterBody", {"source": "a"}),
        ("RouterBody", {"source": "a", "dest": "b c"}),
        ("RouterBody", {"source": "a", "dest": "b", "filter": ["tag", "Like", "x"]}),
        ("RouterBody", {"source": "a", "dest": "b", "filter": "x" * 257}),
        ("RouterBody", {"source": "a", "dest": "b", "guarantee": "perhaps"}),
        ("RouterBody", {"source": "a", "dest": "b", "backfill": -1}),
        ("RouterBody", {"source": "a", "dest": "b", "backfill": 1 << 64}),
        ("RouterBody", {"source": "a", "dest": "b", "filter": ["tag", "Eq", "x" * 257]}),
        ("ClaimBody", {"node": ""}),
        ("ClaimBody", {"node": "w", "max": 1 << 64}),
        ("AckBody", {"node": "w", "seqs": [1] * 1_001}),
        ("AckBody", {"node": "w", "seqs": [1], "lease_ids": ["lease_"]}),
        ("ExtendBody", {"node": "w", "seqs": [1]}),
        ("RedriveBody", {"match": ["tag", "Glob", "x"]}),
    ],
)
def test_what_a_server_refuses_is_not_in_the_schema(
    made: dict[str, Any], component: str, value: object
) -> None:
    schema = {"$ref": f"#/components/schemas/{component}"}
    assert not validator(made, schema).is_valid(value)


@pytest.mark.parametrize(
    ("component", "value"),
    [
        ("AppendBody", {"records": [{"data": None, "meta": None}], "node": None, "later": 1}),
        ("AppendBody", {"records": [{"data": 1}], "config": {"durable": True}}),
        ("DiffBody", {}),
        ("DiffBody", {"from_seq": 0, "last": 3}),
        ("DiffBody", {"node": ["a", "b"], "limit": 0, "epoch": None}),
        ("WatchBody", {"topics": {"a": {"from": "tail"}, "b:*": None}}),
        ("DeleteBody", {"before_seq": 0}),
        ("DeleteBody", {"match": "x*", "before_seq": None}),
        ("DeleteBody", {"match": ["tag", "Glob", "x*"]}),
        ("TopicConfig", {"priority": None, "dead_letter": None, "ttl_ms": (1 << 64) - 1}),
        ("RouterBody", {"source": "a", "dest": "b"}),
        ("RouterBody", {"source": "a", "dest": "b", "filter": "x*", "backfill": 3}),
        ("RouterBody", {"source": "a", "dest": "b", "filter": ["tag", "Eq", "x"]}),
        ("RouterBody", {"source": "a", "dest": "b", "filter": None, "backfill": True}),
        ("RouterBody", {"source": "a", "dest": "b", "guarantee": None, "preserve_tag": None}),
        ("RouterBody", {"source": "a", "dest": "b", "backfill": (1 << 64) - 1}),
        ("ClaimBody", {"node": "w", "max": 0, "lease_ms": None, "later": 1}),
        ("AckBody", {"node": "w", "seqs": [], "lease_ids": None}),
        ("NackBody", {"node": "w", "seqs": [1, 1], "lease_ids": ["", "lease_1f"]}),
        ("RedriveBody", {}),
    ],
)
def test_what_a_server_takes_is_in_the_schema(
    made: dict[str, Any], component: str, value: object
) -> None:
    schema = {"$ref": f"#/components/schemas/{component}"}
    validator(made, schema).validate(value)


def test_answers_hold_every_field(made: dict[str, Any]) -> None:
    schemas = made["components"]["schemas"]
    config = schemas["TopicConfigAnswer"]
    assert len(config["required"]) == 17
    later = {"retain_until_archived", "retain_bytes_max", "cold_reads"}
    assert set(config["properties"]) - set(config["required"]) == later
    assert set(schemas["DiffAnswer"]["required"]) == set(schemas["DiffAnswer"]["properties"])
    assert "seqs" not in schemas["AppendAnswer"]["required"]
    assert schemas["TopicConfig"].get("required") is None


def test_refusals_have_the_envelope(made: dict[str, Any]) -> None:
    for _, path, operation in operations(made):
        for status, answer in operation["responses"].items():
            if status < "400":
                continue
            name = answer["$ref"].rpartition("/")[2]
            refusal = made["components"]["responses"][name]
            json = refusal["content"]["application/json"]
            assert json["schema"] == {"$ref": "#/components/schemas/ErrorAnswer"}, path
            for code, example in json["examples"].items():
                assert ERRORS[code].status == int(status)
                validator(made, json["schema"]).validate(example["value"])
            if status in ("429", "503"):
                assert "Retry-After" in refusal["headers"]


def test_every_error_of_the_wire_is_known() -> None:
    assert ERRORS["topic_not_found"] is errors.TopicNotFound
    for note in NOTES.values():
        assert set(note.errors) <= set(ERRORS)


def test_probes_ask_for_no_key_and_topics_may(made: dict[str, Any]) -> None:
    assert made["paths"]["/v0/health"]["get"]["security"] == []
    append = made["paths"]["/v0/topics/{topic}"]["post"]
    assert "security" not in append
    assert append["x-headrace-scopes"] == ["write"]
    assert {} in made["security"]


def test_two_types_of_one_name_are_noticed() -> None:
    class One(msgspec.Struct):
        x: int

    first = One

    class One(msgspec.Struct):  # type: ignore[no-redef]
        y: int

    components = Components()
    components.of(first, "request")
    with pytest.raises(AssertionError, match="One"):
        components.of(One, "request")


# The page


def test_the_page_is_small_and_loads_nothing_from_elsewhere(table: RouteTable) -> None:
    total = 0
    for path in FILES:
        exchange = AnsweredExchange("GET", path, "", {}, 0)
        route, _ = table.match("GET", path)
        assert route.hidden and route.public
        route.handler(exchange)
        assert exchange.status == 200
        assert exchange.content_type.endswith(b"charset=utf-8")
        assert exchange.reply_headers[b"x-content-type-options"] == b"nosniff"
        total += len(exchange.reply)
        text = exchange.reply.decode().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//[\w.]+/|@import|innerHTML|eval\(", text), path
    assert total <= PAGE_BYTES_MAX


def test_the_policy_admits_only_the_page_itself() -> None:
    policy = dict(
        part.strip().split(" ", 1)
        for part in dict(HEADERS)[b"content-security-policy"].decode().split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    page = resources.files("headrace.wire").joinpath("static", "docs.html").read_text()
    assert not re.search(r"<style|<script>|\son\w+=|\sstyle=", page)
    linked = set(re.findall(r'(?:src|href)="(/docs/[^"]+)"', page))
    assert linked == set(FILES) - {"/docs"}


def test_the_document_is_served(table: RouteTable) -> None:
    exchange = AnsweredExchange("GET", "/openapi.json", "", {}, 0)
    table.match("GET", "/openapi.json").route.handler(exchange)
    assert exchange.content_type == b"application/json"
    assert msgspec.json.decode(exchange.reply)["openapi"] == "3.1.0"
