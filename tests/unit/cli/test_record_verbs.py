"""`headrace append`, `read`, `tail`, `delete`, `topic`, `queue` and `router` against a server."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.testing.process import ServerProcess

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("cli"), log="error") as running:
        yield running


@pytest.fixture
def command(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Run the command with these words, and with this on stdin; its code, stdout and stderr."""

    def run(*words: str, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main(words)
        out, err = capsys.readouterr()
        return code, out, err

    monkeypatch.setenv("HEADRACE_URL", server.url)
    return run


def test_what_is_appended_is_read_back(command: Command) -> None:
    assert command("append", "a", '{"id": 1}', "2") == (
        0,
        "",
        "appended 2 records to a, seqs 1 to 2\n",
    )
    assert command("read", "a", "--format", "data")[1] == '{"id": 1}\n2\n'
    assert command("tail", "a", "-n", "1")[1] == "2\n"
    code, out, _ = command("read", "a", "--json")
    document = json.loads(out)
    assert code == 0 and [one["data"] for one in document["records"]] == [{"id": 1}, 2]
    assert document["next_after"] == document["head_seq"] == 2


def test_lines_of_stdin_go_in_batches(command: Command) -> None:
    lines = b"".join(b"%d\n" % n for n in range(25)) + b"\n"
    _, out, _ = command("append", "many", "--batch", "10", "--json", stdin=lines)
    assert json.loads(out) == {
        "topic": "many", "count": 25, "first_seq": 1, "last_seq": 25, "created": True
    }  # fmt: skip
    code, out, err = command("read", "many", "--limit", "10", "--format", "{seq}={data}")
    assert code == 0 and out.splitlines()[-1] == "10=9"
    assert err == "15 more; go on with --after 10, or read --all\n"
    assert len(command("read", "many", "--all", "--limit", "10")[1].splitlines()) == 26


def test_a_line_that_is_no_json_says_what_was_appended(command: Command) -> None:
    code, out, err = command("append", "bad", "--batch", "2", stdin=b"1\n2\n3\n{\n5\n")
    assert (code, out) == (1, "")
    assert err.startswith("headrace: line 4 of stdin is not JSON") and "--format text" in err
    assert "the 2 records before it are appended, up to seq 2" in err and err.count("\n") == 1
    assert command("read", "bad", "--format", "data")[1] == "1\n2\n"


def test_forms_of_input(command: Command) -> None:
    command("append", "forms", "--format", "text", "--tag", "t", stdin=b"a line\n\n")
    command(
        "append", "forms", "--format", "records", stdin=b'{"data":7,"tag":"x","meta":{"k":1}}\n'
    )
    command("append", "forms", "--format", "raw", stdin=b"\x00\xff")
    _, out, _ = command("read", "forms", "--format", "jsonl")
    seen = [json.loads(line) for line in out.splitlines()]
    assert [(one.get("tag"), one["data"]) for one in seen] == [
        ("t", "a line"),
        ("t", ""),
        ("x", 7),
        (None, "AP8="),
    ]
    assert seen[2]["meta"] == {"k": 1} and seen[3]["meta"] == {"$encoding": "base64"}
    code, _, err = command("append", "forms", "--format", "text", stdin=b"\xff\n")
    assert code == 1 and "line 1 of stdin is not UTF-8" in err and "--format raw" in err
    code, _, err = command("append", "forms", "--format", "records", stdin=b"7\n")
    assert code == 1 and "is not an object such as" in err


def test_gaps_are_shown(command: Command) -> None:
    command("topic", "create", "capped", "cap_records=2")
    command("append", "capped", "1", "2", "3")
    out = command("read", "capped", "--format", "data")[1]
    assert out == "-- seqs 1 to 1 are gone: cap\n2\n3\n"
    first = command("read", "capped", "--format", "jsonl")[1].splitlines()[0]
    assert json.loads(first) == {"tombstone": {"gap_from": 1, "gap_to": 1, "reason": "cap"}}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("read", "a", "--format", "xml"), "use one of table, data, jsonl"),
        (("read", "a", "--format", "{sequence}"), "fields are {topic}, {seq}"),
        (("read", "a", "--since", "soon"), "2026-11-18T12:00:00Z"),
        (("append", "a", "--batch", "0"), "use 1 or more"),
        (("delete", "a"), "give --before or --tag"),
        (("topic", "create", "x", "cap_records"), "cap_records=1000"),
        (("topic", "create", "x", "cap_record=3"), "did you mean cap_records?"),
        (("queue", "stats", "a"), "headrace topic config a type=queue"),
        (("queue", "claim", "a", "--lease", "long"), "write it as 30s"),
        (("cheat", "nothing"), "there is topic, record"),
        (("read", "no-such"), "does not exist"),
    ],
)
def test_what_is_wrong_is_one_line_with_a_way_out(
    command: Command, words: tuple[str, ...], said: str
) -> None:
    command("append", "a", "0")
    code, out, err = command(*words)
    assert code in (1, 2) and out == ""
    assert err.startswith("headrace: ") and err.count("\n") == 1 and said in err


