"""Which Python Spark starts its processes with: that of PYSPARK_PYTHON, else the one that runs.

Spark starts a process of Python for each kind of question to a data source, and for each streaming
query.  On this machine they import Spark from where it is installed, and not from its archives,
which takes 1.1 s of the processor off each (docs/internals/spark.md).
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import MutableMapping

VARIABLE = "PYSPARK_PYTHON"
# This Python behind a `bin/python` that leaves Spark's archives out of the path.
SHIM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "python_home", "bin", "python")
SHIM_VARIABLE = "HEADRACE_SPARK_PYTHON"


def find_python(environ: MutableMapping[str, str], *, is_local: bool) -> None:
    """Point `PYSPARK_PYTHON` to the Python that runs, unless it points to another one."""
    if environ.get(VARIABLE, SHIM) != SHIM:
        return
    # Else Spark takes whichever `python3` is on the path, which need not have our packages.
    environ[VARIABLE] = sys.executable
    if is_local and _imports_spark_by_itself(environ):
        environ[VARIABLE] = SHIM
        environ[SHIM_VARIABLE] = sys.executable


def _imports_spark_by_itself(environ: MutableMapping[str, str]) -> bool:
    """Whether this Python, without any PYTHONPATH, finds the Spark that is going to run."""
    import pyspark

    package = os.path.dirname(os.path.abspath(pyspark.__file__))
    installed = {sysconfig.get_path(kind) for kind in ("purelib", "platlib")}
    return os.path.dirname(package) in installed and environ.get("SPARK_HOME", package) == package
