"""Every topic is a table by its name: what a statement names becomes a view, and nothing else.

The rules this file owns: one statement sees each topic cut at one recorded epoch and head; a view
lives as long as its statement, so that the next one sees what came since; a view has all columns,
and the source is asked only for those that the statement uses.  Where a archive has a topic's past,
each seq comes from one of the two: up to a seq from the archive, after it from the server.
Conditions are pushed down only where a statement reads a topic in one place, because Spark keeps
the last ones for all places.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.client import Client
from headrace.core.errors import InvalidRequest, TopicNotFound
from headrace.spark.connection import connect
from headrace.spark.options import Connection, SourceOptions
from headrace.spark.read_failures import lost
from headrace.spark.reading.topics import TopicHead, topic_heads
from headrace.spark.session import is_in_process
from headrace.spark.sql.archive import Loss, TopicArchive, TopicLife
from headrace.spark.sql.session_cache import SessionCache
from headrace.spark.sql.topic_ends import MEANWHILE, Cut
from headrace.spark.sql.topic_rows import NotArchived, TopicRows
from headrace.spark.sql.used_columns import Use, uses_of
from headrace.spark.sql.view_columns import (
    OF_STREAM,
    ORIGIN,
    SOURCE,
    VALUE,
    parts_of,
    quoted,
    view_columns,
)

TOPICS_PER_STATEMENT_MAX = 100
NOT_FOUND = "TABLE_OR_VIEW_NOT_FOUND"
# An explanation has the same tables as what it explains, and no error where one is missing.
_EXPLAIN = re.compile(r"\A\s*explain\s+((extended|codegen|cost|formatted)\s+)?", re.IGNORECASE)

# What may be the name of a topic in a statement.
_TABLES = re.compile(r"\b(?:from|join)\s+(?:`([^`]+)`|(\w+))", re.IGNORECASE)


class Answer(NamedTuple):
    """A statement's rows, not computed yet, and the cut of each topic that it names."""

    frame: DataFrame
    cuts: dict[str, Cut]


class Tables:
    """The topics of one server as tables of one session.

    With `archive` older rows come from there.  `origins` adds a column that says where each row
    came from.
    """

    def __init__(
        self,
        spark: SparkSession,
        connection: Connection,
        archive: TopicArchive | None = None,
        *,
        origins: bool = False,
    ) -> None:
        self.spark = spark
        self.connection = connection
        self.archive = archive
        self.origins = origins
        self.seen = SessionCache()

    def cancel(self) -> None:
        """End what runs now; the thread that waits for it gets an error of Spark."""
        if is_in_process(self.spark):
            self.spark.sparkContext.cancelAllJobs()
        else:
            self.spark.interruptAll()

    @contextlib.contextmanager
    def query(self, statement: str) -> Iterator[Answer]:
        """Run a statement; inside the block its rows can be computed.

        At the end of the block a topic that was deleted and created again is an error.
        """
        views = _Views(self, statement)
        try:
            frame = views.of_archive()
            if frame is None:
                views.start(views.needs())
                frame = views.resolve(statement, views.register)
            try:
                yield Answer(frame, views.cuts)
            except (PySparkException, Py4JError):
                views.check()  # a topic that was created again explains the failure
                raise
            views.check()
        finally:
            views.close()


