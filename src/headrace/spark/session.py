"""A Spark session that starts on any machine with Python: Java from a wheel, sane local defaults.

`HEADRACE_SPARK_REMOTE` names a Spark Connect server, `HEADRACE_SPARK_MASTER` a cluster; without
either Spark runs inside this process.  Nothing is written to the current directory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from headrace.core.clock import SystemRandom
from headrace.core.errors import ConfigError, NotReady
from headrace.core.limits import MIB
from headrace.spark.java import find_java
from headrace.spark.python import find_python
from headrace.storage.fs import RealFilesystem, read_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER_VARIABLE = "HEADRACE_SPARK_MASTER"
REMOTE_VARIABLE = "HEADRACE_SPARK_REMOTE"
# Set by spark-submit, which has then chosen Java, the cluster and the memory.
SUBMITTED_VARIABLE = "PYSPARK_GATEWAY_PORT"

# All cores; a task may fail three times, where without the second number once would be too often.
LOCAL_MASTER = "local[*,4]"
# Spark inside this process takes a quarter of the memory, within these bounds.
MEMORY_PART = 4
MEMORY_MIB_MIN = 1024
MEMORY_MIB_MAX = 8192
SHUFFLE_PARTITIONS_MIN = 2
LOOPBACK = "127.0.0.1"
LOG_SETTINGS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "log4j2.properties")
DRIVER_JAVA_OPTIONS = "spark.driver.extraJavaOptions"

# Wherever Spark runs.
DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
}
# Where it runs inside this process: nobody else can reach it.
LOCAL_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
}


class SparkAddress(NamedTuple):
    """Where Spark runs: a master, or the address of a Spark Connect server."""

    master: str | None
    remote: str | None

    @property
    def is_local(self) -> bool:
        """Whether this process starts a Spark of its own, on this machine."""
        return (self.remote or self.master or "").startswith("local")


def spark_session(
    settings: Mapping[str, str] | None = None,
    *,
    master: str | None = None,
    remote: str | None = None,
    app_name: str = "headrace",
) -> SparkSession:
    """The running session, or a new one; `settings` are `spark.*` settings and win over ours.

    `master` is a cluster, else HEADRACE_SPARK_MASTER, else all cores of this machine; `remote` is a
    Spark Connect server, else HEADRACE_SPARK_REMOTE.  `format("headrace")` is there by itself.

    >>> spark = spark_session({"spark.sql.ansi.enabled": "true"})
    >>> spark.range(3).selectExpr("sum(id)").collect()[0][0]
    3
    """
    wanted = checked_settings(settings or {})
    scratch = _scratch_path()
    session_class = _session_class()
    if running_session() is None:
        place = place_of(wanted, master, remote, os.environ)
        wanted = prepare(place, wanted, scratch)
    else:
        place = SparkAddress(None, None)
    builder = session_class.builder.appName(app_name)
    if place.remote is not None:
        builder = builder.remote(place.remote)
    elif place.master is not None:
        builder = builder.master(place.master)
    for name, value in wanted.items():
        builder = builder.config(name, value)
    _quiet()
    with _told_once(place):
        session = _start(builder)
    if place.is_local and place.remote is None:
        _remove_at_exit(session, scratch)
    return session


def running_session() -> SparkSession | None:
    """The session that was started in this process, in whichever thread, if it runs."""
    session_class = _session_class()
    session = session_class.getActiveSession() or session_class._instantiatedSession
    if session is not None and is_in_process(session) and session.sparkContext._jsc is None:
        return None  # stopped by its context
    return session


def is_in_process(session: SparkSession) -> bool:
    """Whether the driver runs here, and not behind Spark Connect."""
    return hasattr(session, "_jsparkSession")


def _session_class() -> type[SparkSession]:
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise ConfigError("Spark is not installed", fix="pip install 'headrace[spark]'") from None
    return SparkSession


def checked_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The same, once every name is one that Spark could know.

    >>> checked_settings({"x.y": "4"})
    Traceback (most recent call last):
    headrace.core.errors.ConfigError: 'x.y' is not a setting of Spark; its names begin with `spark.`
    """
    for name in settings:
        if not name.startswith("spark."):
            raise ConfigError(
                f"{name!r} is not a setting of Spark",
                fix="its names begin with `spark.`",
                detail={"setting": name},
            )
    return dict(settings)


def place_of(
    settings: dict[str, str], master: str | None, remote: str | None, environ: Mapping[str, str]
) -> SparkAddress:
    """Where to run: as the caller says, else as the environment says, else here.

    `spark.master` and `spark.remote` are taken out of the settings.
    """
    master = master or settings.pop("spark.master", None)
    remote = remote or settings.pop("spark.remote", None)
    if not master and not remote:
        master, remote = environ.get(MASTER_VARIABLE), environ.get(REMOTE_VARIABLE)
    if master and remote:
        raise ConfigError(
            f"Spark can run on the master {master!r} or behind Spark Connect, not both",
            fix=f"name one of them ({MASTER_VARIABLE}, {REMOTE_VARIABLE})",
        )
    if remote:
        return SparkAddress(None, remote)
    if not master and SUBMITTED_VARIABLE in environ:
        return SparkAddress(None, None)
    return SparkAddress(master or LOCAL_MASTER, None)


