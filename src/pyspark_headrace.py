"""Spark looks for modules named `pyspark_*` and registers their `DefaultSource`: this is ours."""

from headrace.spark.source import HeadraceSource as DefaultSource

__all__ = ["DefaultSource"]
