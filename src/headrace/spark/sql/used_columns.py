"""What a statement needs of each table, read off Spark's own optimised plan.

Spark does not tell a Python source which columns a query uses.  So the statement is first analysed
over stand-ins, tables with the right columns and no rows, and the leaves of its optimised plan say
what is above them.  The rule this file owns: in doubt, every column is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from pyspark.sql import DataFrame

# These keep only what they name of the node below; a filter also passes on all the rest.
NARROWING = ("Project", "Aggregate")
PASSING = ("Filter",)


class Use(NamedTuple):
    """The columns of a table that a plan uses, and in how many places it reads the table."""

    columns: set[str]
    places: int


def uses_of(frame: DataFrame) -> dict[str, Use]:
    """What the plan needs of each leaf, by the name of the leaf's first column."""
    plan = frame._jdf.queryExecution().optimizedPlan()
    found: dict[str, Use] = {}
    for root in (plan, *_items(plan.subqueriesAll())):
        for leaf, names in _leaves(root, None):
            if leaf:
                known = found.get(leaf[0], Use(set(), 0))
                columns = known.columns.union(leaf if names is None else names)
                found[leaf[0]] = Use(columns, known.places + 1)
    return found


def _leaves(node: Any, wanted: set[str] | None) -> Iterator[tuple[list[str], set[str] | None]]:
    """Each leaf's columns, and which of them are wanted from it; None: all."""
    children = _items(node.children())
    if not children:
        yield [column.name() for column in _items(node.output())], wanted
        return
    kind = node.nodeName()
    if kind in NARROWING:
        passed: set[str] | None = _references(node)
    elif kind in PASSING and wanted is not None:
        passed = wanted | _references(node)
    else:
        passed = None
    for child in children:
        yield from _leaves(child, passed)


def _references(node: Any) -> set[str]:
    return {column.name() for column in _items(node.references().toSeq())}


def _items(sequence: Any) -> list[Any]:
    """What a sequence of Scala holds."""
    return [sequence.apply(at) for at in range(sequence.length())]