class _Views:
    """The views of one statement."""

    def __init__(self, tables: Tables, statement: str) -> None:
        self._archive = tables.archive
        self._origins = tables.origins
        self._spark = tables.spark
        self._connection = tables.connection
        self._before = tables.seen
        self._statement = statement
        self._client: Client = connect(tables.connection)
        self._rows = TopicRows(tables.spark, tables.connection, self._client)
        self._registered: list[str] = []
        self._needs: dict[str, Use] = {}
        self._lives: dict[str, TopicLife | None] = {}
        self._archive_only = False
        self.cuts: dict[str, Cut] = {}

    def of_archive(self) -> DataFrame | None:
        """The statement, where a archive has all that it names.

        What it needs of that Spark finds out by itself, and nothing has to be analysed before.
        """
        if self._archive is None or self._origins or _EXPLAIN.match(self._statement):
            return None
        self._archive_only = True
        try:
            for topic in self._likely():
                with contextlib.suppress(TopicNotFound):
                    self.register(topic)
            frame = self.resolve(self._statement, self.register)
        except NotArchived:
            self._drop()
            self.cuts.clear()
            return None
        finally:
            self._archive_only = False
        self._before.named(self.cuts)
        return frame

    def needs(self) -> dict[str, Use]:
        """The topics that a query names, with what it needs of each.

        Nothing for a statement that is not a query: such a one runs when Spark is told of it.
        """
        names: list[str] = []

        def stand_in(topic: str) -> None:
            types = self._types(self._cut_of(topic))
            names.append(topic)
            self._show(topic, self._stand_in(len(names), types))

        try:
            for topic in self._likely():
                with contextlib.suppress(TopicNotFound):
                    stand_in(topic)
            query = _EXPLAIN.sub("", self._statement, count=1)
            frame = self.resolve(f"select * from (\n{query}\n)", stand_in)
            used = uses_of(frame) if is_in_process(self._spark) else {}
        except (PySparkException, TopicNotFound, InvalidRequest):
            # It is no query, or something is wrong with it, which Spark says better of the
            # statement as it was written.
            return {}
        finally:
            self._drop()
        return self._used(names, used)

    def _used(self, names: list[str], used: dict[str, Use]) -> dict[str, Use]:
        """What is needed of each topic, by what its stand-in was used for."""
        found = {}
        for at, topic in enumerate(names, start=1):
            use = used.get(f"{at}:topic")
            if use is not None:
                found[topic] = _of_source(use)
            elif not used:
                found[topic] = self._everything(topic)
            # Else the plan has no place for it, and Spark asks for it again if it must be there.
        self._before.named(found)
        return found

    def _likely(self) -> list[str]:
        """Topics of earlier statements that this one seems to name.

        To be told by Spark that a table is missing takes longer than all that is done here.
        """
        if not is_in_process(self._spark):
            return []
        catalog = self._spark._jsparkSession.sessionState().catalog()
        named = {plain or odd for odd, plain in _TABLES.findall(self._statement)}
        likely = [topic for topic in self._before.topics if topic in named]
        found = [topic for topic in likely if catalog.getRawTempView(topic).isEmpty()]
        for topic in found:
            self._refuse_namesake(topic)
        return found

    def _stand_in(self, number: int, types: dict[str, str]) -> DataFrame:
        """A table without rows, whose columns say which topic they stand for."""
        known = self._before.stand_in(number, types)
        if known is not None:
            return known
        ddl = ", ".join(f"`{number}:{name}` {kind}" for name, kind in types.items())
        if is_in_process(self._spark):
            # Not a list: a table that is known to be empty is left out of a plan.
            empty = self._spark.createDataFrame(self._spark.sparkContext.emptyRDD(), ddl)
        else:
            empty = self._spark.createDataFrame([], ddl)
        made = empty.toDF(*types).selectExpr(*view_columns(list(types), types))
        self._before.keep(number, types, made)
        return made

    def _types(self, cut: Cut) -> dict[str, str]:
        """The columns that parts of a table are made of, and their types."""
        types = dict(SOURCE) | (OF_STREAM if cut.is_stream else {})
        life = self._life(cut)
        if life is not None and life.value_type is not None:
            types[VALUE] = life.value_type
        if self._origins:
            types[ORIGIN] = "string"
        return types

    def _everything(self, topic: str) -> Use:
        """What is asked for where nothing is known of the statement."""
        return Use(set(self._types(self.cuts.get(topic) or self._cut_of(topic))), places=0)

    # Cuts

    def start(self, needs: dict[str, Use]) -> None:
        """Take the cuts of all topics, one right after the other, and make their views."""
        self._needs = needs
        self.cuts.update((topic, self._cut_of(topic)) for topic in needs)
        for topic in needs:
            self.register(topic)

    def _cut_of(self, name: str) -> Cut:
        """A topic as it is now; or the table of a archive, where there is no such topic."""
        try:
            head = self._head(name)
        except TopicNotFound as error:
            life = None if self._archive is None else self._archive.table(name)
            if life is None:
                raise self._past_only(name) or error from None
            self._refuse_living(life)
            self._lives[name] = life
            stream = life.is_stream
            return Cut(name, life.epoch, 1, life.to_seq, alone=True, is_stream=stream)
        return Cut(name, head.epoch, head.earliest, head.head, is_stream=head.is_stream)

    def _past_only(self, topic: str) -> TopicNotFound | None:
        names = [] if self._archive is None else self._archive.names_of(topic)
        if not names:
            return None
        return TopicNotFound(
            f"topic {topic!r} does not exist",
            fix=f"the lake has the past of one: select from {' or '.join(map(quoted, names))}",
            detail={"topic": topic, "tables": names},
        )

    def _refuse_living(self, life: TopicLife) -> None:
        """What was deleted in a topic is known to the server only under the topic's name."""
        with contextlib.suppress(TopicNotFound):
            if self._head(life.topic).epoch == life.epoch:
                raise InvalidRequest(
                    f"{life.name!r} is the past of topic {life.topic!r}, which is there",
                    fix=f"select from {quoted(life.topic)}, which has all of it",
                    detail={"table": life.name, "topic": life.topic},
                )

    def _life(self, cut: Cut) -> TopicLife | None:
        """The past of a topic, looked at once for a statement."""
        if self._archive is None:
            return None
        known = self._lives.get(cut.topic)
        if cut.topic not in self._lives or (known is not None and known.epoch != cut.epoch):
            known = self._lives[cut.topic] = self._archive.look(cut.topic, cut.epoch)
        return known

    # Views

    def register(self, topic: str) -> None:
        """Make the view of a topic."""
        cut = self.cuts.get(topic) or self._cut_of(topic)
        self.cuts[topic] = cut
        use = self._needs.get(topic) or self._everything(topic)
        types = self._types(cut)
        wanted = use.columns | ({"seq"} if ORIGIN in use.columns else set())
        columns = [name for name in types if name in wanted and name != ORIGIN]
        parts = list(
            self._rows.parts(cut, self._life(cut), columns, use, archive_only=self._archive_only)
        )
        frame = parts[0] if parts else self._no_rows(columns, types)
        for part in parts[1:]:
            frame = frame.unionByName(part)
        have = [name for name in types if name in wanted] if parts else columns
        self._show(topic, frame.selectExpr(*view_columns(have, types)))

    def _no_rows(self, columns: list[str], types: dict[str, str]) -> DataFrame:
        nulls = [f"cast(null as {types[name]}) as {name}" for name in columns]
        return self._spark.range(0).where("false").selectExpr(*nulls)

    def _show(self, topic: str, view: DataFrame) -> None:
        view.createOrReplaceTempView(quoted(topic))
        self._registered.append(topic)

    def resolve(self, statement: str, register: Callable[[str], None]) -> DataFrame:
        """What Spark makes of a statement, once it has every topic that is missing."""
        for _ in range(TOPICS_PER_STATEMENT_MAX):
            try:
                frame = self._spark.sql(statement)
                if not is_in_process(self._spark):
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
        parts = parts_of(parameters.get("relationName", ""))
        if len(parts) != 1:
            name = ".".join(parts)
            raise InvalidRequest(
                f"there is no table {name!r}",
                fix=f"if that is a topic, write {quoted(name)}",
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

    def check(self) -> None:
        """No topic was deleted and created again, with other records under the same seqs.

        What a topic has lost since it was cut may be missing where its first record was not named.
        """
        for topic, cut in self.cuts.items():
            if cut.alone:
                continue
            try:
                head = self._head(topic)
            except TopicNotFound:
                continue  # what was read was read from the topic that it was
            if head.epoch != cut.epoch:
                raise lost(topic, cut.earliest, cut.head, "recreated")
            if cut.floats and head.earliest > cut.earliest:
                last = min(head.earliest - 1, cut.head)
                cut.losses.append(Loss(cut.earliest, last, MEANWHILE))

    def close(self) -> None:
        self._drop()
        self._client.close()

    def _drop(self) -> None:
        for topic in self._registered:
            dropped = self._spark.catalog.dropTempView(topic)
            assert dropped, "a view that stayed would hide what is appended later"
        self._registered.clear()


def _of_source(use: Use) -> Use:
    """What to ask the source for, by the stand-in's columns that a plan uses."""
    # `seq` is the cheapest column, for a statement that only counts rows.
    columns = {name.partition(":")[2] for name in use.columns} or {"seq"}
    return use._replace(columns=columns)
