"""The OpenAPI document of several dialects: each says its own, and nothing collides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.core.settings import Settings
from headrace.wire.dialect import Dialect
from headrace.wire.exchange import Exchange
from headrace.wire.native.dialect import NativeDialect
from headrace.wire.openapi.document import document
from headrace.wire.openapi.notes import ApiNotes, EndpointNote
from headrace.wire.routes import Route, RouteTable


class NoteBody(msgspec.Struct):
    """A note to write."""

    text: str


class NoteError(msgspec.Struct):
    """Why a note was refused."""

    why: str


NOTES = ApiNotes(
    "Notes at any path.",
    NoteError,
    lambda code: {"why": code},
    {"notes": "Write and read notes."},
    {("PATCH", "/notes/{path*}"): EndpointNote("notes", "patch_note", "Changes a note.")},
    {"path": {"name": "path", "description": "The path.", "schema": {"type": "string"}}},
    {},
    {},
    lambda settings: {"NoteBody:request": {"text": {"maxLength": settings.record_bytes_max}}},
)


def unused(_: Exchange) -> None:
    raise AssertionError("no handler is called")


class Noted(Dialect):
    """A dialect with notes, or with none."""

    def __init__(self, name: str, notes: ApiNotes | None, routes: Sequence[Route]) -> None:
        self.name = name
        self.notes = notes
        self._routes = routes

    def routes(self) -> Sequence[Route]:
        return self._routes


def made() -> dict[str, Any]:
    table = RouteTable(
        [
            NativeDialect([Route("GET", "/v0/topics/{topic}", unused)]),
            Noted("notes", NOTES, [Route("PATCH", "/notes/{path*}", unused, request=NoteBody)]),
            Noted("silent", None, [Route("GET", "/silent/{path*}", unused)]),
        ]
    )
    decoded = msgspec.json.decode(msgspec.json.encode(document(table.routes, Settings())))
    assert isinstance(decoded, dict)
    return decoded


def test_the_rest_of_a_path_is_a_parameter_like_others() -> None:
    operation = made()["paths"]["/notes/{path}"]["patch"]
    assert operation["operationId"] == "patch_note"
    assert [one["name"] for one in operation["parameters"]] == ["path"]


def test_a_dialect_without_notes_is_not_shown() -> None:
    assert set(made()["paths"]) == {"/v0/topics/{topic}", "/notes/{path}"}


def test_each_dialect_has_its_own_form_of_errors() -> None:
    document = made()
    native = document["paths"]["/v0/topics/{topic}"]["get"]["responses"]["400"]
    notes = document["paths"]["/notes/{path}"]["patch"]["responses"]["400"]
    assert native == {"$ref": "#/components/responses/invalid_request"}
    assert notes == {"$ref": "#/components/responses/notes-invalid_request"}
    responses = document["components"]["responses"]
    content = responses["notes-invalid_request"]["content"]["application/json"]
    assert content["schema"] == {"$ref": "#/components/schemas/NoteError"}
    assert content["examples"]["invalid_request"]["value"] == {"why": "invalid_request"}
    content = responses["invalid_request"]["content"]["application/json"]
    assert content["examples"]["invalid_request"]["value"]["error"]["code"] == "invalid_request"


def test_words_limits_and_groups_of_all_are_together() -> None:
    document = made()
    assert document["info"]["description"].endswith("both ways. Notes at any path.")
    assert {"topics", "notes"} <= {tag["name"] for tag in document["tags"]}
    text = document["components"]["schemas"]["NoteBody"]["properties"]["text"]
    assert text["maxLength"] == Settings().record_bytes_max
