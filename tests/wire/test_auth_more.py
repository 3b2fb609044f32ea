"""What a key with prefixes must not learn or reach in a roundabout way (native §1.7)."""

from __future__ import annotations

import json

import pytest
from websockets.sync.client import connect

SETTINGS = {"api_keys": "root, ours::ours:, reader:read:ours:"}
SQL = "select seq from t"
RECORD = {"records": [{"data": 1}]}


def call(speak, key: str, method: str, path: str, body: object = None):
    return speak(method, path, body, {"authorization": f"Bearer {key}"})


def test_metrics_show_no_names_of_others(speak, topic) -> None:
    """§1.7h: lists are filtered; so are the series of topics and of pipelines."""
    for name in (f"ours:{topic}", f"theirs:{topic}"):
        assert call(speak, "root", "POST", f"/v0/topics/{name}", RECORD).status == 201
        source = {"topic": name, "alias": "t"}
        declared = {"sources": [source], "dest": {"topic": f"{name}-sum"}, "sql": SQL}
        assert call(speak, "root", "PUT", f"/v0/pipelines/{name}", declared).status == 201
    every = call(speak, "root", "GET", "/v0/metrics").body.decode()
    assert f'topic="theirs:{topic}"' in every and f'pipeline="theirs:{topic}"' in every
    shown = call(speak, "reader", "GET", "/v0/metrics").body.decode()
    assert f'headrace_topic_head_seq{{topic="ours:{topic}"}} 1\n' in shown
    assert f'pipeline="ours:{topic}"' in shown
    assert "theirs:" not in shown
    heads = [line for line in every.splitlines() if line.startswith("#")]
    assert [line for line in shown.splitlines() if line.startswith("#")] == heads
    assert shown.endswith("\n")


QUEUE = {"type": "queue", "max_deliveries": 1}


@pytest.mark.parametrize("name", ["theirs:dead", "ours"])
def test_dead_letters_stay_within_the_prefixes(speak, topic, name) -> None:
    """Prefixes hold for names in bodies: a queue could write where its key may not."""
    path = f"/v0/topics/ours:{topic}"
    config = {**QUEUE, "dead_letter": name}
    put = call(speak, "ours", "PUT", path, config)
    post = call(speak, "ours", "POST", path, {**RECORD, "config": config})
    for reply in (put, post):
        assert (reply.status, reply.error["code"]) == (403, "forbidden")
        assert reply.error["detail"] == {"topic": name}
    assert call(speak, "ours", "GET", path).status == 404
    assert call(speak, "ours", "PUT", path, {**QUEUE, "dead_letter": "ours:dead"}).status == 201
    assert call(speak, "root", "PUT", path, config).status == 200


def test_dead_letters_of_a_socket(server, topic) -> None:
    """The same for an inline config of a publish; a bad name is refused there, too."""

    def refusal(dead_letter: str) -> str:
        config = {**QUEUE, "dead_letter": dead_letter}
        command = {"op": "publish", "topic": f"ours:{topic}", "config": config, **RECORD}
        socket.send(json.dumps(command))
        return json.loads(socket.recv(20))["code"]

    headers = {"authorization": "Bearer ours"}
    url = f"ws://{server.address}/v0/ws"
    with connect(url, additional_headers=headers, compression=None, proxy=None) as socket:
        assert refusal("theirs:dead") == "forbidden"
        assert refusal("ours:no good") == "invalid_request"
