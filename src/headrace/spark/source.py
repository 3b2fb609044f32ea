"""`format("headrace")`: what Spark asks of a data source, each answered by a module of its own.

Readers and writers are imported when they are asked for: a planner process is started for each
query, and needs one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)

from headrace.spark.options import sink_options, source_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class HeadraceSource(DataSource):
    """Topics as a source and a sink of Spark, in batches and in streams."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> StructType:
        """The columns that the options ask for; Spark does not say yet what for."""
        from headrace.spark.reading.columns import shape_of

        return shape_of(source_options(self.options, streaming=None), None).schema

    def reader(self, schema: StructType) -> DataSourceReader:
        from headrace.spark.reading.batch_source import BatchReader, FilteringBatchReader
        from headrace.spark.reading.columns import shape_of

        options = source_options(self.options, streaming=False)
        reads = FilteringBatchReader if options.push_filters else BatchReader
        return reads(options, shape_of(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from headrace.spark.reading.columns import shape_of
        from headrace.spark.reading.stream_source import StreamReader

        options = source_options(self.options, streaming=True)
        return StreamReader(options, shape_of(options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from headrace.spark.writing.sink import BatchWriter

        return BatchWriter(sink_options(self.options, streaming=False), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from headrace.spark.writing.sink import StreamWriter

        return StreamWriter(sink_options(self.options, streaming=True), schema, overwrite)
