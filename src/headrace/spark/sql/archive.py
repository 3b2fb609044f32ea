"""What a table of SQL asks of an archive of topics; the lake is one (`lake/sql/frames.py`).

The rule it owns: a archive is looked at before the server is, so that what it has is never ahead
of the cut of a statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pyspark.sql import DataFrame

from headrace.api.segments import Manifest
from headrace.spark.sql.used_columns import Bounds


class Loss(NamedTuple):
    """Seqs that nobody has any more, and nobody deleted."""

    first: int
    last: int
    reason: str


class TopicLife(Protocol):
    """One life of one topic, as its archive is at one moment."""

    @property
    def name(self) -> str:
        """The name of its table, under which it can be asked for alone."""

    @property
    def topic(self) -> str:
        """The name of the topic."""

    @property
    def epoch(self) -> int: ...

    @property
    def to_seq(self) -> int:
        """Every seq up to this one is a row of it, or known not to be one."""

    @property
    def value_type(self) -> str | None:
        """The type of its column `value`, as SQL writes it; None: there is no such column."""

    @property
    def is_stream(self) -> bool:
        """Whether it has the columns that only a stream has."""

    @property
    def is_light(self) -> bool:
        """Whether all of it may be given to Spark, which reads only what a statement needs."""

    def check(self, manifest: Manifest) -> None:
        """An error, where this is not the past of the topic that the server has."""

    def rows(
        self, last: int, columns: Sequence[str], bounds: Bounds, manifest: Manifest | None
    ) -> DataFrame:
        """Rows up to a seq, without those that a manifest says are deleted.

        Rows outside of the bounds may be left out.
        """

    def losses(self, bounds: Bounds) -> list[Loss]:
        """What of it was lost before it came here."""

    def valued(self, frame: DataFrame) -> DataFrame:
        """Rows of the server with the column `value`; they have `seq`, `kind` and `data`."""


class TopicArchive(Protocol):
    """The past of topics."""

    def look(self, topic: str, epoch: int) -> TopicLife | None:
        """What there is of a topic in one of its lives, now."""

    def table(self, name: str) -> TopicLife | None:
        """The same by the name of a table."""

    def names_of(self, topic: str) -> list[str]:
        """The names of the tables of a topic, of all its lives."""
