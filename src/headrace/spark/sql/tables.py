"""Every topic is a table by its name: what a statement names becomes a view, and nothing else.

The rules this file owns: one statement sees each topic cut at one recorded epoch and head; a view
lives as long as its statement, so that the next one sees what came since; a view has all columns,
and the source is asked only for those that the statement uses.  Conditions are pushed down only
where a statement reads a topic in one place, because Spark keeps the last ones for all places.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.client import Client
from headrace.core.errors import InvalidRequest, TopicNotFound
from headrace.spark.connection import connect
from headrace.spark.options import Connection, SourceOptions
from headrace.spark.reading.topics import TopicHead, topic_heads
from headrace.spark.session import is_in_process
from headrace.spark.sql.used_columns import Use, uses_of
from headrace.spark.trouble import lost

# What the columns of a table are, in terms of what the source gives.
COLUMNS = {
    "topic": "topic",
    "seq": "seq",
    "ts": "ts",
    "node": "node",
    "tag": "tag",
    "meta": "try_parse_json(meta)",
    "data": "try_parse_json(cast(data as string))",
    "raw": "data",
}
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
# On request a table says which part each row came from: `lake`, `segments` or `tail`.
ORIGIN = "origin"
TOPICS_PER_STATEMENT_MAX = 100
NOT_FOUND = "TABLE_OR_VIEW_NOT_FOUND"
# An explanation has the same tables as what it explains, and no error where one is missing.
_EXPLAIN = re.compile(r"\A\s*explain\s+((extended|codegen|cost|formatted)\s+)?", re.IGNORECASE)


class Answer(NamedTuple):
    """A statement's rows, not computed yet, and the cut of each topic that it names."""

    frame: DataFrame
    cuts: dict[str, TopicHead]


class Past(NamedTuple):
    """What somebody else has of a topic: rows up to `to_seq`; the server has all after it.

    What is not sealed yet begins at `tail_from`.
    """

    frame: DataFrame | None
    to_seq: int
    tail_from: int


# Asked for a topic, cut where a statement cuts it, and for columns of the source in their order.
History = Callable[[TopicHead, Sequence[str]], Past]


class Tables:
    """The topics of one server as tables of one session.

    With `history` older rows come from there.  `origins` adds a column that says where each row
    came from, and needs a history.
    """

    def __init__(
        self,
        spark: SparkSession,
        connection: Connection,
        history: History | None = None,
        *,
        origins: bool = False,
    ) -> None:
        assert history is not None or not origins, "only a history knows where rows come from"
        self.spark = spark
        self._connection = connection
        self._history = history
        self._origins = origins

    def cancel(self) -> None:
        """End what runs now; whoever waits for it gets an error of Spark."""
        if is_in_process(self.spark):
            self.spark.sparkContext.cancelAllJobs()
        else:
            self.spark.interruptAll()

    @contextlib.contextmanager
    def query(self, statement: str) -> Iterator[Answer]:
        """Run a statement; inside the block its rows can be computed.

        At the end of the block a topic that was created anew meanwhile is an error.
        """
        views = _Views(self.spark, self._connection, statement, self._history, self._origins)
        try:
            needs = views.needs()
            views.start(needs)
            frame = views.resolve(statement, views.register)
            yield Answer(frame, dict(views.cuts))
            views.check_epochs()
        finally:
            views.close()


