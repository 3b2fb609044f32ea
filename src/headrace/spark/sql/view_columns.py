"""The columns of a table of SQL, what each is made of, and names as SQL writes them."""

from __future__ import annotations

import re

from pyspark.sql import DataFrame

from headrace.spark.sql.used_columns import Use

# Columns that are made of one of the source, and how; the others are as the source gives them.
PARSED = {
    "meta": ("meta", "try_parse_json(meta)"),
    "data": ("data", "try_parse_json(cast(data as string))"),
}
RAW = "raw"
# What the source gives, and its types there.
SOURCE = {
    "topic": "string",
    "seq": "bigint",
    "ts": "timestamp",
    "node": "string",
    "tag": "string",
    "meta": "string",
    "data": "binary",
}
# What it gives of a stream beside them.
OF_STREAM = {
    "content_type": "string",
    "headers": "array<struct<name: binary, value: binary>>",
}
# A history may have this column beside them, and can make it of rows of the server that have those.
VALUE = "value"
VALUE_NEEDS = ("seq", "kind", "data")
# On request a table says which part each row came from: `lake`, `segments` or `tail`.
ORIGIN = "origin"


def marked(frame: DataFrame, origin: str, use: Use) -> DataFrame:
    """Rows with where they came from, if a statement asks for it."""
    return frame.selectExpr("*", f"{origin} AS {ORIGIN}") if ORIGIN in use.columns else frame


def view_columns(have: list[str], types: dict[str, str]) -> list[str]:
    """A view has every column; what it has nothing for is null."""
    made = {name: PARSED.get(name, (name, name)) for name in types}
    extra = [name for name in (*OF_STREAM, VALUE, ORIGIN) if name in made]
    columns = {name: made[name] for name in SOURCE} | {RAW: ("data", "data")}
    found = []
    for name, (source, what) in (columns | {name: made[name] for name in extra}).items():
        kind = "variant" if name in PARSED else types[source]
        found.append(f"{what if source in have else f'cast(null as {kind})'} as {name}")
    return found


def quoted(name: str) -> str:
    """As SQL writes a name of any characters.

    >>> quoted("payments:eu")
    '`payments:eu`'
    """
    return "`" + name.replace("`", "``") + "`"


def parts_of(relation: str) -> list[str]:
    """The parts of a name as Spark writes it in messages.

    >>> parts_of("`spark_catalog`.`a.b``c`"), parts_of("`orders`")
    (['spark_catalog', 'a.b`c'], ['orders'])
    """
    return [part.replace("``", "`") for part in re.findall(r"`((?:[^`]|``)*)`", relation)]
