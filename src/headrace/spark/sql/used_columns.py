"""What a statement needs of each table, read off Spark's own optimised plan.

Spark does not tell a Python source which columns a query uses.  So the statement is first analysed
over stand-ins, tables with the right columns and no rows, and the leaves of its optimised plan say
what is above them.  The rule this file owns: in doubt, every column and every row is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame

# These keep only what they name of the node below; a filter also passes on all the rest.
NARROWING = ("Project", "Aggregate")
PASSING = ("Filter",)

SEQ_MAX: Final = (1 << 63) - 1
US_MAX: Final = (1 << 63) - 1
# The bounded columns, and the type that a literal has to have to be compared with one as it is.
_BOUNDED: Final = {"seq": "bigint", "ts": "timestamp"}
# What a comparison says when its sides change places.
_MIRRORED: Final = {
    "EqualTo": "EqualTo",
    "GreaterThan": "LessThan",
    "GreaterThanOrEqual": "LessThanOrEqual",
    "LessThan": "GreaterThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
}


class Bounds(NamedTuple):
    """Only rows within these can matter, both ends included; times are microseconds."""

    seq_first: int = 0
    seq_last: int = SEQ_MAX
    ts_first: int = -US_MAX
    ts_last: int = US_MAX

    def within(self, other: Bounds) -> Bounds:
        """What both allow."""
        return Bounds(
            max(self.seq_first, other.seq_first),
            min(self.seq_last, other.seq_last),
            max(self.ts_first, other.ts_first),
            min(self.ts_last, other.ts_last),
        )

    def around(self, other: Bounds) -> Bounds:
        """What either allows.

        >>> Bounds(seq_first=5, seq_last=9).around(Bounds(seq_first=7))[:2] == (5, SEQ_MAX)
        True
        """
        return Bounds(
            min(self.seq_first, other.seq_first),
            max(self.seq_last, other.seq_last),
            min(self.ts_first, other.ts_first),
            max(self.ts_last, other.ts_last),
        )


class Use(NamedTuple):
    """What a plan uses of a table: columns, in how many places, and at most which rows."""

    columns: set[str]
    places: int
    bounds: Bounds = Bounds()


class _Leaf(NamedTuple):
    """A table in one place of a plan; `wanted` None: all columns."""

    names: list[str]
    wanted: set[str] | None
    bounds: Bounds


def uses_of(frame: DataFrame) -> dict[str, Use]:
    """What the plan needs of each leaf, by the name of the leaf's first column."""
    plan = frame._jdf.queryExecution().optimizedPlan()
    found: dict[str, Use] = {}
    for root in (plan, *_items(plan.subqueriesAll())):
        for names, wanted, bounds in _leaves(root, None, Bounds()):
            if names:
                known = found.get(names[0], Use(set(), 0, bounds))
                columns = known.columns.union(names if wanted is None else wanted)
                found[names[0]] = Use(columns, known.places + 1, known.bounds.around(bounds))
    return found


def _leaves(node: Any, wanted: set[str] | None, bounds: Bounds) -> Iterator[_Leaf]:
    """The leaves below a node; `bounds` are those of a filter right above it."""
    children = _items(node.children())
    if not children:
        yield _Leaf([column.name() for column in _items(node.output())], wanted, bounds)
        return
    kind = node.nodeName()
    if kind in NARROWING:
        passed: set[str] | None = _references(node)
    elif kind in PASSING and wanted is not None:
        passed = wanted | _references(node)
    else:
        passed = None
    bounds = _bounds_of(node.condition()) if kind == "Filter" else Bounds()
    for child in children:
        yield from _leaves(child, passed, bounds)


def _bounds_of(condition: Any) -> Bounds:
    """What a condition says of seqs and times; what it says otherwise leaves more rows."""
    kind = condition.nodeName()
    if kind == "And":
        left, right = _items(condition.children())
        return _bounds_of(left).within(_bounds_of(right))
    if kind not in _MIRRORED:
        return Bounds()
    left, right = _items(condition.children())
    if left.nodeName() == "Literal":
        kind, left, right = _MIRRORED[kind], right, left
    if left.nodeName() != "AttributeReference" or right.nodeName() != "Literal":
        return Bounds()
    name, value = left.name().rpartition(":")[2], right.value()
    if _BOUNDED.get(name) != right.dataType().simpleString() or not isinstance(value, int):
        return Bounds()
    return _compared(kind, name, value)


def _compared(kind: str, name: str, value: int) -> Bounds:
    ends: dict[str, int] = {}
    if kind in ("EqualTo", "GreaterThan", "GreaterThanOrEqual"):
        ends[f"{name}_first"] = value + (kind == "GreaterThan")
    if kind in ("EqualTo", "LessThan", "LessThanOrEqual"):
        ends[f"{name}_last"] = value - (kind == "LessThan")
    return Bounds()._replace(**ends)


def _references(node: Any) -> set[str]:
    return {column.name() for column in _items(node.references().toSeq())}


def _items(sequence: Any) -> list[Any]:
    """What a sequence of Scala holds."""
    return [sequence.apply(at) for at in range(sequence.length())]
