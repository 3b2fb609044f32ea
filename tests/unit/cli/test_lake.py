"""`headrace lake` and `headrace import` where nothing has to be computed: choices and refusals."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from headrace.cli.lake_replay import seqs_of
from headrace.cli.main import main
from headrace.client import Client
from headrace.core.errors import ConfigError
from headrace.lake.tables.layout import Lake
from headrace.testing.process import ServerProcess
from tests.support.lakes import Bench

Capture = pytest.CaptureFixture[str]


def refused(capsys: Capture, code: int, *words: str) -> str:
    assert main(list(words)) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("headrace: ") and err.count("\n") == 1
    return err


def test_what_cannot_be_is_said(capsys: Capture, tmp_path: Path) -> None:
    lake = ["--lake", str(tmp_path / "lake")]
    assert "such as --every 1m" in refused(capsys, 2, "lake", "sync", "--every", "often", *lake)
    assert "--nobody-writes" in refused(capsys, 2, "lake", "vacuum", "--keep", "1h", *lake)
    assert "such as --keep 7d" in refused(capsys, 2, "lake", "vacuum", "--keep", "soon", *lake)
    assert "shows nothing" in refused(capsys, 2, "lake", "history", "--limit", "0", *lake)
    assert "no table of none" in refused(capsys, 1, "lake", "history", "--topics", "none", *lake)
    assert "a lake cannot be at" in refused(capsys, 2, "lake", "history", "--lake", "ftp://x")
    assert "schema" in refused(capsys, 2, "lake", "sync", "--schema", "id BIGNT", *lake)
    replay = ["lake", "replay", "orders", "--to", "x", *lake]
    assert "is no range" in refused(capsys, 2, *replay, "--seqs", "one")
    assert "no table of orders" in refused(capsys, 1, *replay)


def test_ranges() -> None:
    assert seqs_of("7-")[0] == 7
    with pytest.raises(ConfigError, match="the lower one first"):
        seqs_of("9-7")


def test_without_delta(capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    said = refused(capsys, 2, "lake", "history", "--lake", str(tmp_path))
    assert "headrace[lake]" in said


def test_where_the_lake_is(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with ServerProcess(tmp_path / "data") as server, Client(server.url) as client:
        client.append("orders", [1, 2])
        assert Bench(server, client, Lake(str(tmp_path / "data" / "lake"))).sync("orders").rows == 2
        assert Bench(server, client, Lake(str(tmp_path / "other"))).sync("orders").rows == 2
        # One that is not there does not stop the other, which is done: nothing starts Spark.
        words = ["lake", "sync", "--topics", "nothing,orders", "--url", server.url]
        assert main([*words, "--lake", str(tmp_path / "other")]) == 1
        out, err = capsys.readouterr()
        assert "1 of 2 topics are in the lake; 0 new rows" in out
        assert "headrace: nothing: topic 'nothing' does not exist" in err
    for place in (
        ["--data-dir", str(tmp_path / "data")],
        ["--lake", str(tmp_path / "other")],
        ["--lake", (tmp_path / "other").as_uri()],
    ):
        assert main(["lake", "history", "--json", *place]) == 0
        (table,) = json.loads(capsys.readouterr().out)["tables"]
        assert table["topic"] == "orders"
        assert [one["what"] for one in table["commits"]] == ["sync", "create table"]
    monkeypatch.setenv("HEADRACE_LAKE", str(tmp_path / "none"))
    assert "has no table" in refused(capsys, 1, "lake", "history", "--json")
    monkeypatch.setenv("HEADRACE_LAKE", str(tmp_path / "other"))
    assert main(["lake", "history"]) == 0
    assert "1 to 2" in capsys.readouterr().out
    assert main(["lake", "vacuum"]) == 0
    assert capsys.readouterr().out == "orders: 0 files removed\n"


def test_a_data_directory_with_a_lake_is_still_one(capsys: Capture, tmp_path: Path) -> None:
    """Tools for the directory, and the next start, leave the lake alone."""
    data = tmp_path / "data"
    with ServerProcess(data) as server, Client(server.url) as client:
        client.append("orders", [1, 2])
        bench = Bench(server, client, Lake(str(data / "lake")))
        assert bench.sync("orders").rows == 2
    assert main(["check", "--data-dir", str(data)]) == 0
    with ServerProcess(data) as server, Client(server.url) as client:
        bench = Bench(server, client, Lake(str(data / "lake")))
        client.append("orders", [3])
        assert bench.sync("orders").watermark == 3
    capsys.readouterr()