class _Views:
    """The views of one statement."""

    def __init__(
        self,
        spark: SparkSession,
        connection: Connection,
        statement: str,
        history: History | None,
        origins: bool,
    ) -> None:
        self._history = history
        self._source = SOURCE | ({ORIGIN: "string"} if origins else {})
        self._columns = COLUMNS | ({ORIGIN: ORIGIN} if origins else {})
        # What is asked for where nothing is known of the statement.
        self._everything = Use(set(self._source), places=0)
        self._spark = spark
        self._connection = connection
        self._statement = statement
        self._client: Client = connect(connection)
        self._registered: list[str] = []
        self._needs: dict[str, Use] = {}
        self.cuts: dict[str, TopicHead] = {}

    def needs(self) -> dict[str, Use]:
        """The topics that a query names, with what it needs of each.

        Nothing for a statement that is not a query: such a one runs when Spark is told of it.
        """
        names: list[str] = []

        def stand_in(topic: str) -> None:
            self._head(topic)
            names.append(topic)
            self._view(topic, self._stand_in(len(names)).toDF(*self._source))

        try:
            query = _EXPLAIN.sub("", self._statement, count=1)
            frame = self.resolve(f"select * from (\n{query}\n)", stand_in)
            used = uses_of(frame) if is_in_process(self._spark) else {}
        except (PySparkException, TopicNotFound, InvalidRequest):
            # It is no query, or something is wrong with it, which Spark says better of the
            # statement as it was written.
            return {}
        finally:
            self._drop()
        return {
            topic: _of_source(used.get(f"{at}:topic"), self._everything)
            for at, topic in enumerate(names, start=1)
        }

    def _stand_in(self, number: int) -> DataFrame:
        """A table without rows, whose columns say which topic they stand for."""
        types = ", ".join(f"`{number}:{name}` {kind}" for name, kind in self._source.items())
        if is_in_process(self._spark):
            # Not a list: a table that is known to be empty is left out of a plan.
            return self._spark.createDataFrame(self._spark.sparkContext.emptyRDD(), types)
        return self._spark.createDataFrame([], types)

    def start(self, needs: dict[str, Use]) -> None:
        """Take the cuts of all topics, one right after the other, and make their views."""
        self._needs = needs
        self.cuts = {topic: self._head(topic) for topic in needs}
        for topic in needs:
            self.register(topic)

    def register(self, topic: str) -> None:
        """Make the view of a topic."""
        cut = self.cuts.get(topic) or self._head(topic)
        self.cuts[topic] = cut
        use = self._needs.get(topic, self._everything)
        wanted = use.columns | ({"seq"} if ORIGIN in use.columns else set())
        columns = [name for name in SOURCE if name in wanted]
        if self._history is None:
            self._view(topic, self._live(cut, columns, use, 0))
            return
        past = self._history(cut, columns)
        old, tail = "'lake'", f"if(seq >= {past.tail_from}, 'tail', 'segments')"
        parts = [] if past.frame is None else [_marked(past.frame, old, use)]
        if past.to_seq < cut.head or not parts:
            parts.append(_marked(self._live(cut, columns, use, past.to_seq), tail, use))
        self._view(topic, parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1]))

    def _live(self, cut: TopicHead, columns: list[str], use: Use, after: int) -> DataFrame:
        """What the server has after a seq, up to the cut."""
        reader = self._spark.read.format("headrace").option("subscribe", cut.topic)
        for name, value in self._options(cut, columns, use).items():
            reader = reader.option(name, value)
        if after >= cut.earliest:
            reader = reader.option("startingSeqs", json.dumps({cut.topic: after + 1}))
        return reader.load()

    def _options(self, cut: TopicHead, columns: list[str], use: Use) -> dict[str, str]:
        options = {
            "url": self._connection.url,
            "columns": ",".join(columns),
            "endingSeqs": json.dumps({cut.topic: cut.head + 1}),
            "pushFilters": "true" if use.places == 1 else "false",
            "retryTimeout": f"{self._connection.retry_timeout_ms}ms",
        }
        if self._connection.token is not None:
            options["token"] = self._connection.token
        if self._connection.ca_file is not None:
            options["caFile"] = self._connection.ca_file
        return options

    def _view(self, topic: str, named: DataFrame) -> None:
        """A view has every column; what is not needed is null."""
        for name, kind in self._source.items():
            if name not in named.columns:
                named = named.selectExpr("*", f"cast(null as {kind}) as {name}")
        view = named.selectExpr(*(f"{what} as {name}" for name, what in self._columns.items()))
        view.createOrReplaceTempView(_quoted(topic))
        self._registered.append(topic)

    def resolve(self, statement: str, register: Callable[[str], None]) -> DataFrame:
        """What Spark makes of a statement, once it has every topic that is missing."""
        for _ in range(TOPICS_PER_STATEMENT_MAX):
            try:
                frame = self._spark.sql(statement)
                _ = frame.schema  # Spark Connect looks at a statement only now
                return frame
            except AnalysisException as error:
                register(self._missing_topic(error))
        raise InvalidRequest(
            f"the statement names more than {TOPICS_PER_STATEMENT_MAX} topics",
            fix="read many topics at once with subscribePattern, in Spark",
        )

    def _missing_topic(self, error: AnalysisException) -> str:
        parameters = error.getMessageParameters() or {}
        if not (error.getCondition() or "").startswith(NOT_FOUND):
            raise error
        parts = _parts(parameters.get("relationName", ""))
        if len(parts) != 1:
            name = ".".join(parts)
            raise InvalidRequest(
                f"there is no table {name!r}",
                fix=f"if that is a topic, write {_quoted(name)}",
                detail={"table": name},
            )
        (topic,) = parts
        if topic in self._registered:
            raise error
        self._refuse_namesake(topic)
        return topic

    def _refuse_namesake(self, topic: str) -> None:
        """Views count without their case, topics with it: two of one name would be mixed up."""
        spellings = set(re.findall(re.escape(topic), self._statement, re.IGNORECASE)) - {topic}
        for other in sorted(spellings):
            with contextlib.suppress(TopicNotFound):
                self._head(other)
                raise InvalidRequest(
                    f"topics {topic!r} and {other!r} are one name to SQL",
                    fix="use only one of them in a statement",
                )

    def _head(self, topic: str) -> TopicHead:
        return topic_heads(self._client, SourceOptions(self._connection, topics=(topic,)))[topic]

    def check_epochs(self) -> None:
        """No topic was deleted and created again, with other records under the same seqs."""
        for topic, cut in self.cuts.items():
            try:
                epoch = self._head(topic).epoch
            except TopicNotFound:
                continue  # what was read was read from the topic that it was
            if epoch != cut.epoch:
                raise lost(topic, cut.earliest, cut.head, "recreated")

    def close(self) -> None:
        self._drop()
        self._client.close()

    def _drop(self) -> None:
        for topic in self._registered:
            dropped = self._spark.catalog.dropTempView(topic)
            assert dropped, "a view that stayed would hide what is appended later"
        self._registered.clear()


def _marked(frame: DataFrame, origin: str, use: Use) -> DataFrame:
    """Rows with where they came from, if a statement asks for it."""
    return frame.selectExpr("*", f"{origin} AS {ORIGIN}") if ORIGIN in use.columns else frame


def _of_source(use: Use | None, everything: Use) -> Use:
    """What to ask the source for, by the stand-in's columns that a plan uses."""
    if use is None:
        return everything
    # `seq` is the cheapest column, for a statement that only counts rows.
    columns = {name.partition(":")[2] for name in use.columns} or {"seq"}
    return Use(columns, use.places)


def _quoted(name: str) -> str:
    """As SQL writes a name of any characters.

    >>> _quoted("payments:eu")
    '`payments:eu`'
    """
    return "`" + name.replace("`", "``") + "`"


def _parts(relation: str) -> list[str]:
    """The parts of a name as Spark writes it in messages.

    >>> _parts("`spark_catalog`.`a.b``c`"), _parts("`orders`")
    (['spark_catalog', 'a.b`c'], ['orders'])
    """
    return [part.replace("``", "`") for part in re.findall(r"`((?:[^`]|``)*)`", relation)]