def prepare(place: SparkAddress, settings: dict[str, str], scratch: str) -> dict[str, str]:
    """Set what Spark takes from the environment; returns all settings of the session.

    What Spark would write to the current directory goes to `scratch` instead.
    """
    find_python(os.environ, is_local=place.is_local)
    chosen = dict(DEFAULTS)
    java_options = []
    starts_java = place.remote is None or place.is_local
    if starts_java and SUBMITTED_VARIABLE not in os.environ:
        find_java(os.environ)
        java_options.append(
            _java_option("log4j2.configurationFile", f"file://{quote(LOG_SETTINGS)}")
        )
    if place.is_local:
        # Else Spark says which of the machine's addresses it would have taken.
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
        partitions = max(SHUFFLE_PARTITIONS_MIN, cores_of(place.remote or place.master or ""))
        chosen |= LOCAL_DEFAULTS
        chosen["spark.driver.memory"] = f"{driver_mib(_memory_mib())}m"
        chosen["spark.sql.shuffle.partitions"] = str(partitions)
        chosen["spark.sql.warehouse.dir"] = os.path.join(scratch, "warehouse")
        java_options.append(_java_option("derby.system.home", scratch))
    # Java takes the last of two options of one name, so that the caller's win.
    java_options += filter(None, [settings.pop(DRIVER_JAVA_OPTIONS, "")])
    if java_options:
        chosen[DRIVER_JAVA_OPTIONS] = " ".join(java_options)
    return chosen | settings


def _java_option(name: str, value: str) -> str:
    """One word to Spark's launcher, which takes them apart as a shell does.

    >>> _java_option("derby.system.home", "/a b")
    "'-Dderby.system.home=/a b'"
    """
    return shlex.quote(f"-D{name}={value}")


def _scratch_path() -> str:
    """A directory that Spark makes when somebody makes a table, and removes at its end."""
    name = f"headrace-spark-{os.getpid()}-{SystemRandom().u32():08x}"
    return os.path.join(os.environ.get("TMPDIR") or "/tmp", name)


def cores_of(master: str) -> int:
    """How many tasks run at once.

    >>> cores_of("local"), cores_of("local[3]"), cores_of("local[2,4]"), cores_of("local[*,4]") > 0
    (1, 3, 2, True)
    """
    match = re.match(r"local\[\s*(\d+|\*)", master)
    if match is None:
        return 1
    return len(os.sched_getaffinity(0)) if match[1] == "*" else max(1, int(match[1]))


def driver_mib(memory_mib: int) -> int:
    """What Spark may take of a machine's memory.

    >>> driver_mib(2_000), driver_mib(16_000), driver_mib(512_000)
    (1024, 4000, 8192)
    """
    return min(MEMORY_MIB_MAX, max(MEMORY_MIB_MIN, memory_mib // MEMORY_PART))


def _memory_mib() -> int:
    """What the machine has, or what this container may use of it."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        bound = int(read_file(RealFilesystem("/sys/fs/cgroup"), "memory.max"))
    except (OSError, ValueError):  # no such file, or the word `max`
        bound = total
    return min(total, bound) // MIB


def _start(builder: SparkSession.Builder) -> SparkSession:
    from pyspark.errors import PySparkException

    try:
        return builder.getOrCreate()
    except ImportError as error:  # what Spark Connect needs
        raise ConfigError(
            f"Spark cannot start: {_line(error)}", fix="pip install 'headrace[spark]'"
        ) from None
    except PySparkException as error:
        raise NotReady(
            f"Spark did not start: {_line(error)}",
            fix="look at what it printed, at the settings given to it and at the address of the "
            "cluster",
        ) from error


@contextlib.contextmanager
def _told_once(place: SparkAddress) -> Iterator[None]:
    """A Connect server that starts here gets all settings as it does, and again by its client:

    those which are fixed by then would be a page of warnings, although they count.
    """
    with warnings.catch_warnings():
        if place.is_local and place.remote is not None:
            warnings.filterwarnings("ignore", message=r"Failed to set spark\.")
        yield


def _quiet() -> None:
    """PySpark logs each error of a statement, with its plan and trace, and raises it as well."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def _line(error: Exception) -> str:
    """The first line of a message that may be a page."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _remove_at_exit(session: SparkSession, scratch: str) -> None:
    """Have Java remove the directory, if there is one, when it ends."""
    java = session._jvm
    assert java is not None, "Spark runs in this process"
    directory = java.java.io.File(scratch)
    java.org.apache.spark.util.ShutdownHookManager.registerShutdownDeleteDir(directory)
