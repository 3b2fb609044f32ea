"""What Spark starts its Python workers from in these tests: its own daemon, with our imports done.

Spark forks its workers from a daemon.  A task that fails takes its worker with it, and the next one
would import everything again, for a second or more.
"""

from __future__ import annotations

import importlib
import pkgutil

import headrace.spark

# What no module imports at its top, because a driver may not need it.
LATE = ("pyarrow", "pyarrow.compute", "headrace.client")


def import_all() -> None:
    """Everything that a worker of ours may import."""
    for name in LATE:
        importlib.import_module(name)
    for module in pkgutil.walk_packages(headrace.spark.__path__, "headrace.spark."):
        importlib.import_module(module.name)


if __name__ == "__main__":
    import_all()
    from pyspark import daemon  # reads which kind of worker it is for

    daemon.manager()
