"""The checks of a pipeline's SQL where it is declared, without Spark.

Only this file knows sqlglot.  A statement has to be one query over the declared sources.  What
would run something (a script, a Java method) or name a table in another way is refused, whatever
the worker's Spark would say to it; the worker looks at the same again with Spark's own parser
(`pipelines/worker/plan_check.py`), so that a difference between the two is no way around.  Types
and columns are known to Spark alone: what is wrong there becomes the state of the pipeline.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.core.errors import Internal, SqlRefused
from headrace.core.limits import pipeline_sql_bytes_max, pipeline_sql_depth_max

if TYPE_CHECKING:
    from sqlglot import exp
    from sqlglot.tokenizer_core import Token

# They call Java methods by name.
JAVA_FUNCTIONS: Final = ("reflect", "try_reflect", "java_method")
# They open files that their options name.
FILE_FUNCTIONS: Final = (
    "from_xml",
    "schema_of_xml",
    "from_avro",
    "to_avro",
    "schema_of_avro",
    "from_protobuf",
    "to_protobuf",
)
# The last one names a table or a column by a computed text.
FUNCTIONS_REFUSED: Final = frozenset({*JAVA_FUNCTIONS, *FILE_FUNCTIONS, "identifier"})
TABLE_FUNCTIONS: Final = frozenset(
    [
        "explode",
        "explode_outer",
        "posexplode",
        "posexplode_outer",
        "inline",
        "inline_outer",
        "range",
        "stack",
        "json_tuple",
        "variant_explode",
        "variant_explode_outer",
    ]
)
_SAID_MAX: Final = 200
_DEEPER: Final = frozenset({"(", "[", "CASE"})
_SHALLOWER: Final = frozenset({")", "]", "END"})
_PREFIXES: Final = frozenset({"NOT", "!", "-", "+", "~"})


class SqlFacts(NamedTuple):
    """What the text of a query shows of it."""

    tables: frozenset[str]  # the sources that it names, in lower case
    stateful: bool  # whether Spark keeps something between its batches


def check_sql(sql: str, tables: Collection[str]) -> SqlFacts:
    """Refuse what is not one query over these tables; names count without their case.

    >>> check_sql("select tag, count(*) from orders group by tag", ["orders"])
    SqlFacts(tables=frozenset({'orders'}), stateful=True)
    >>> check_sql("select id from order", ["orders"])
    Traceback (most recent call last):
    headrace.core.errors.SqlRefused: line 1, column 16: 'order' is not a declared source; declare \
