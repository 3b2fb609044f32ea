"""Declared pipelines: computations over topics that a server keeps and a Spark worker runs."""