def test_topics(command: Command) -> None:
    assert (
        command("topic", "create", "t.one", "type=queue", "lease_ms=5000")[1] == "created t.one\n"
    )
    _, out, _ = command("topic", "config", "t.one", "max_deliveries=3", "--json")
    config = json.loads(out)["config"]
    assert (config["type"], config["lease_ms"], config["max_deliveries"]) == ("queue", 5_000, 3)
    assert "5000" in command("topic", "show", "t.one")[1]
    assert command("topic", "ls", "t.")[1].splitlines()[1].split()[0] == "t.one"
    command("topic", "create", "t.two")
    assert json.loads(command("topic", "ls", "t.", "--limit", "1", "--json")[1])["more"]
    code, _, err = command("topic", "rm", "t.one")
    assert code == 1 and "--yes" in err
    assert command("topic", "rm", "t.one", "--yes")[1] == "deleted t.one\n"
    assert command("topic", "rm", "t.one", "--yes")[1] == "there was no topic t.one\n"


def test_deletes(command: Command) -> None:
    for tag in ("x1", "x2", "y"):
        command("append", "gone", "1", "--tag", tag)
    assert command("delete", "gone", "--tag", "x*")[1] == "deleted 2 records of gone; 1 are left\n"
    assert json.loads(command("delete", "gone", "--before", "9", "--json")[1])["deleted"] == 1


def test_a_queue_by_hand(command: Command) -> None:
    command("topic", "create", "jobs", "type=queue", "max_deliveries=1", "dead_letter=dead")
    command("append", "jobs", '"one"', '"two"', '"three"')
    assert '"one"' in command("queue", "peek", "jobs")[1]
    _, out, err = command("queue", "claim", "jobs", "--max", "2", "--lease", "1m")
    assert '"two"' in out and "headrace queue ack jobs 1 2" in err
    assert command("queue", "ack", "jobs", "1")[:2] == (0, "1 done\n")
    code, out, err = command("queue", "nack", "jobs", "2", "3")
    assert (code, out) == (1, "1 given back\n") and "does not hold 3" in err
    assert json.loads(command("queue", "stats", "jobs", "--json")[1])["in_flight"] == 0
    claimed = json.loads(command("queue", "claim", "jobs", "--max", "9", "--json")[1])
    seqs = [str(job["seq"]) for job in claimed["jobs"]]
    assert claimed["jobs"][0]["lease_id"] and claimed["ready"] == 0
    assert command("queue", "extend", "jobs", *seqs, "--lease", "5m")[0] == 0
    moved = json.loads(command("queue", "redrive", "dead", "--json")[1])
    assert moved == {"topic": "dead", "moved": 1, "skipped": 0}


def test_routers(command: Command) -> None:
    assert command("router", "create", "r1", "src", "mid")[1] == "created r1: src -> mid\n"
    command("router", "create", "r2", "mid", "end", "--tag", "x*", "--exactly-once")
    assert command("router", "graph", "r")[1] == "src\n└─ r1 → mid\n   └─ r2 → end\n"
    assert '"mid" -> "end" [label="r2"];' in command("router", "graph", "--dot")[1]
    listed = json.loads(command("router", "ls", "--source", "mid", "--json")[1])["routers"]
    assert [one["guarantee"] for one in listed] == ["exactly_once"]
    assert command("router", "rm", "r2")[1] == "deleted r2\n"


def test_following(command: Command, server: ServerProcess, tmp_path: Path) -> None:
    """`tail -f` prints what was there and what comes, at once, until its reader has enough."""
    import subprocess
    import sys

    command("append", "live", "1", "2")
    words = [sys.executable, "-m", "headrace", "tail", "live", "-f", "-n", "1", "--url", server.url]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None
        assert tail.stdout.readline() == "2\n"
        command("append", "live", "3")
        assert tail.stdout.readline() == "3\n"
        tail.terminate()
