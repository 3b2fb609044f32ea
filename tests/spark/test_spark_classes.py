"""The file of loaded classes: used where it is there and fits, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import spark_classes

WITHOUT = f"{spark_classes.QUICK} {spark_classes.UNCHECKED}"


def test_java_is_told_of_the_file_once_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    file = spark_classes.archive()
    assert file is not None and file.parent == tmp_path
    assert spark_classes.options() == WITHOUT
    file.touch()
    assert spark_classes.options().endswith(f' "-XX:AOTCache={file}"')


def test_another_java_or_another_spark_has_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    before = spark_classes.archive()
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "one.jar").touch()
    monkeypatch.setattr(spark_classes.pyspark, "__file__", str(tmp_path / "__init__.py"))
    assert spark_classes.archive() != before
    # It may not even know the option.
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert spark_classes.archive() is None
    assert spark_classes.options() == WITHOUT
