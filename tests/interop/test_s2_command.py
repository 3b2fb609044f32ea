"""The command `s2` against a real server, where it is installed: every verb (s2 §4, §7, §8, §16).

It is a program of Rust that no package index has, so it is looked for where
`HEADRACE_TEST_S2_COMMAND` says, on PATH, and where `./run bench --peers s2` has built it.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.testing.process import ServerProcess
from tests.support.checkout import ROOT
from tests.support.s2_sdk import new_basin_name

sys.path.insert(0, str(ROOT))
from bench.peer_builds import CRATES

VARIABLE = "HEADRACE_TEST_S2_COMMAND"
SECONDS_MAX = 60
Run = Callable[..., str]


@pytest.fixture(scope="module")
def program() -> str:
    built = CRATES["s2-lite"].path
    found = os.environ.get(VARIABLE) or shutil.which("s2") or (built.exists() and str(built))
    if not found:
        pytest.skip(f"there is no command `s2`: install the crate `s2-cli`, or set {VARIABLE}")
    return found


@pytest.fixture
def variables(server: ServerProcess, tmp_path: Path) -> dict[str, str]:
    """The environment of the command."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "NO_COLOR": "1",
        "S2_ACCOUNT_ENDPOINT": server.url,
        "S2_BASIN_ENDPOINT": server.url,
        "S2_ACCESS_TOKEN": "any",
    }


