"""What a worker's Spark is told to do, looked at with Spark's own parser and analyser first.

`spark.sql` runs a command at once, so a statement is parsed first, and every node of the parsed
plan has to be one of a query.  Functions that call Java methods or open files are taken out of the
session, no file can be named as a table, and nothing of the worker's environment is put into a
text.  Of the analysed plan every leaf has to be a source.  With that it does not matter whether
sqlglot and Spark agree on what a text means.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from headrace.core.errors import Internal, SqlRefused
from headrace.pipelines.registry.sql_check import FILE_FUNCTIONS, JAVA_FUNCTIONS, TABLE_FUNCTIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Nodes of parsed queries, by the names of Spark's classes.
QUERY_NODES: Final = frozenset(
    {
        "Aggregate", "Distinct", "Except", "Filter", "Generate", "GlobalLimit", "Intersect", "Join",
        "LateralJoin", "LocalLimit", "LocalRelation", "Offset", "OneRowRelation", "PipeOperator",
        "Pivot", "Project", "Sort", "SubqueryAlias", "Union", "UnresolvedEventTimeWatermark",
        "UnresolvedHaving", "UnresolvedHint", "UnresolvedInlineTable", "UnresolvedRelation",
        "UnresolvedSubqueryColumnAliases", "UnresolvedTableValuedFunction",
        "UnresolvedTVFAliases", "UnresolvedWith", "Unpivot", "WithWindowDefinition",
    }
)  # fmt: skip
# Leaves of analysed queries: the sources, and rows that the text itself holds.
LEAVES: Final = frozenset(
    {"StreamingRelationV2", "CTERelationRef", "LocalRelation", "OneRowRelation", "Range"}
)
# Nodes of analysed queries for which Spark keeps nothing between batches.
STATELESS: Final = LEAVES | {
    "CTERelationDef", "CollectMetrics", "EventTimeWatermark", "Filter", "Generate", "Project",
    "SubqueryAlias", "Union", "View", "WithCTE",
}  # fmt: skip
NODES_MAX: Final = 10_000

FUNCTIONS_TAKEN: Final = (*JAVA_FUNCTIONS, *FILE_FUNCTIONS)
# A pipeline reads its sources and nothing else: no files, no `${env:...}`.
SETTINGS: Final = {
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.variable.substitute": "false",
}


def new_session(spark: SparkSession) -> SparkSession:
    """A session for one pipeline: its own views, and nothing in it that runs other code."""
    from headrace.spark.source import HeadraceSource

    session = spark.newSession()
    session.dataSource.register(HeadraceSource)
    # Spark looks a sink up in the session that the thread is at work with, not in the query's own.
    session._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)
    for name, value in SETTINGS.items():
        session.conf.set(name, value)
    for name in FUNCTIONS_TAKEN:
        _take_away(session, name)
    return session


def _take_away(session: SparkSession, name: str) -> None:
    from py4j.protocol import Py4JError

    java: Any = session._jvm
    identifier, some = java.org.apache.spark.sql.catalyst.FunctionIdentifier, java.scala.Some
    registry = _state(session).functionRegistry()
    # Spark 4.3 knows them by their whole names, 4.2 by the last part, and each refuses the other.
    for known in identifier.apply(name, some("builtin"), some("system")), identifier.apply(name):
        try:
            registry.dropFunction(known)
            if not registry.functionExists(known):
                return
        except Py4JError:
            continue
    raise Internal(
        f"this Spark does not let the function {name} be taken away",
        fix="use one of the versions that headrace[spark] names",
    )


def check_plan(session: SparkSession, sql: str) -> None:
    """Refuse a text that Spark takes for anything but a query."""
    for node in _nodes(session, _state(session).sqlParser().parsePlan(sql)):
        kind = node.getClass().getSimpleName()
        if kind not in QUERY_NODES:
            raise SqlRefused(f"{kind} is not part of a query", fix="send one query")
        if kind == "UnresolvedTableValuedFunction":
            name = node.name().mkString(".")
            if name.lower() not in TABLE_FUNCTIONS:
                raise SqlRefused(f"{name}() is no table of a pipeline", fix="use a declared source")


def check_leaves(frame: DataFrame) -> None:
    """Refuse a query that reads anything but its sources, whatever its text looked like."""
    for node in _nodes(frame.sparkSession, frame._jdf.queryExecution().analyzed()):
        kind = node.getClass().getSimpleName()
        if not node.children().size() and kind not in LEAVES:
            raise SqlRefused(
                f"the SQL reads something that is not a declared source ({kind})",
                fix="declare the topics that it reads",
            )


def is_stateful(frame: DataFrame) -> bool:
    """Whether Spark keeps something between the batches of a query."""
    nodes = _nodes(frame.sparkSession, frame._jdf.queryExecution().analyzed())
    return any(node.getClass().getSimpleName() not in STATELESS for node in nodes)


def _nodes(session: SparkSession, plan: Any) -> Iterator[Any]:
    """Every node of a plan, and of the queries within its expressions."""
    java: Any = session._jvm
    kind = java.java.lang.Class.forName("org.apache.spark.sql.catalyst.plans.logical.LogicalPlan")
    nodes = [plan]
    seen = 0
    while nodes:
        node = nodes.pop()
        seen += 1
        if seen > NODES_MAX:
            raise SqlRefused(f"the query has more than {NODES_MAX} parts", fix="make it smaller")
        yield node
        for below in (node.children(), node.innerChildren()):
            found = (below.apply(at) for at in range(below.size()))
            nodes += [child for child in found if kind.isInstance(child)]


def _state(session: SparkSession) -> Any:
    return session._jsparkSession.sessionState()
