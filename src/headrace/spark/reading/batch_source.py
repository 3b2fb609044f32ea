"""The batch reader: one plan of what to read, cut at the heads of that moment.

What only the planner needs, or only the tasks, is imported there: both are fresh processes, and
half of the time of a small query is imports.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from headrace.spark.options import SourceOptions
from headrace.spark.reading.pushdown import Filters

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.spark.reading.columns import Shape


class BatchReader(DataSourceReader):
    """Reads what is there when the query is planned."""

    def __init__(self, options: SourceOptions, shape: Shape) -> None:
        self.options = options
        self.shape = shape
        self.filters: Filters | None = None

    def partitions(self) -> list[InputPartition]:
        """What each task reads.  The pins lapse by themselves: nobody says when a query ends."""
        from headrace.spark.connection import connect
        from headrace.spark.reading.planning import plan
        from headrace.spark.reading.positions import spans_of
        from headrace.spark.reading.topics import topic_heads

        with connect(self.options.connection, starting=True) as client:
            spans = spans_of(client, self.options, topic_heads(client, self.options))
            made = plan(client, self.options, spans, filters=self.filters, floating=True)
            return list(made.parts)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from headrace.spark.reading.slices import read_part

        return read_part(self.options, self.shape, partition)


class FilteringBatchReader(BatchReader):
    """The same, told beforehand which rows the query will keep.

    A class of its own, because Spark refuses a reader that takes filters where its setting
    `spark.sql.python.filterPushdown.enabled` is false.
    """

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        """All of them are left to Spark as well: here they only spare reading."""
        self.filters = Filters.of(filters)
        return filters