@pytest.fixture
def s2(program: str, variables: dict[str, str], tmp_path: Path) -> Run:
    """Run the command, and return what it said; `code` is how it is to end."""

    def run(*arguments: str, given: str = "", code: int = 0, **more: str) -> str:
        done = subprocess.run(
            [program, *arguments],
            input=given,
            env=variables | more,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS_MAX,
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    return run


@pytest.fixture
def basin(s2: Run) -> str:
    """A basin of this test."""
    name = new_basin_name()
    assert "Basin created" in s2("create-basin", name)
    return name


def numbered(count: int) -> list[str]:
    return [f"line {number} {'x' * 100}" for number in range(count)]


# Basins and streams


def test_basins(s2: Run, basin: str) -> None:
    """§4, §5: listed, configured, deleted."""
    assert basin in s2("list-basins", "--prefix", basin[:9])
    assert basin in s2("ls", "--prefix", basin)
    assert basin not in s2("list-basins", "--start-after", basin)
    with_config = new_basin_name()
    s2(
        "create-basin", with_config, "--create-stream-on-append", "--retention-policy", "2d",
        "--storage-class", "standard", "--timestamping-mode", "arrival",
    )  # fmt: skip
    shown = s2("get-basin-config", with_config)
    assert "standard" in shown and "2d" in shown and "arrival" in shown
    shown = s2(
        "reconfigure-basin", with_config, "--create-stream-on-read", "true",
        "--delete-on-empty-min-age", "1h", "--stream-cipher", "aes-256-gcm",
    )  # fmt: skip
    assert "Basin reconfigured" in shown and "aes-256-gcm" in shown and "1h" in shown
    assert "deletion requested" in s2("delete-basin", with_config)
    assert "basin_not_found" in s2("delete-basin", new_basin_name(), code=1)
    assert "resource_already_exists" in s2("create-basin", basin, code=1)


def test_streams(s2: Run, basin: str) -> None:
    """§4, §5: listed in pages, configured, deleted."""
    for number in range(3):
        s2("create-stream", f"s2://{basin}/logs/{number}")
    s2(
        "create-stream", f"s2://{basin}/set", "--retention-policy", "infinite",
        "--timestamping-mode", "client-require", "--timestamping-uncapped", "true",
        "--delete-on-empty-min-age", "90s", "--storage-class", "express",
    )  # fmt: skip
    everything = s2("list-streams", f"s2://{basin}")
    assert all(name in everything for name in ("logs/0", "logs/1", "logs/2", "set"))
    assert "set" not in s2("list-streams", f"s2://{basin}/logs/")
    assert s2("ls", basin, "--prefix", "logs", "--limit", "2").count(f"s2://{basin}") == 2
    after = s2("list-streams", f"s2://{basin}", "--start-after", "logs/1")
    assert "logs/1" not in after and "logs/2" in after
    shown = s2("get-stream-config", f"s2://{basin}/set")
    for word in ("infinite", "client-require", "true", "express"):
        assert word in shown.lower(), shown
    shown = s2("reconfigure-stream", f"s2://{basin}/set", "--retention-policy", "1d")
    assert "Stream reconfigured" in shown and "client-require" in shown
    assert "deletion requested" in s2("delete-stream", f"s2://{basin}/set")
    assert "stream_not_found" in s2("get-stream-config", f"s2://{basin}/set", code=1)


# Records


@pytest.mark.parametrize("compression", ["", "zstd", "gzip"])
def test_records(s2: Run, basin: str, compression: str, tmp_path: Path) -> None:
    """§7, §8, §12: appended in sessions, read from every kind of start."""
    more = {"S2_COMPRESSION": compression} if compression else {}
    stream = f"s2://{basin}/logs"
    s2("create-stream", stream, **more)
    lines = numbered(200)
    (tmp_path / "lines").write_text("\n".join(lines) + "\n")
    assert "[APPENDED] 0.." in s2("append", stream, "--input", "lines", **more)
    assert s2("check-tail", stream, **more).startswith("200 @ ")
    for start in (["--seq-num", "0"], ["--ago", "1h"], ["--tail-offset", "200"],
                  ["--timestamp", "0"]):  # fmt: skip
        s2("read", stream, *start, "--count", "200", "--output", "read", **more)
        assert (tmp_path / "read").read_text().splitlines() == lines, start
    read = s2("read", stream, "--seq-num", "190", "--bytes", "500", **more)
    assert lines[190] in read and lines[194] not in read
    assert "in range 199..=199" in s2("read", stream, "-s", "199", "--until", "99999999999999")
    assert s2("tail", stream, "-n", "2", **more).splitlines() == lines[-2:]
    assert "[APPENDED] new fencing token" in s2("fence", stream, "token-1", **more)
    assert "[APPENDED] trim to 10 // tail: 202" in s2("trim", stream, "10", "-f", "token-1")
    said = s2("read", stream, "--seq-num", "200", "--count", "2", **more)
    assert 'new fencing token "token-1"' in said and "trim to 10" in said


def test_conditions(s2: Run, basin: str) -> None:
    """§7: a fencing token and a seq_num that do not match."""
    stream = f"s2://{basin}/guarded"
    s2("create-stream", stream)
    lines = "\n".join(numbered(3_000)) + "\n"
    s2("append", stream, "-m", "0", given=lines)  # more than one batch: it counts on
    assert s2("check-tail", stream).startswith("3000 @ ")
    s2("append", stream, "-m", "1", given="late\n", code=1)
    s2("fence", stream, "mine", "-m", "3000")
    s2("append", stream, "-f", "other", given="not mine\n", code=1)
    s2("append", stream, "-f", "mine", "-m", "3001", given="mine\n")
    assert "mine" in s2("fence", stream, "new", "-f", "wrong", code=1)
    s2("trim", stream, "5", "-m", "1", code=1)
    assert s2("check-tail", stream).startswith("3002 @ ")


def test_where_there_is_nothing_to_read(s2: Run, basin: str) -> None:
    """§8: a read of an empty stream or beyond the tail is told, unless it is clamped."""
    stream = f"s2://{basin}/empty"
    s2("create-stream", stream)
    s2("read", stream, "--seq-num", "5", "--count", "1", code=1)
    s2("tail", stream, code=1)
    s2("append", stream, given="one\n")
    s2("read", stream, "--seq-num", "5", "--count", "1", code=1)


def test_headers_and_bytes(s2: Run, basin: str) -> None:
    """§6: records of JSON, as text and as base64."""
    stream = f"s2://{basin}/json"
    s2("create-stream", stream)
    first = {"timestamp": 1000, "headers": [["kind", "note"]], "body": "first"}
    s2("append", stream, "--format", "json", given=json.dumps(first) + "\n")
    read = s2("read", stream, "-s", "0", "-n", "1", "--format", "json").splitlines()[-1]
    assert json.loads(read) == {"seq_num": 0, **first}
    body = base64.b64encode(bytes(range(256))).decode()
    pair = [base64.b64encode(text).decode() for text in (b"\xff", b"\x00")]
    second = {"headers": [pair], "body": body}
    s2("append", stream, "--format", "json-base64", given=json.dumps(second) + "\n")
    read = s2("read", stream, "-s", "1", "-n", "1", "--format", "json-base64").splitlines()[-1]
    found = json.loads(read)
    assert (found["headers"], found["body"]) == ([pair], body)


def test_streams_made_by_their_use(s2: Run) -> None:
    """§18: with a configuration of their own."""
    basin = new_basin_name()
    s2("create-basin", basin, "--create-stream-on-append", "--create-stream-on-read")
    s2("append", f"s2://{basin}/a", "--retention-policy", "3d", given="one\n")
    assert "3d" in s2("get-stream-config", f"s2://{basin}/a")
    s2("read", f"s2://{basin}/b", "-s", "0", "-n", "1", "--storage-class", "standard", code=1)
    assert "standard" in s2("get-stream-config", f"s2://{basin}/b")


@pytest.mark.parametrize("cipher", ["aes-256-gcm", "aegis-256"])
def test_encrypted_records(s2: Run, cipher: str, tmp_path: Path) -> None:
    """§15."""
    if cipher == "aegis-256":
        pytest.importorskip("pyaegis")
    basin = new_basin_name()
    s2("create-basin", basin, "--stream-cipher", cipher, "--create-stream-on-append")
    stream = f"s2://{basin}/secret"
    key, other = (base64.b64encode(bytes([byte]) * 32).decode() for byte in (1, 2))
    (tmp_path / "key").write_text(key)
    s2("append", stream, "--encryption-key-file", "key", given="hidden\n")
    assert "hidden" in s2("read", stream, "-s", "0", "-n", "1", "-k", key)
    assert "hidden" in s2("tail", stream, "-n", "1", S2_ENCRYPTION_KEY=key)
    assert cipher in s2("read", stream, "-s", "0", "-n", "1", code=1)
    s2("read", stream, "-s", "0", "-n", "1", "-k", other, code=1)


def test_followers(
    program: str, s2: Run, basin: str, variables: dict[str, str], tmp_path: Path
) -> None:
    """§8: a read without a limit, and `tail -f`, get what comes later."""
    stream = f"s2://{basin}/live"
    s2("create-stream", stream)
    s2("append", stream, given="old\n")
    commands = (["read", stream, "-s", "0"], ["tail", stream, "-n", "1", "-f"])
    outputs = [tmp_path / f"output-{number}" for number in range(2)]
    followers = [
        subprocess.Popen(
            [program, *arguments, "--output", str(output)],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for arguments, output in zip(commands, outputs, strict=True)
    ]
    try:
        for appended, whole in (("", "old\n"), ("new\n", "old\nnew\n")):
            if appended:
                s2("append", stream, given=appended)
            end = time.monotonic() + SECONDS_MAX
            while not all(path.exists() and path.read_text() == whole for path in outputs):
                assert time.monotonic() < end, [path.exists() for path in outputs]
                assert all(follower.poll() is None for follower in followers)
                time.sleep(0.02)
    finally:
        for follower in followers:
            follower.kill()
            follower.wait()


# The account


def test_access_tokens(s2: Run, basin: str) -> None:
    """§16: issued, listed, held to their scope, compared, revoked."""
    ids = [f"{basin}-{name}" for name in ("reader", "writer")]
    scope = ("--basins-exact", basin, "--streams-prefix", "")
    reader = s2(
        "issue-access-token", ids[0], *scope, "--op-group-perms", "basin=r,stream=r",
        "--expires-in", "1h",
    ).strip()  # fmt: skip
    s2("issue-access-token", ids[1], *scope, "--ops", "append,create_stream,check_tail")
    listed = s2("list-access-tokens", "--prefix", basin)
    assert all(id in listed for id in ids)
    s2("create-stream", f"s2://{basin}/s")
    assert s2("check-tail", f"s2://{basin}/s", S2_ACCESS_TOKEN=reader).startswith("0 @ 0")
    denied = s2("create-stream", f"s2://{basin}/t", S2_ACCESS_TOKEN=reader, code=1)
    assert "permission_denied" in denied
    told = s2("diff", "--resource", "access-token", *ids, "--output", "json")
    assert json.loads(told)
    assert "revoked" in s2("revoke-access-token", ids[0])
    assert ids[0] not in s2("list-access-tokens", "--prefix", basin)
    s2("check-tail", f"s2://{basin}/s", S2_ACCESS_TOKEN=reader, code=1)
    s2("revoke-access-token", ids[0], code=1)


def test_differences(s2: Run, basin: str) -> None:
    """§4: two basins, two streams."""
    left, right = f"s2://{basin}/left", f"s2://{basin}/right"
    s2("create-stream", left)
    s2("create-stream", right)
    assert "No differences" in s2("diff", left, right, "--exit-code")
    s2("reconfigure-stream", right, "--retention-policy", "1d")
    assert "1d" in s2("diff", left, right, "--exit-code", code=1)
    other = new_basin_name()
    s2("create-basin", other, "--create-stream-on-append")
    s2("diff", "--resource", "basin", basin, other, "--exit-code", code=1)


def test_locations(s2: Run) -> None:
    """§16."""
    (name, *_), *_ = map(str.split, s2("list-locations").splitlines())
    assert name in s2("get-default-location")
    assert name in s2("set-default-location", name)
    s2("set-default-location", "nowhere-at-all", code=1)
    basin = new_basin_name()
    s2("create-basin", basin, "--location", name)
    assert name in s2("list-basins", "--prefix", basin)


def test_metrics(s2: Run, basin: str) -> None:
    """§16: of the account, of a basin, of a stream."""
    stream = f"s2://{basin}/s"
    s2("create-stream", stream)
    s2("append", stream, given="one\n")
    s2("read", stream, "-s", "0", "-n", "1")
    between = ("--start-ago", "2h", "--end-ago", "0s")
    assert basin in s2("get-account-metrics", "active-basins", *between)
    for interval in ((), ("--interval", "minute"), ("--interval", "day")):
        said = s2("get-account-metrics", "account-ops", *between, *interval)
        assert "create-basin" in said.replace("_", "-"), said
    for metric in ("append-ops", "read-ops", "read-throughput", "append-throughput", "basin-ops"):
        assert s2("get-basin-metrics", basin, metric, *between)
    assert s2("get-basin-metrics", basin, "storage", *between)
    assert s2("get-stream-metrics", stream, "storage", *between)


# Files of basins and streams, and the benchmark


def test_apply_twice_changes_nothing(s2: Run, tmp_path: Path) -> None:
    """§4: a file of basins and streams."""
    basin = new_basin_name()
    streams: list[dict[str, object]] = [
        {"name": "a"},
        {"name": "b", "config": {"retention_policy": "1d", "storage_class": "standard"}},
    ]
    # Of a basin without a storage class a dry run says that it would get the location's.
    defaults = {"retention_policy": "2d", "storage_class": "express"}
    config = {"create_stream_on_append": True, "default_stream_config": defaults}
    bare = new_basin_name()
    wanted = {"basins": [{"name": basin, "config": config, "streams": streams}, {"name": bare}]}
    (tmp_path / "wanted.json").write_text(json.dumps(wanted))
    planned = s2("apply", "-f", "wanted.json", "--dry-run")
    assert f"+ basin {basin}" in planned and f"+ stream {basin}/b" in planned
    assert s2("apply", "-f", "wanted.json").count("(created)") == 4
    assert s2("apply", "-f", "wanted.json").count("(config unchanged)") == 4
    planned = s2("apply", "-f", "wanted.json", "--dry-run")
    assert f"= basin {basin}" in planned and planned.count(f"= stream {basin}/") == 2, planned
    streams[1]["config"] = {"retention_policy": "3d"}
    (tmp_path / "wanted.json").write_text(json.dumps(wanted))
    assert s2("apply", "-f", "wanted.json").count("(config updated)") == 1
    assert "3d" in s2("get-stream-config", f"s2://{basin}/b")


def test_bench_verifies_what_it_reads(s2: Run, basin: str) -> None:
    """§7, §8, §13: its own check of every record, live and caught up."""
    said = s2("bench", basin, "-t", "1", "-d", "3s", "-w", "1s")
    for word in ("Write: ", "Read: ", "Catchup: "):
        assert word in said, said
    assert s2("list-streams", f"s2://{basin}") == "", "its stream is deleted"
