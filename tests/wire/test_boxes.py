"""The older vocabulary: `boxes` are topics by another name (native §0.1)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

COMMANDS = Path(__file__).with_name("seed_commands.txt")


class Command(NamedTuple):
    """One command as it was published, and what to expect of it."""

    status: int
    expected: str
    text: str


def commands() -> list[Command]:
    found = re.findall(r"^#> (\d+) (.*)\n((?:.+\n)+)", COMMANDS.read_text(), re.MULTILINE)
    return [Command(int(status), expected, text) for status, expected, text in found]


class Shell:
    """Runs commands as they stand: curl is told elsewhere that localhost:4000 is our server."""

    def __init__(self, directory: Path, port: int) -> None:
        lines = [f'connect-to = "localhost:4000:127.0.0.1:{port}"', "silent", "show-error"]
        (directory / ".curlrc").write_text("\n".join([*lines, 'write-out = "\\n%{http_code}"', ""]))
        self._environment = {"PATH": os.environ["PATH"], "CURL_HOME": str(directory)}

    def start(self, command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["sh", "-c", f"exec {command}"],
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, command: str) -> tuple[int, dict]:
        done = subprocess.run(
            ["sh", "-c", command], env=self._environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        body, _, status = done.stdout.rpartition("\n")
        return int(status), json.loads(body)


def value_at(document: dict, path: str) -> object:
    for name in path.split("."):
        document = document[name]
    return document


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_every_published_command_runs_as_it_stands(servers, tmp_path) -> None:
    """All 16, in their order, with the statuses they had; then the routers do what they are for."""
    server = servers.start()
    speak = servers.speaker(server, "h1")
    shell = Shell(tmp_path, server.port)
    speak.ok("PUT", "/v0/boxes/events")
    tags = ["msg-123", "chat-42:ann", "chat-42:bob", "chat-420:x", None]
    records = [{"data": n, "tag": tag} for n, tag in enumerate(tags)]
    speak.ok("POST", "/v0/boxes/chat", {"records": records})
    wid = ""
    ran = 0
    for command in commands():
        ran += 1
        if command.expected == "stream":
            text = re.sub(r"wid_[\w-]{22}", wid, command.text)
            assert text != command.text
            read_stream(shell.start(text))
            continue
        status, answer = shell.run(command.text)
        assert status == command.status, (command.text, answer)
        for path, value in json.loads(command.expected).items():
            assert value_at(answer, path) == value, (command.text, path, answer)
        assert "topic" not in json.dumps(answer)
        wid = answer.get("wid", wid)
    assert (ran, len(commands())) == (16, 16)
    speak.ok("POST", "/v0/boxes/feed", {"records": [{"data": "news"}]})
    for box in ("sub-a", "sub-b"):
        found = speak.ok("POST", f"/v0/boxes/{box}/diff", {})["records"]
        assert [record["data"] for record in found] == ["news"]


def read_stream(process: subprocess.Popen[str]) -> None:
    """The stream of the watch: both boxes are caught up, in their own words."""
    assert process.stdout is not None
    seen = ""
    try:
        while seen.count("event: caught-up") < 2 or not seen.endswith("\n\n"):
            line = process.stdout.readline()
            assert line, seen
            seen += line
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert seen.startswith("retry: 2000\n")
    assert '"box":"jobs"' in seen and '"box":"events"' in seen
    assert "topic" not in seen


# The words


def test_answers_say_box(speak, topic) -> None:
    """`box` where the other says `topic`, `boxes` where it says `topics`."""
    path = f"/v0/boxes/{topic}"
    assert speak.ok("PUT", path)["box"] == topic
    assert speak.ok("POST", path, {"records": [{"data": 1}]})["box"] == topic
    assert speak.ok("GET", path)["box"] == topic
    assert speak.ok("POST", f"{path}/diff", {})["box"] == topic
    assert speak.ok("POST", f"{path}/delete", {"before_seq": 1})["box"] == topic
    listed = speak.ok("GET", f"/v0/boxes?prefix={topic}")
    assert [entry["box"] for entry in listed["boxes"]] == [topic]
    assert speak.ok("DELETE", path)["deleted"] is True


def test_errors_say_box(speak, topic) -> None:
    """`box_not_found`, and its detail."""
    path = f"/v0/boxes/{topic}"
    assert speak.refused(404, "box_not_found", "GET", path) == {"box": topic}
    speak.ok("PUT", path, {"type": "queue", "cap_records": 1, "discard": "reject"})
    detail = speak.refused(409, "box_exists_incompatible", "PUT", path, {})
    assert detail["box"] == topic
    speak.ok("POST", path, {"records": [{"data": 1}]})
    detail = speak.refused(422, "box_full", "POST", path, {"records": [{"data": 1}]})
    assert detail["box"] == topic
    speak.refused(409, "box_not_empty", "DELETE", f"{path}?if_empty=true")
    speak.refused(400, "invalid_request", "PUT", "/v0/boxes/no%20good")
    speak.refused(404, "not_found", "GET", f"{path}/nothing")


def test_the_same_data(speak, topic) -> None:
    """What one writes the other reads; tags are shown by default here."""
    record = {"data": {"a": 1}, "tag": "t"}
    speak.ok("POST", f"/v0/boxes/{topic}", {"records": [record]})
    assert "$tag" not in speak.diff(topic)["records"][0]
    assert speak.ok("POST", f"/v0/boxes/{topic}/diff", {})["records"][0]["$tag"] == "t"
    hidden = speak.ok("POST", f"/v0/boxes/{topic}/diff", {"include_tags": False})
    assert "$tag" not in hidden["records"][0]
    assert speak.state(topic)["head_seq"] == 1


def test_memory_is_ephemeral_here(speak, topic) -> None:
    """Stored as `ephemeral`, echoed as `memory`; the other vocabulary says what it is."""
    path = f"/v0/boxes/{topic}"
    assert speak.ok("PUT", path, {"durability": "memory"})["config"]["durability"] == "memory"
    assert speak.ok("GET", path)["config"]["durability"] == "memory"
    assert speak.state(topic)["config"]["durability"] == "ephemeral"
    inline = {"records": [{"data": 1}], "config": {"durability": "memory"}}
    speak.ok("POST", f"{path}-2", inline)
    assert speak.state(f"{topic}-2")["config"]["durability"] == "ephemeral"
    speak.ok("PUT", f"/v0/topics/{topic}-3", {"durability": "memory"})
    assert speak.state(f"{topic}-3")["config"]["durability"] == "memory"
