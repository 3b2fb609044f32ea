"""`headrace lake` without Spark: several tables, what goes wrong with one, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import lake, lake_options
from headrace.cli.main import main
from headrace.core.errors import Forbidden, Unreachable
from headrace.lake.tables import topic_choice as topics
from headrace.lake.tables.tasks import run_inline
from headrace.lake.writing import sync
from headrace.lake.writing.copy_task import copy_part
from headrace.testing.process import ServerProcess
from tests.support.checkout import ROOT
from tests.support.http_streams import make_stream
from tests.support.lakes import Bench, accounted

Command = Callable[..., Any]


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are done here, and Spark is never started."""

    def run(work: lake_options.Work, task: Callable[[Any], Any], jobs: Sequence[Any]) -> list[Any]:
        return run_inline(task, jobs)

    monkeypatch.setattr(lake_options.Work, "_run", run)
    monkeypatch.setattr(lake_options.Work, "copy", lambda work, jobs: run_inline(copy_part, jobs))


@pytest.fixture
def command(unsealed: Bench, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a verb with `--json`: returns its document, and what it said on stderr."""

    def run(*words: str, code: int = 0) -> tuple[Any, str]:
        place = ["--lake", unsealed.lake.root]
        if words[0] in ("sync", "verify", "replay"):
            place += ["--url", unsealed.server.url]
        assert main(["lake", *words, *place, "--json"]) == code
        printed = capsys.readouterr()
        return json.loads(printed.out), printed.err

    return run


def test_both_lives_of_a_topic_are_shown(unsealed: Bench, topic: str, command: Command) -> None:
    for count in (3, 2):
        unsealed.client.delete_topic(topic)
        unsealed.client.append(topic, [1] * count)
        command("sync", "--topics", topic)
    found, _ = command("history", "--topics", topic)
    assert [(one["topic"], one["commits"][0]["last_seq"]) for one in found["tables"]] == [
        (topic, 3),
        (topic, 2),
    ]
    assert len({one["table"] for one in found["tables"]}) == 2
    checked, _ = command("verify", "--topics", topic)
    assert [(one["ok"], one["source"]) for one in checked["tables"]] == [
        (True, "deleted"),
        (True, "compared"),
    ]


def test_one_table_does_not_stop_the_others(unsealed: Bench, topic: str, command: Command) -> None:
    names = [f"{topic}-{n}" for n in range(3)]
    for name in names:
        unsealed.client.append(name, [1, 2])
    synced, _ = command("sync", "--topics", f"{topic}*")
    assert [one["watermark"] for one in synced["topics"]] == [2, 2, 2]
    broken = Path(unsealed.lake.root) / unsealed.table(names[1]).name
    (broken / "_delta_log" / f"{1:020d}.json").write_text('{"add": {"pa')
    for verb in ("verify", "history", "vacuum", "compact"):
        found, said = command(verb, code=1)
        assert [one["code"] for one in found["errors"]] == ["not_ready"], verb
        assert broken.name in said and found["errors"][0]["table"] == broken.name
        assert verb == "compact" or len(found["tables"]) == 2
    # Others by their names do not see it; it is not said to be missing either.
    assert command("verify", "--topics", names[0])[0]["errors"] == []
    assert command("verify", "--topics", names[1], code=1)[0]["tables"] == []
    assert main(["lake", "verify", "--topics", "nobody*", "--lake", unsealed.lake.root]) == 1
    synced, _ = command("sync", "--topics", f"{topic}*", code=1)
    # The server was told of that commit, so a sync does not put it aside by itself.
    assert [one["code"] for one in synced["topics"]] == [None, "lake_corrupt", None]
    # As the page says: once it is taken away, its records come again.
    (broken / "_delta_log" / f"{1:020d}.json").unlink()
    assert command("sync", "--topics", names[1])[0]["topics"][0]["rows"] == 2
    assert accounted(unsealed.table(names[1])) == 2


def test_what_a_replay_leaves_behind_is_said(unsealed: Bench, topic: str, command: Command) -> None:
    stream = make_stream(unsealed.server, topic, "image/png", (b"\x89PNG",))
    unsealed.client.append(topic, [1])
    for name, left_out in ((stream, ["content_type", "headers"]), (topic, [])):
        command("sync", "--topics", name)
        done, said = command("replay", name, "--to", f"{topic}-copy")
        assert (done["rows"], done["left_out"]) == (1, left_out)
        assert ("content type" in said) == bool(left_out)


@pytest.mark.parametrize("verb", ["verify", "compact", "vacuum", "history"])
def test_a_lake_without_tables_is_not_well(
    tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else whoever mistypes its place would hear that nothing is wrong."""
    assert main(["lake", verb, "--lake", str(tmp_path / "mistyped")]) == 1
    assert f"{tmp_path / 'mistyped'} has no table; run `headrace lake" in capsys.readouterr().err


@pytest.mark.parametrize("left", ["", '{"commitInfo":{"ti'], ids=["nothing", "some"])
def test_a_commit_that_a_power_loss_cut_off(
    unsealed: Bench, topic: str, command: Command, left: str
) -> None:
    """Nobody was told of it; whatever is left of it, the records come into the lake once."""
    unsealed.client.append(topic, [1, 2])
    command("sync", "--topics", topic)
    unsealed.client.append(topic, [3])
    table = unsealed.table(topic)
    last = Path(unsealed.lake.root) / table.name / "_delta_log" / f"{table.version + 1:020d}.json"
    last.write_text(left)
    command("sync", "--topics", topic)
    assert accounted(unsealed.table(topic)) == 3


def test_a_report_that_is_refused_is_told(
    unsealed: Bench, topic: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*how: object) -> bool:
        raise Forbidden("this key may not", fix="take one with the scope admin")

    unsealed.client.append(topic, [1])
    with monkeypatch.context() as patched:
        patched.setattr(sync, "report", refuses)
        found, _ = command("sync", "--topics", topic, code=1)
        (one,) = found["topics"]
        assert (one["error"], one["reported"]) == (None, False)
        assert one["report_error"] == "this key may not; take one with the scope admin"
    (one,) = command("sync", "--topics", topic)[0]["topics"]
    assert (one["reported"], one["report_error"]) == (True, None)


def test_again_and_again_while_the_server_is_away(
    unsealed: Bench,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rounds: list[float] = []
    choose = topics.chosen_topics

    def chosen(client: Any, named: Any) -> list[str]:
        if len(rounds) == 1:
            raise Unreachable("nobody is there")
        return choose(client, named)

    def rest(seconds: float) -> None:
        rounds.append(seconds)
        if len(rounds) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(topics, "chosen_topics", chosen)
    monkeypatch.setattr(lake, "rest", rest)
    unsealed.client.append(topic, [1])
    words = ["--topics", topic, "--lake", unsealed.lake.root, "--url", unsealed.server.url]
    assert main(["lake", "sync", "--every", "2s", "--json", *words]) == 130
    printed = capsys.readouterr()
    first, second, third = map(json.loads, printed.out.splitlines())
    assert first["topics"][0]["watermark"] == third["topics"][0]["watermark"] == 1
    assert second == {
        "topics": [],
        "error": {"code": "unreachable", "message": "nobody is there"},
    }
    assert printed.err == "headrace: nobody is there\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it(
    unsealed_server: ServerProcess, unsealed: Bench, topic: str, number: signal.Signals
) -> None:
    """While it rests; nothing is printed that is not meant for people."""
    unsealed.client.append(topic, [1])
    assert unsealed.sync(topic).error is None
    words = ["--topics", topic, "--lake", unsealed.lake.root, "--url", unsealed_server.url]
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", "lake", "sync", "--every", "1h", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1 of 1 topics are in the lake; 0 new rows\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        assert (process.returncode, said) == (130, b"")
    finally:
        process.kill()
        process.wait()
