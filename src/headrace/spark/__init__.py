"""Spark reads and writes topics: `format("headrace")`, and a session that needs no set-up.

The serving process never imports this package; it needs the extra `headrace[spark]`.  Nothing here
is imported before it is used, because each planner and executor process of Spark imports it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.spark.session import spark_session as spark_session

__all__ = ["spark_session"]


def __getattr__(name: str) -> object:
    if name == "spark_session":
        from headrace.spark.session import spark_session

        return spark_session
    raise AttributeError(f"module 'headrace.spark' has no attribute {name!r}")
