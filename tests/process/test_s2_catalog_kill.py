"""Servers with basins are killed for real: what was told of the catalog is not forgotten."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.testing.process import ServerProcess
from tests.support.speakers import SPEAKERS, Speaker

LIVES = 5
STREAMS = 40


class Lives:
    """A server on one directory, killed and started again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.start()

    def start(self) -> None:
        self.server = ServerProcess(self._directory, log="error")
        self.speak: Speaker = SPEAKERS["h1"](self.server)

    def kill(self) -> None:
        self.speak.close()
        self.server.kill()

    def again(self) -> None:
        self.kill()
        self.start()

    def send(self, method: str, path: str, body: object = None, basin: str = "") -> Any:
        headers = {"content-type": "application/json", "s2-basin": basin or "none-here"}
        data = None if body is None else json.dumps(body).encode()
        return self.speak.send(method, path, data, headers)

    def names(self, path: str, what: str, basin: str = "") -> list[str]:
        return [item["name"] for item in self.send("GET", path, None, basin).json[what]]


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    lives = Lives(tmp_path)
    yield lives
    lives.kill()


@pytest.mark.timeout(240)
def test_what_was_answered_outlives_kills(lives: Lives) -> None:
    """Each life finds the basins, configs, streams and tokens that the last one told of."""
    tokens: dict[str, str] = {}
    for life in range(LIVES):
        basin = f"basin-{life:04}"
        assert lives.send("PUT", f"/v1/basins/{basin}").status == 201
        assert lives.send("POST", "/v1/streams", {"stream": "s"}, basin).status == 201
        aged = {"retention_policy": {"age": 60 + life}}
        assert lives.send("PATCH", "/v1/streams/s", aged, basin).status == 200
        assert lives.send("PATCH", f"/v1/basins/{basin}", {"create_stream_on_read": True}).json
        body = {"id": basin, "scope": {"ops": ["list-basins"], "basins": {"exact": basin}}}
        tokens[basin] = lives.send("POST", "/v1/access-tokens", body).json["access_token"]
        lives.again()
        basins = sorted(tokens)
        assert lives.names("/v1/basins", "basins") == basins
        for number, name in enumerate(basins):
            config = lives.send("GET", "/v1/streams/s", None, name).json
            assert config["retention_policy"] == {"age": 60 + number}
            assert lives.send("GET", f"/v1/basins/{name}").json["create_stream_on_read"]
            headers = {"authorization": f"Bearer {tokens[name]}"}
            seen = lives.speak.send("GET", "/v1/basins", None, headers).json["basins"]
            assert [one["name"] for one in seen] == [name]
    first = next(iter(tokens))
    assert lives.send("DELETE", f"/v1/access-tokens/{first}").status == 204
    lives.again()
    headers = {"authorization": f"Bearer {tokens[first]}"}
    assert lives.speak.send("GET", "/v1/basins", None, headers).status == 401


@pytest.mark.timeout(240)
def test_a_delete_of_a_basin_is_finished_after_kills(lives: Lives) -> None:
    """What was accepted to be deleted goes, however often the server dies on the way."""
    for life in range(LIVES):
        basin = f"basin-{life:04}"
        assert lives.send("PUT", f"/v1/basins/{basin}").status == 201
        for number in range(STREAMS):
            lives.send("POST", "/v1/streams", {"stream": f"s{number}"}, basin)
        assert lives.send("DELETE", f"/v1/basins/{basin}").status == 202
        lives.again()
        while lives.names("/v1/basins", "basins"):
            pass  # it goes in the background
        assert lives.send("GET", "/v1/streams", None, basin).status == 404
        topics = lives.speak.send("GET", "/v0/topics?prefix=s2:", None, {}).json
        assert topics["topics"] == []
