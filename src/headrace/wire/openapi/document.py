"""`/openapi.json`: the route table and the types of bodies, as an OpenAPI 3.1 document.

Only this file makes the document.  It is made from the rows that route the requests, so an endpoint
that exists is in it, with what the notes of its dialect (`notes.py`) add.  It is made once, at the
first request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

import headrace
from headrace.core import errors
from headrace.core.errors import HeadraceError
from headrace.core.settings import Settings
from headrace.wire.exchange import ARROW_STREAM, EVENT_STREAM
from headrace.wire.openapi.json_schema import Components, Schema
from headrace.wire.openapi.notes import ApiNotes, EndpointNote
from headrace.wire.routes import Route

NO_NOTE: Final = EndpointNote()
BINARY: Final[Schema] = {"type": "string", "format": "binary"}
# What may happen to any request, whatever the endpoint.
ALWAYS: Final = ("invalid_request", "request_timeout", "headers_too_large", "throttled")
ALWAYS_BUT_PROBES: Final = (
    "unauthorized",
    "forbidden",
    "internal",
    "not_ready",
    "out_of_resources",
    "shutting_down",
)
WITH_BODY: Final = ("payload_too_large", "unsupported_media_type")


def document(routes: Iterable[Route], settings: Settings) -> dict[str, object]:
    """The whole document, of the routes whose dialect has notes."""
    shown = [route for route in routes if not route.hidden and route.dialect.notes is not None]
    notes = {route.dialect: route.dialect.notes for route in shown if route.dialect.notes}
    limits = [each.limits(settings) for each in notes.values()]
    components = Components({place: of_type for each in limits for place, of_type in each.items()})
    refusals: dict[str, object] = {}
    makers = {
        dialect: _Maker(each, components, refusals, f"{dialect.name}-" if number else "")
        for number, (dialect, each) in enumerate(notes.items())
    }
    for route in shown:
        # First, so that a type of both has its plain name where it is sent.
        if route.request is not None:
            components.of(route.request, "request")
    paths: dict[str, dict[str, object]] = {}
    for route in shown:
        # OpenAPI has no word for a parameter that takes the rest of the path.
        path = route.template.replace("*}", "}")
        paths.setdefault(path, {})[route.method.lower()] = makers[route.dialect].operation(route)
    groups = {name: text for each in notes.values() for name, text in each.groups.items()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": headrace.__version__,
            "summary": "A durable event log over HTTP.",
            "description": " ".join(each.description for each in notes.values()),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "This server"}],
        # Either: a server without keys asks for none.
        "security": [{}, {"bearer": []}],
        "tags": [{"name": name, "description": text} for name, text in groups.items()],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.schemas.items())),
            "responses": dict(sorted(refusals.items())),
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A key of HEADRACE_API_KEYS. A server without keys asks for "
                    "none.",
                },
                "token": {
                    "type": "apiKey",
                    "in": "query",
                    "name": "token",
                    "description": "The same key in the query, only for streams that a browser "
                    "opens.",
                },
            },
        },
    }


class _Maker:
    """Makes the operations of one dialect, collecting what they refer to."""

    def __init__(
        self, notes: ApiNotes, components: Components, refusals: dict[str, object], prefix: str
    ) -> None:
        self._prefix = prefix  # of the names of refusals: each dialect has its own form
        self._notes = notes
        self._components = components
        self._refusals_made = refusals
        self._error = components.of(notes.error, "answer")

    def operation(self, route: Route) -> dict[str, object]:
        """What the document says of one route."""
        note = self._notes.endpoints.get((route.method, route.template), NO_NOTE)
        scopes = sorted(route.scopes)
        described = [note.description]
        if scopes:
            described.append(f"Needs the scope {' and '.join(scopes)} when there are keys.")
        if route.own_auth:
            described.append("The key that made the session is asked for when there are keys.")
        operation: dict[str, object] = {
            "operationId": note.operation or _operation_id(route),
            "summary": route.summary,
            "description": " ".join(filter(None, described)),
            "tags": [note.group],
            "parameters": self._all_parameters(route, note),
            "responses": {**self._answers(route, note), **self._refusals(route, note)},
        }
        body = self._body(route, note)
        if body is not None:
            operation["requestBody"] = body
        if route.public:
            operation["security"] = []
        elif route.token_query:
            operation["security"] = [{}, {"bearer": []}, {"token": []}]
        if scopes:
            operation["x-headrace-scopes"] = scopes
        return operation

    def _all_parameters(self, route: Route, note: EndpointNote) -> list[object]:
        notes = self._notes
        found: list[object] = []
        for part in route.template.split("/"):
            if part.startswith("{"):
                name = part.strip("{*}")
                named = {"in": "path", "required": True, **notes.path_parameters[name]}
                found.append({**named, "schema": notes.new_names[name]} if note.creates else named)
        for name in route.query:
            # Documented as a way to authenticate, which is what it is.
            if name != "token":
                found.append({"in": "query", **notes.parameters[name]})
        found += [{"in": "header", **notes.parameters[name]} for name in note.headers]
        return found

    def _body(self, route: Route, note: EndpointNote) -> dict[str, object] | None:
        if route.request is None:
            return None
        json: dict[str, object] = {"schema": self._components.of(route.request, "request")}
        if note.request_examples:
            json["examples"] = {
                name: {"value": value} for name, value in note.request_examples.items()
            }
        content: dict[str, object] = {"application/json": json}
        if note.takes_arrow:
            content[ARROW_STREAM.decode()] = {"schema": BINARY}
        return {"required": not note.body_optional, "content": content}

    def _answers(self, route: Route, note: EndpointNote) -> dict[str, object]:
        if note.upgrades:
            return {"101": {"description": "The connection is a WebSocket from here on."}}
        content: dict[str, object] = {}
        if route.response is not None:
            json: dict[str, object] = {"schema": self._components.of(route.response, "answer")}
            if note.answer_example is not None:
                json["example"] = note.answer_example
            content["application/json"] = json
        if note.gives_arrow:
            content[ARROW_STREAM.decode()] = {"schema": BINARY}
        if note.gives_events:
            content[EVENT_STREAM.decode()] = {"schema": {"type": "string"}}
        if note.gives_text:
            content["text/plain"] = {"schema": {"type": "string"}}
        if note.gives_object:
            content["application/json"] = {"schema": {"type": "object"}}
        answers: dict[str, object] = {"200": {"description": note.success, "content": content}}
        if note.created:
            answers["201"] = {"description": note.created, "content": content}
        return answers

    def _refusals(self, route: Route, note: EndpointNote) -> dict[str, object]:
        codes = [*ALWAYS, *note.errors]
        if not route.public:
            codes += ALWAYS_BUT_PROBES
        if route.request is not None:
            codes += WITH_BODY
        by_status: dict[int, list[type[HeadraceError]]] = {}
        for code in dict.fromkeys(codes):
            kind = ERRORS[code]
            by_status.setdefault(kind.status, []).append(kind)
        return {str(status): self._refusal(kinds) for status, kinds in sorted(by_status.items())}

    def _refusal(self, kinds: Sequence[type[HeadraceError]]) -> dict[str, object]:
        """One answer for all errors of a status, shared by the operations that have the same."""
        name = self._prefix + "-or-".join(kind.code for kind in kinds)
        made = self._refusals_made
        if name not in made:
            lines = [f"`{kind.code}`: {_first_line(kind)}" for kind in kinds]
            refusal: dict[str, object] = {
                "description": "\n\n".join(lines),
                "content": {
                    "application/json": {
                        "schema": self._error,
                        "examples": {
                            kind.code: {"value": self._notes.error_example(kind.code)}
                            for kind in kinds
                        },
                    }
                },
            }
            if any(kind.retryable for kind in kinds):
                refusal["headers"] = {"Retry-After": RETRY_AFTER}
            made[name] = refusal
        return {"$ref": f"#/components/responses/{name}"}


RETRY_AFTER: Final = {
    "description": "Whole seconds after which the call may be repeated.",
    "schema": {"type": "integer", "minimum": 0},
}


def _first_line(kind: type[HeadraceError]) -> str:
    return (kind.__doc__ or "").strip().split("\n")[0]


def _operation_id(route: Route) -> str:
    words = [part.strip("{*}") for part in route.template.split("/") if part]
    return "_".join([route.method.lower(), *words]).replace(".", "_").replace("-", "_")


ERRORS: Final[dict[str, type[HeadraceError]]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, HeadraceError) and "code" in vars(kind)
}


class OpenApi:
    """The document as bytes, made when it is first asked for."""

    def __init__(self, routes: Sequence[Route], settings: Settings) -> None:
        self._routes = routes
        self._settings = settings
        self._body: bytes | None = None

    @property
    def body(self) -> bytes:
        if self._body is None:
            self._body = msgspec.json.encode(document(self._routes, self._settings))
        return self._body
