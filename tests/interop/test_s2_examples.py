"""The examples of S2's own pages, as requests of curl, and a stream seen as a topic (s2 §17)."""

from __future__ import annotations

import base64
import json
import subprocess
from typing import Any

import pytest

from headrace.testing.process import ServerProcess
from tests.support.s2_sdk import new_basin_name

SECONDS_MAX = 30


class Curl:
    """Requests about one basin, as the pages write them."""

    def __init__(self, url: str, basin: str) -> None:
        self._url, self._basin = url, basin

    def __call__(self, path: str, *options: str, body: Any = None) -> tuple[int, Any]:
        """The status and the body, which is JSON or nothing."""
        command = ["curl", "-sS", "--max-time", str(SECONDS_MAX), "-w", "\n%{http_code}"]
        command += [f"{self._url}{path}", "-H", f"S2-Basin: {self._basin}"]
        command += ["-H", "Authorization: Bearer any", *options]
        if body is not None:
            command += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        text, _, status = done.stdout.rpartition("\n")
        return int(status), json.loads(text) if text else None


@pytest.fixture
def basin() -> str:
    return new_basin_name()


@pytest.fixture
def curl(server: ServerProcess, basin: str) -> Curl:
    curl = Curl(server.url, basin)
    status, made = curl("/v1/basins", body={"basin": basin})
    assert (status, made["name"]) == (201, basin)
    return curl


def test_the_life_of_a_stream(curl: Curl) -> None:
    """§4, §6 to §8: created, listed, appended to, read, looked at, deleted."""
    config = {
        "storage_class": "express",
        "retention_policy": {"age": 2592000},
        "timestamping": {"mode": "client-require", "uncapped": True},
        "delete_on_empty": {"min_age_secs": 7200},
    }
    status, made = curl("/v1/streams", body={"stream": "my-stream", "config": config})
    assert (status, made["name"], made["deleted_at"]) == (201, "my-stream", None)
    assert curl("/v1/streams/my-stream") == (200, config)
    records = [
        {"body": "event data", "headers": [["event-type", "click"]], "timestamp": 1709481600000},
        {"body": "more", "timestamp": 1709481600001},
    ]
    status, ack = curl("/v1/streams/my-stream/records", body={"records": records})
    end = {"seq_num": 2, "timestamp": 1709481600001}
    first = {"seq_num": 0, "timestamp": 1709481600000}
    assert (status, ack) == (200, {"start": first, "end": end, "tail": end})
    assert curl("/v1/streams/my-stream/records/tail") == (200, {"tail": end})
    status, batch = curl("/v1/streams/my-stream/records?seq_num=0&count=1")
    assert (status, batch["records"]) == (200, [{**first, **records[0]}])
    status, page = curl("/v1/streams?prefix=my-&limit=10")
    assert ([info["name"] for info in page["streams"]], page["has_more"]) == (["my-stream"], False)
    assert curl("/v1/streams/my-stream", "-X", "DELETE") == (202, None)


def test_conditions_and_ends_of_streams_have_bodies_of_their_own(curl: Curl) -> None:
    """§2c, §2d, §3b, §3d: 412 and 416 say what holds; tokens and pages are bounded."""
    curl("/v1/streams", body={"stream": "s"})
    records = [{"body": "x"}]
    path = "/v1/streams/s/records"
    assert curl(path, body={"records": records, "match_seq_num": 3}) == (
        412,
        {"seq_num_mismatch": 0},
    )
    assert curl(path, body={"records": records, "fencing_token": "t"}) == (
        412,
        {"fencing_token_mismatch": ""},
    )
    assert curl(f"{path}?seq_num=1") == (416, {"tail": {"seq_num": 0, "timestamp": 0}})
    status, error = curl(path, body={"records": records, "fencing_token": "t" * 37})
    assert (status, error["code"]) == (400, "bad_json")
    for limit in (0, 5000):
        status, page = curl(f"/v1/streams?limit={limit}")
        assert (status, [info["name"] for info in page["streams"]]) == (200, ["s"])


@pytest.mark.parametrize(
    ("path", "options", "body", "status", "code"),
    [
        ("/v1/streams/never", (), None, 404, "stream_not_found"),
        ("/v1/streams?limit=many", (), None, 400, "bad_query"),
        ("/v1/streams/s/records", (), {"records": []}, 422, "invalid"),
        ("/v1/streams/s/records", (), {"records": "x"}, 400, "bad_json"),
        ("/v1/streams/s/records?seq_num=0", ("-H", "s2-format: rot13"), None, 400, "bad_header"),
        ("/v1/streams/s/records?seq_num=0&timestamp=1", (), None, 422, "invalid"),
        ("/v1/streams/s/records?seq_num=-1", (), None, 400, "bad_query"),
        ("/v1/streams/%FF", (), None, 400, "bad_path"),
        ("/v1/basins/UPPER-CASE", (), None, 400, "bad_path"),
        ("/v1/basins", (), {"basin": "short"}, 400, "bad_json"),
    ],
)
def test_what_is_wrong_has_a_code(
    curl: Curl, path: str, options: tuple[str, ...], body: Any, status: int, code: str
) -> None:
    """§2f: by where it is wrong."""
    curl("/v1/streams", body={"stream": "s"})
    found, error = curl(path, *options, body=body)
    assert (found, error["code"], bool(error["message"])) == (status, code, True)


def test_a_call_without_a_basin_says_so(server: ServerProcess, basin: str) -> None:
    """§2a, §2e: and what is no path has an empty body."""
    status, error = Curl(server.url, "")("/v1/streams")
    assert (status, error["code"]) == (400, "bad_header")
    assert Curl(server.url, basin)(f"/v1/basins/{basin}/nothing") == (404, None)
    assert Curl(server.url, basin)("/v1/basins", "-X", "PATCH") == (405, None)


def test_a_stream_is_a_topic(curl: Curl, basin: str) -> None:
    """§17: its records, headers, times and commands in the native API."""
    curl("/v1/streams", body={"stream": "a/b"})
    records = [
        {"body": "one", "headers": [["k", "v"]], "timestamp": 7},
        {"headers": [["", "fence"]], "body": "me"},
    ]
    curl("/v1/streams/a%2Fb/records", body={"records": records})
    topic = f"/v0/topics/s2%3A{basin}%2Fa%2Fb"
    status, page = curl(f"{topic}/diff", "-X", "POST", body={"from_seq": 0})
    assert status == 200
    shown = page["records"]
    encoded = [base64.b64encode(text).decode() for text in (b"one", b"me", b"k", b"v")]
    assert [record["data"] for record in shown] == encoded[:2]
    assert [record["$seq"] for record in shown] == [1, 2]
    assert shown[0]["$ts"] == 7
    assert shown[0]["meta"]["$headers"] == [encoded[2:]]
    assert shown[1]["meta"]["$kind"] == "command"
    status, state = curl(topic)
    assert (status, state["stream"]["dialect"], state["config"]["durability"]) == (
        200,
        "s2",
        "fsync",
    )
    assert curl(topic, "-X", "DELETE")[0] == 409


def test_an_expiry_is_shown_as_it_was_given(curl: Curl, basin: str) -> None:
    """§16: to the nanosecond, though no server needs that."""
    expires = "2099-01-02T03:04:05.123456789Z"
    body = {"id": basin, "expires_at": expires, "scope": {"ops": ["read"]}}
    assert curl("/v1/access-tokens", body=body)[0] == 201
    status, page = curl(f"/v1/access-tokens?prefix={basin}")
    assert (status, [info["expires_at"] for info in page["access_tokens"]]) == (200, [expires])
