"""Servers with subscriptions are killed for real: nothing that was told is forgotten."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.testing.process import ServerProcess
from tests.support.speakers import SPEAKERS, Speaker
from tests.support.webhook_receivers import WebhookReceiver, call

ROOT = "/v1/stream/"
SUBSCRIPTIONS = ROOT + "__ds/subscriptions/"
LIVES = 6


class Lives:
    """A server on one directory and one port, killed and started again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = 0
        self._speaker: Speaker | None = None
        self.start()

    def start(self) -> None:
        self.server = ServerProcess(
            self._directory, ds_webhook_loopback="true", log="error", port=self._port
        )
        self._port = self.server.port  # callbacks go where the subscription was made
        self._speaker = SPEAKERS["h1"](self.server)

    def kill(self) -> None:
        assert self._speaker is not None
        self._speaker.close()
        self.server.kill()

    def send(self, method: str, path: str, body: object = None, token: str = "") -> Any:
        assert self._speaker is not None
        headers = {"content-type": "application/json"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body).encode()
        return self._speaker.send(method, path, data, headers)


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    lives = Lives(tmp_path)
    yield lives
    lives.kill()


@pytest.mark.timeout(240)
def test_wakes_go_on_over_kills(lives: Lives) -> None:
    """Each life begins with the wake that the last one had, and no generation comes twice."""
    with WebhookReceiver() as receiver:
        asked = {"type": "webhook", "pattern": "e/*", "webhook": {"url": receiver.url}}
        assert lives.send("PUT", SUBSCRIPTIONS + "s", asked).status == 201
        seen: dict[int, str] = {}
        keys = lives.send("GET", ROOT + "__ds/jwks.json").body
        for life in range(LIVES):
            put = lives.send("PUT", f"{ROOT}e/{life}", ["x"])
            received = receiver.next()
            told = received.json
            received.verify(json.loads(keys)["keys"])
            assert seen.setdefault(told["generation"], told["wake_id"]) == told["wake_id"]
            # The receiver has the wake, and the server dies before it hears of the work.
            lives.kill()
            lives.start()
            assert lives.send("GET", ROOT + "__ds/jwks.json").body == keys
            tail = put.headers["stream-next-offset"]
            said = {
                "wake_id": told["wake_id"],
                "generation": told["generation"],
                "acks": [{"stream": f"e/{life}", "offset": tail}],
                "done": True,
            }
            status, answer = call(told["callback_url"], said, told["callback_token"])
            assert (status, answer) == (200, {"ok": True, "next_wake": False})
            status, answer = call(told["callback_url"], said, told["callback_token"])
            assert (status, answer["error"]["code"]) == (409, "FENCED")
            lives.kill()
            lives.start()
            record = lives.send("GET", SUBSCRIPTIONS + "s").json
            cursors = {link["path"]: link["acked_offset"] for link in record["streams"]}
            assert cursors[f"e/{life}"] == tail
            _drop_repeats(receiver, told["generation"])
        assert len(seen) == LIVES and sorted(seen) == list(range(1, LIVES + 1))


def _drop_repeats(receiver: WebhookReceiver, generation: int) -> None:
    """Forget deliveries of a wake that was not known to have arrived."""
    while not receiver.is_empty:
        assert receiver.next().json["generation"] == generation


@pytest.mark.timeout(240)
def test_a_lease_and_its_token_outlive_kills(lives: Lives) -> None:
    asked = {
        "type": "pull-wake", "streams": ["a"], "wake_stream": "wake", "lease_ttl_ms": 600_000,
    }  # fmt: skip
    lives.send("PUT", ROOT + "wake", [])
    assert lives.send("PUT", SUBSCRIPTIONS + "p", asked).status == 201
    tail = lives.send("PUT", ROOT + "a", ["x"]).headers["stream-next-offset"]
    claimed = lives.send("POST", SUBSCRIPTIONS + "p/claim", {"worker": "w1"}).json
    said = {"wake_id": claimed["wake_id"], "generation": claimed["generation"]}
    acks = {"acks": [{"stream": "a", "offset": tail}], "done": True}
    for _ in range(2):
        lives.kill()
        lives.start()
        busy = lives.send("POST", SUBSCRIPTIONS + "p/claim", {"worker": "w2"}).json["error"]
        assert (busy["code"], busy["current_holder"]) == ("ALREADY_CLAIMED", "w1")
        held = lives.send("POST", SUBSCRIPTIONS + "p/ack", said, claimed["token"])
        assert held.json == {"ok": True, "next_wake": False}
    ended = lives.send("POST", SUBSCRIPTIONS + "p/ack", said | acks, claimed["token"])
    assert ended.status == 200
    lives.kill()
    lives.start()
    fenced = lives.send("POST", SUBSCRIPTIONS + "p/ack", said | acks, claimed["token"])
    assert fenced.json["error"]["code"] == "FENCED"
    assert lives.send("DELETE", SUBSCRIPTIONS + "p").status == 204
    lives.kill()
    lives.start()
    assert lives.send("GET", SUBSCRIPTIONS + "p").status == 404