it, or use one of orders
    """
    size = len(sql.encode(errors="replace"))
    if size > pipeline_sql_bytes_max:
        raise SqlRefused(f"the SQL has {size} bytes", fix=f"use at most {pipeline_sql_bytes_max}")
    try:
        statement = _parse(sql)
        _check_tree(sql, statement, {name.lower() for name in tables})
        facts = SqlFacts(frozenset(_tables_of(statement)), _is_stateful(statement))
    except RecursionError:
        raise _too_deep() from None
    if not facts.tables:
        raise SqlRefused(
            "the SQL reads no source", fix=f"select from {' or '.join(sorted(tables))[:_SAID_MAX]}"
        )
    return facts


def columns_of(sql: str) -> list[str] | None:
    """Return the names of the result's columns, in lower case; None: only Spark knows them.

    >>> columns_of("select o.Tag, count(*) as n from orders o group by 1")
    ['tag', 'n']
    >>> columns_of("select *, 1 as one from orders"), columns_of("select count(*) from orders")
    (None, None)
    """
    from sqlglot import exp

    found = []
    for column in _parse(sql).selects:
        # A star that is told apart from a column by its class, `o.*` by what it has.
        if not isinstance(column, exp.Alias | exp.Column | exp.Dot) or column.is_star:
            return None
        found.append(column.output_name.lower())
    return found


def _parse(sql: str) -> exp.Query:
    try:
        from sqlglot import exp
        from sqlglot.dialects.databricks import Databricks
        from sqlglot.errors import ParseError, TokenError
        from sqlglot.tokenizer_core import TokenType
    except ImportError:
        raise Internal(
            "this server cannot check SQL", fix="pip install 'headrace[pipelines]' there"
        ) from None
    # What it does not know it takes for a command, and says so; that is refused below.
    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    # Spark's own dialect, and `data:price::double` of a VARIANT, which Spark 4 has as well.
    dialect = Databricks()
    try:
        tokens = dialect.tokenize(sql)
    except TokenError:
        raise _refusal(sql, _open_quote(sql), "a text, a name or a comment does not end") from None
    _check_depth(tokens)
    for token, following in pairwise(tokens):
        # To sqlglot `window` only begins a clause; in Spark it is a function as well.
        if token.token_type is TokenType.WINDOW and following.token_type is TokenType.L_PAREN:
            token.token_type = TokenType.VAR
        # A field may have any name: `data.select`.
        if token.token_type is TokenType.DOT and following.text.isidentifier():
            following.token_type = TokenType.VAR
    try:
        statements = [one for one in dialect.parser().parse(tokens, sql) if one is not None]
    except ParseError as error:
        error.__traceback__ = None  # its frames refer to the parser, which refers to it
        raise _parse_refusal(error.errors[0] if error.errors else {}) from None
    if len(statements) != 1:
        raise SqlRefused(
            f"there are {len(statements)} statements", fix="send one query, such as select ..."
        )
    statement = statements[0]
    if not isinstance(statement, exp.Query):
        raise SqlRefused(
            f"{_verb(statement)} is not a query", fix="send one query, such as select ..."
        )
    return statement


def _check_depth(tokens: list[Token]) -> None:
    depth = prefixes = 0
    for token in tokens:
        text = token.text.upper()
        prefixes = prefixes + 1 if text in _PREFIXES else 0
        if text in _DEEPER:
            depth += 1
        elif text in _SHALLOWER:
            depth -= 1
        if max(depth, prefixes) > pipeline_sql_depth_max:
            raise _too_deep()


def _too_deep() -> SqlRefused:
    return SqlRefused(
        "the SQL is nested too deeply",
        fix=f"use at most {pipeline_sql_depth_max} levels; `with` gives parts a name",
    )


def _check_tree(sql: str, statement: exp.Query, declared: set[str]) -> None:
    from sqlglot import exp

    for node in statement.walk():
        if isinstance(node, exp.QueryTransform):
            raise SqlRefused("TRANSFORM runs a script", fix="compute it in SQL")
        if isinstance(node, exp.DML | exp.DDL | exp.Command | exp.Into) and not isinstance(
            node, exp.Query
        ):
            raise SqlRefused(f"{_verb(node)} is not part of a query", fix="leave it out")
        if isinstance(node, exp.Parameter | exp.Placeholder):
            raise SqlRefused(
                "the SQL has a parameter", fix="write the value: nothing is put in its place"
            )
        if isinstance(node, exp.Func) and _name_of(node).lower() in FUNCTIONS_REFUSED:
            raise SqlRefused(f"{_name_of(node)}() is not for pipelines", fix="compute it in SQL")
    for table in _real_tables(statement):
        _check_table(sql, table, declared)


def _check_table(sql: str, table: exp.Table, declared: set[str]) -> None:
    from sqlglot import exp

    if isinstance(table.this, exp.Func):
        name = _name_of(table.this)
        if name.lower() not in TABLE_FUNCTIONS:
            raise SqlRefused(
                f"{name[:_SAID_MAX]}() is no table of a pipeline", fix="name a declared source"
            )
        return
    if table.db or table.catalog:
        where = table.args.get("db")
        raise _refusal(
            sql, _start_of(where), f"{table.sql(dialect='spark')[:_SAID_MAX]} is not a source",
            "name a declared source by its alias alone",
        )  # fmt: skip
    if table.name.lower() not in declared:
        raise _refusal(
            sql,
            _start_of(table.this),
            f"{table.name[:_SAID_MAX]!r} is not a declared source",
            f"declare it, or use one of {', '.join(sorted(declared))}",
        )


def _real_tables(statement: exp.Query) -> Iterator[exp.Table]:
    """Return the tables that are not parts of the query itself, nor only named by a hint."""
    from sqlglot import exp

    for table in statement.find_all(exp.Table):
        if table.find_ancestor(exp.Hint) is None and not _is_part(table):
            yield table


def _is_part(table: exp.Table) -> bool:
    """Whether a table is a `with` of the query, one that is known where the table stands."""
    from sqlglot import exp

    if table.db or isinstance(table.this, exp.Func):
        return False
    name, node = table.name.lower(), table.parent
    within: exp.CTE | None = None  # the part that the table itself is in
    while node is not None:
        if isinstance(node, exp.CTE):
            within = node
        elif isinstance(node, exp.Query):
            for cte in node.ctes:
                if cte is within:
                    break  # neither itself nor those that follow it
                if cte.alias.lower() == name:
                    return True
            within = None
        node = node.parent
    return False


def _name_of(function: exp.Func) -> str:
    from sqlglot import exp

    return function.name if isinstance(function, exp.Anonymous) else function.sql_name()


def _tables_of(statement: exp.Query) -> Iterator[str]:
    return (table.name.lower() for table in _real_tables(statement) if table.name)


def _is_stateful(statement: exp.Query) -> bool:
    """Whether rows depend on rows of other batches, as far as the text shows it."""
    from sqlglot import exp

    kinds = (
        exp.Group, exp.Distinct, exp.AggFunc, exp.Join, exp.SetOperation, exp.Order, exp.Limit,
        exp.Exists, exp.Having, exp.Window,
    )  # fmt: skip
    # A query within a condition is a join.
    if any(one.args.get("query") is not None for one in statement.find_all(exp.In)):
        return True
    return next(statement.find_all(*kinds), None) is not None


# Where it is wrong


def _parse_refusal(error: dict[str, object]) -> SqlRefused:
    said = str(error.get("description") or "it does not parse").partition(" but got ")[0]
    if said.startswith("Required keyword"):  # what follows are names of sqlglot's own classes
        said = "something is missing here"
    highlight = str(error.get("highlight") or "")
    line, end = error.get("line"), error.get("col")
    if not isinstance(line, int) or not isinstance(end, int):
        return SqlRefused(f"the SQL does not parse: {said[:_SAID_MAX]}", fix=_SEE)
    column = max(end - len(highlight) + 1, 1)
    return _at(line, column, said.rstrip("."), _SEE)


_SEE: Final = "see the SQL reference of Spark"


def _refusal(sql: str, offset: int | None, said: str, fix: str = _SEE) -> SqlRefused:
    if offset is None:
        return SqlRefused(said, fix=fix)
    before = sql[:offset]
    return _at(before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1, said, fix)


def _at(line: int, column: int, said: str, fix: str) -> SqlRefused:
    return SqlRefused(
        f"line {line}, column {column}: {said[:_SAID_MAX]}",
        fix=fix,
        detail={"line": line, "column": column},
    )


def _start_of(node: object) -> int | None:
    meta = getattr(node, "meta", None)
    start = meta.get("start") if isinstance(meta, dict) else None
    return start if isinstance(start, int) else None


def _open_quote(sql: str) -> int | None:
    """Return where the text, name or comment begins that does not end."""
    at = 0
    while at < len(sql):
        char = sql[at]
        start = at
        if char in "'\"`":
            at = _after_quote(sql, at + 1, char)
        elif sql.startswith("/*", at):
            end = sql.find("*/", at + 2)
            at = -1 if end < 0 else end + 2
        elif sql.startswith("--", at):
            end = sql.find("\n", at)
            at = len(sql) if end < 0 else end
        else:
            at += 1
        if at < 0:
            return start
    return None


def _after_quote(sql: str, at: int, quote: str) -> int:
    while at < len(sql):
        if sql[at] == "\\" and quote != "`":
            at += 2
        elif sql[at] == quote:
            return at + 1
        else:
            at += 1
    return -1


def _verb(statement: object) -> str:
    return type(statement).__name__.upper()
