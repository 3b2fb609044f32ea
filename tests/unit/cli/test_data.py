"""`headrace check`, `dump`, `backup` and `restore`: what is printed, and the exit code."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import main
from headrace.cli.progress import BAR_CELLS, ProgressBar
from headrace.core.clock import ManualClock
from headrace.core.settings import Settings
from headrace.engine.engine import Engine

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    settings = Settings(data_dir=str(directory), wal_file_bytes=1 << 20, wal_batch_bytes_max=4096)
    with Engine.open(directory, settings) as engine:
        engine.append("orders", [{"id": number} for number in range(50)]).result()
        engine.append("other", [b"\xff"]).result()
    return directory


def headrace(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def printed(capsys: Capture) -> Any:
    return json.loads(capsys.readouterr().out)


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(bytes(content))


def only(directory: Path, pattern: str) -> Path:
    (found,) = directory.glob(pattern)
    return found


def test_check_of_a_whole_directory(data: Path) -> None:
    done = headrace("check", "--data-dir", data)
    assert (done.returncode, done.stderr) == (0, ""), "no bar where stderr is no terminal"
    assert done.stdout.startswith(f"ok: {data}: ") and "2 topics, 51 sealed records" in done.stdout


def test_check_and_repair(data: Path, capsys: Capture) -> None:
    segment = only(data, "segments/*.arrow")
    flip(segment, 300)
    assert main(["check", "--json", "--data-dir", str(data)]) == 1
    report = printed(capsys)
    (finding,) = report["findings"]
    assert not report["ok"] and finding["severity"] == "error"
    assert finding["code"] == "segment_damaged" and finding["file"] == str(segment)
    assert finding["offset"] == 0 and "--repair" in finding["fix"]
    assert {(lost["topic"], lost["first"], lost["last"]) for lost in finding["lost"]} == {
        ("orders", 1, 50),
        ("other", 1, 1),
    }
    done = headrace("check", "--repair", "--data-dir", data)
    assert done.returncode == 0, done.stderr
    assert "topic 'orders' seq 1..50" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("ok: ")
    assert only(data, "segments/*.broken").name == f"{segment.name}.1.broken"
    assert main(["check", "--data-dir", str(data)]) == 0
    with Engine.open(data) as engine:
        page = engine.read("orders").result()
        assert page.tombstone is not None
        assert (page.tombstone.gap_from, page.tombstone.gap_to) == (1, 50)
        assert page.tombstone.reason == "crash"


def test_what_cannot_be_repaired_is_exit_1(data: Path) -> None:
    snapshots = list(data.glob("meta/snapshot-*.bin"))
    assert len(snapshots) == 2, "with one of them, everything is still there"
    for snapshot in snapshots:
        flip(snapshot, 100)
    done = headrace("check", "--repair", "--data-dir", data)
    assert done.returncode == 1
    assert "restore" in done.stdout and "1 errors" not in done.stdout
    assert "Traceback" not in done.stderr


def test_a_directory_in_use(data: Path, tmp_path: Path) -> None:
    with Engine.open(data):
        for arguments in (["check"], ["backup", str(tmp_path / "target")]):
            done = headrace(*arguments, "--data-dir", data)
            assert done.returncode == 1 and done.stderr.count("\n") == 1
            assert "is in use by process" in done.stderr
        assert "engine.backup(target)" in done.stderr
        assert headrace("dump", "--data-dir", data).returncode == 0, "looking needs no lock"
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("verb", [["check"], ["dump"], ["backup", "somewhere"]])
def test_no_data_directory(tmp_path: Path, capsys: Capture, verb: list[str]) -> None:
    assert main([*verb, "--data-dir", str(tmp_path / "nothing")]) == 1
    assert "is not a data directory" in capsys.readouterr().err
    assert not (tmp_path / "nothing").exists()


def test_dump(data: Path, capsys: Capture) -> None:
    place = ["--data-dir", str(data)]
    assert main(["dump", *place, "--topic", "orders", "--records"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    records = [line for line in lines if line["type"] == "record"]
    assert [json.loads(record["data"])["id"] for record in records] == list(range(50))
    segment = only(data, "segments/*.arrow").relative_to(data)
    assert main(["dump", *place, "--json", str(segment)]) == 0
    document = printed(capsys)
    assert [line["type"] for line in document] == ["segment", "run", "run"]
    assert main(["dump", *place, "--topic", "nobody"]) == 1
    assert "does not exist" in capsys.readouterr().err


def test_backup_and_restore(data: Path, tmp_path: Path, capsys: Capture) -> None:
    target, new = tmp_path / "target", tmp_path / "new"
    place = ["--data-dir", str(data)]
    assert main(["backup", *place, "--json", str(target)]) == 0
    first = printed(capsys)
    assert first["topics"] == 2 and first["files_copied"] == first["files"]
    assert main(["backup", *place, f"file://{target}"]) == 0
    assert "0 files, 0 bytes were new" in capsys.readouterr().out
    assert main(["restore", str(target), "--data-dir", str(new), "--json"]) == 0
    assert printed(capsys)["generation"] == 1
    with Engine.open(data) as old, Engine.open(new) as engine:
        assert engine.topic("orders").epoch != old.topic("orders").epoch
        expected = old.read("orders").result().records
        assert engine.read("orders").result().records == expected
    assert main(["restore", str(target), "--data-dir", str(new)]) == 1
    assert "is not empty" in capsys.readouterr().err
    assert main(["backup", "--data-dir", str(new), str(target)]) == 1
    assert "--replace" in capsys.readouterr().err
    assert main(["backup", "--data-dir", str(new), "--replace", str(target)]) == 0


def test_places_that_cannot_be(data: Path, tmp_path: Path, capsys: Capture) -> None:
    place = ["--data-dir", str(data)]
    assert main(["backup", *place, "ftp://nowhere/x"]) == 2
    assert "cannot hold a backup" in capsys.readouterr().err
    assert main(["restore", str(tmp_path / "no"), "--data-dir", str(tmp_path / "new")]) == 1
    assert "does not exist" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    assert main(["backup", *place, str(blocked / "x")]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "Traceback" not in err


def test_the_bar() -> None:
    stream, clock = io.StringIO(), ManualClock()
    bar = ProgressBar(stream, clock, shown=True)
    bar("segments/a", 1, 4)
    bar("segments/b", 2, 4)
    clock.advance(200)
    bar("segments/c", 4, 4)
    bar.clear()
    drawn = [line for line in stream.getvalue().split("\r") if line.strip()]
    assert len(drawn) == 2, "not more often than it can be seen"
    assert " 25% segments/a" in drawn[0] and f"[{'#' * BAR_CELLS}] 100% segments/c" in drawn[1]
    quiet = io.StringIO()
    ProgressBar(quiet, clock, shown=False)("x", 1, 1)
    assert quiet.getvalue() == ""
