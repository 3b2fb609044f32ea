"""JSON Schema (2020-12) of msgspec types, as OpenAPI 3.1 wants it.

Only this file turns types into schemas.  A type is described apart for requests and for answers,
because a field with a default may be left out of a request and is always in an answer, unless it is
marked as left out there (api/base.py has the marks).  What a type cannot say (a limit that is a
setting, a field that is kept as raw bytes) comes as `extra`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Final, Literal

from msgspec import NODEFAULT
from msgspec import inspect as types

from headrace.api.base import DOCUMENTED, LEFT_OUT_KEY

Schema = dict[str, object]
Direction = Literal["request", "answer"]
# By class name and direction, then by field: what is added to a field's schema; None leaves the
# field out, and "" stands for the whole object.
Extra = Mapping[str, Mapping[str, Schema | None]]

REF: Final = "#/components/schemas/"


class Components:
    """The schemas of all types that were asked for.

    >>> import msgspec
    >>> class Point(msgspec.Struct):
    ...     "A place."
    ...     x: int
    ...     y: int = 0
    >>> components = Components()
    >>> components.of(Point, "request")
    {'$ref': '#/components/schemas/Point'}
    >>> components.schemas["Point"]["required"]
    ['x']
    """

    def __init__(self, extra: Extra | None = None) -> None:
        self.schemas: dict[str, Schema] = {}
        self._extra = extra or {}
        self._names: dict[tuple[type, Direction], str] = {}

    def of(self, kind: object, direction: Direction) -> Schema:
        """The schema of a type: a reference where the type has a name."""
        return self._schema(types.type_info(kind), direction)

    def _schema(self, info: types.Type, direction: Direction) -> Schema:
        if isinstance(info, types.Metadata):
            return {**self._marked(info, direction), **(info.extra_json_schema or {})}
        if isinstance(info, types.StructType):
            return {"$ref": REF + self._component(info, direction)}
        if isinstance(info, types.UnionType):
            return self._union(info, direction)
        if isinstance(info, types.ListType):
            return {"type": "array", "items": self._schema(info.item_type, direction)}
        if isinstance(info, types.TupleType):
            items = [self._schema(item, direction) for item in info.item_types]
            count = len(items)
            return {"type": "array", "prefixItems": items, "minItems": count, "maxItems": count}
        if isinstance(info, types.DictType):
            values = self._schema(info.value_type, direction)
            return {"type": "object", **({"additionalProperties": values} if values else {})}
        return _plain(info)

    def _marked(self, info: types.Metadata, direction: Direction) -> Schema:
        """The schema of a type whose marks may narrow it."""
        marks = info.extra or {}
        shown = marks.get(DOCUMENTED)
        if isinstance(shown, str):
            shown = next(kind for kind, _ in self._names if name_of(kind) == shown)
        inner = info.type if shown is None else types.type_info(shown)
        if LEFT_OUT_KEY in marks:
            inner = _without_none(inner)
        return self._schema(inner, direction)

    def _component(self, info: types.StructType, direction: Direction) -> str:
        known = self._names.get((info.cls, direction))
        if known is not None:
            return known
        name = name_of(info.cls)
        if (info.cls, "request" if direction == "answer" else "answer") in self._names:
            name += direction.capitalize()
        assert name not in self.schemas, f"two types are called {name}"
        self._names[info.cls, direction] = name
        schema = self.schemas[name] = {}  # taken, before a type that holds itself comes back
        schema.update(self._struct(info, direction))
        return name

    def _struct(self, info: types.StructType, direction: Direction) -> Schema:
        extra = self._extra.get(f"{name_of(info.cls)}:{direction}", {})
        properties: dict[str, Schema] = {}
        required: list[str] = []
        said = (extra.get("") or {}).get("required")
        needed = said if isinstance(said, list) else []  # what no type says is required
        for field in info.fields:
            more = extra.get(field.encode_name, {})
            if more is None:
                continue
            schema = self._schema(field.type, direction)
            if direction == "answer" and schema.get("type") == "integer":
                schema.setdefault("minimum", 0)
            schema.update(more)
            optional = field.default is not NODEFAULT and field.encode_name not in needed
            if direction == "request" and optional:
                schema = _or_null(schema)
            plain = isinstance(field.default, bool | int | float | str)
            if direction == "request" and field.default is not NODEFAULT and plain:
                schema.setdefault("default", field.default)
            properties[field.encode_name] = schema
            # An answer always has a field with a default, unless the field is marked.
            kept = field.default is not NODEFAULT and not _is_left_out(field.type)
            if field.required or (direction == "answer" and kept):
                required.append(field.encode_name)
        for name, kind in getattr(info.cls, "added_fields", {}).items():
            properties[name] = self._schema(types.type_info(kind), direction)
            if properties[name].get("type") == "integer":
                properties[name].setdefault("minimum", 0)
            required.append(name)
        return {
            "type": "object",
            "description": inspect.cleandoc(info.cls.__doc__ or ""),
            "properties": properties,
            **({"required": required} if required else {}),
            **(extra.get("") or {}),
        }

    def _union(self, info: types.UnionType, direction: Direction) -> Schema:
        parts = [self._schema(part, direction) for part in info.types]
        kinds = [part.get("type") for part in parts]
        if {"type": "null"} in parts and len(parts) == 2:
            other = next(part for part in parts if part != {"type": "null"})
            if "enum" in other and isinstance(other["enum"], list):
                return {"enum": [*other["enum"], None]}
            if isinstance(other.get("type"), str):
                return {**other, "type": [other["type"], "null"]}
        if all(len(part) == 1 and isinstance(part.get("type"), str) for part in parts):
            return {"type": kinds}
        return {"anyOf": parts}


def name_of(kind: type) -> str:
    """What the document calls a struct: its `schema_name`, or the name of its class."""
    return str(getattr(kind, "schema_name", kind.__name__))


def _is_left_out(info: types.Type) -> bool:
    return isinstance(info, types.Metadata) and LEFT_OUT_KEY in (info.extra or {})


def _without_none(info: types.Type) -> types.Type:
    """A type without None: what may be left out of an answer is never null in it."""
    if not isinstance(info, types.UnionType):
        return info
    left = tuple(part for part in info.types if not isinstance(part, types.NoneType))
    return left[0] if len(left) == 1 else types.UnionType(left)


def _or_null(schema: Schema) -> Schema:
    """A field that may be left out may be null as well.

    >>> _or_null({"type": "integer", "minimum": 0})
    {'type': ['integer', 'null'], 'minimum': 0}
    """
    kind, allowed = schema.get("type"), schema.get("enum")
    if isinstance(allowed, list):
        schema = {**schema, "enum": [*allowed, *([] if None in allowed else [None])]}
    if isinstance(kind, str):
        return {**schema, "type": [kind, "null"]}
    if isinstance(kind, list):
        return {**schema, "type": [*kind, *([] if "null" in kind else ["null"])]}
    if "anyOf" in schema and isinstance(schema["anyOf"], list):
        null = {"type": "null"}
        return {**schema, "anyOf": [*(p for p in schema["anyOf"] if p != null), null]}
    if "$ref" in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    return schema


def _plain(info: types.Type) -> Schema:
    """The schema of what holds no other type."""
    if isinstance(info, types.IntType):
        return {"type": "integer", **_limits(info)}
    if isinstance(info, types.FloatType):
        return {"type": "number", **_limits(info)}
    if isinstance(info, types.StrType):
        bounds = {"minLength": info.min_length, "maxLength": info.max_length}
        patterned = {**bounds, "pattern": info.pattern}
        return {"type": "string", **{k: v for k, v in patterned.items() if v is not None}}
    if isinstance(info, types.LiteralType):
        return {"enum": list(info.values)}
    for kind, name in _NAMES.items():
        if isinstance(info, kind):
            return {"type": name}
    anything = isinstance(info, types.CustomType) and info.cls is object
    assert anything or isinstance(info, types.RawType | types.AnyType), info
    return {}


def _limits(info: types.IntType | types.FloatType) -> Schema:
    found = {"minimum": info.ge, "exclusiveMinimum": info.gt, "maximum": info.le}
    return {name: bound for name, bound in found.items() if bound is not None}


_NAMES: Final = {types.BoolType: "boolean", types.NoneType: "null"}
