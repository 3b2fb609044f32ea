"""The same look at a pipeline's SQL as the server's, with Spark's own parser and before it runs.

`spark.sql` runs a command at once, so a statement is parsed first, and every node of the parsed
plan has to be one of a query.  Functions that call Java methods are taken out of the session, and
no file can be named as a table.  With that it does not matter whether sqlglot and Spark agree on
what a text means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.core.errors import Internal, SqlRefused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
# They call Java methods by their names.
FUNCTIONS_TAKEN: Final = ("reflect", "try_reflect", "java_method")
NODES_MAX: Final = 10_000

# A pipeline reads its sources and nothing else.
SETTINGS: Final = {"spark.sql.runSQLOnFiles": "false"}


def new_session(spark: SparkSession) -> SparkSession:
    """A session for one pipeline: its own views, and nothing in it that runs other code."""
    from headrace.spark.source import HeadraceSource

    session = spark.newSession()
    session.dataSource.register(HeadraceSource)
    # Spark looks a sink up in the session that the thread is at work with, not in the query's own.
    session._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)
    for name, value in SETTINGS.items():
        session.conf.set(name, value)
    java: Any = session._jvm
    identifier = java.org.apache.spark.sql.catalyst.FunctionIdentifier
    some = java.scala.Some
    registry = _state(session).functionRegistry()
    for name in FUNCTIONS_TAKEN:
        # Spark 4.3 knows them by their whole names, 4.2 by the last part.
        whole = identifier.apply(name, some("builtin"), some("system"))
        if not _dropped(registry, whole) and not _dropped(registry, identifier.apply(name)):
            raise Internal(
                f"this Spark does not let the function {name} be taken away",
                fix="use one of the versions that headrace[spark] names",
            )
    return session


def _dropped(registry: Any, identifier: Any) -> bool:
    from py4j.protocol import Py4JError

    try:
        return bool(registry.dropFunction(identifier))
    except Py4JError:
        return False


def check_plan(session: SparkSession, sql: str) -> None:
    """Refuse a text that Spark takes for anything but a query."""
    nodes = [_state(session).sqlParser().parsePlan(sql)]
    seen = 0
    while nodes:
        node = nodes.pop()
        kind = node.getClass().getSimpleName()
        if kind not in QUERY_NODES:
            raise SqlRefused(f"{kind} is not part of a query", fix="send one query")
        seen += 1
        if seen > NODES_MAX:
            raise SqlRefused(f"the query has more than {NODES_MAX} parts", fix="make it smaller")
        for below in (node.children(), node.innerChildren()):
            nodes += [
                child
                for child in (below.apply(at) for at in range(below.size()))
                if _is_plan(session, child)
            ]


def _is_plan(session: SparkSession, node: Any) -> bool:
    java: Any = session._jvm
    plan = java.java.lang.Class.forName("org.apache.spark.sql.catalyst.plans.logical.LogicalPlan")
    return bool(plan.isInstance(node))


def _state(session: SparkSession) -> Any:
    return session._jsparkSession.sessionState()
