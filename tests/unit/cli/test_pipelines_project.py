"""`headrace pipelines project`: what it leaves in a directory, and the command that it prints."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.cli.options import ServerAddress
from headrace.cli.pipelines_project import Start, start_of, write
from headrace.core.errors import ConfigError

FILES = {"spark-pipeline.yml": "name: x\n", "transformations/a.sql": "-- The pipeline a.\n"}


def test_files_are_written_once(tmp_path: Path) -> None:
    assert write(FILES, str(tmp_path / "p"), replace=False) == list(FILES)
    assert write(FILES, str(tmp_path / "p"), replace=False) == []
    assert (tmp_path / "p/transformations/a.sql").read_text() == FILES["transformations/a.sql"]


def test_what_somebody_changed_stays(tmp_path: Path) -> None:
    write(FILES, str(tmp_path), replace=False)
    (tmp_path / "spark-pipeline.yml").write_text("name: mine\n")
    with pytest.raises(ConfigError, match="was changed"):
        write(FILES, str(tmp_path), replace=False)
    assert (tmp_path / "spark-pipeline.yml").read_text() == "name: mine\n"
    assert write(FILES, str(tmp_path), replace=True) == ["spark-pipeline.yml"]


def test_queries_of_before_do_not_stay_behind(tmp_path: Path) -> None:
    write(FILES, str(tmp_path), replace=False)
    (tmp_path / "transformations/own.sql").write_text("CREATE MATERIALIZED VIEW own AS SELECT 1")
    other = {**FILES, "transformations/b.sql": "-- The pipeline b.\n"}
    del other["transformations/a.sql"]
    with pytest.raises(ConfigError, match=r"a\.sql"):
        write(other, str(tmp_path), replace=False)
    assert not (tmp_path / "transformations/b.sql").exists(), "all or nothing"
    write(other, str(tmp_path), replace=True)
    left = sorted(path.name for path in (tmp_path / "transformations").iterdir())
    assert left == ["b.sql", "own.sql"]


def test_the_command_is_one_for_a_shell_and_has_no_secret(tmp_path: Path) -> None:
    server = ServerAddress("http://h:1", "the secret")
    started = start_of(str(tmp_path), {"JAVA_HOME": ""}, server)
    assert "the secret" not in started.shown() and "the secret" in started.secrets.values()
    assert started.variables["PYSPARK_PYTHON"] == sys.executable
    assert started.words[-3:] == ["run", "--spec", "spark-pipeline.yml"]
    assert Path(started.words[0]).is_file()
    spoken = Start({"A": "x y"}, {}, ["run", "b c"], "/d e").shown()
    assert shlex.split(spoken) == ["cd", "/d e", "&&", "env", "A=x y", "run", "b c"]


def test_which_pipelines_has_to_be_clear(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--all", "a"]):
        assert main(["pipelines", "project", *words, "--to", "x"]) == 2
        assert "name some, or use --all" in capsys.readouterr().err
