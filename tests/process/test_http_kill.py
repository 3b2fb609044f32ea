"""`kill -9` of a serving process under load: every append that was answered 2xx is there."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import random
import threading
import time
from pathlib import Path
from typing import NoReturn

import pytest

from headrace.testing.process import ServerProcess

CLASSES = ("memory", "disk", "fsync")
WRITERS = 8
CYCLES = 6
CYCLES_FEW = 3


def connected(server: ServerProcess) -> contextlib.closing[http.client.HTTPConnection]:
    return contextlib.closing(http.client.HTTPConnection(server.host, server.port, timeout=30))


class Writer(threading.Thread):
    """Appends until the server dies, and keeps what it was told."""

    def __init__(self, server: ServerProcess, number: int, cycle: int) -> None:
        super().__init__()
        self.topic = f"kill-{CLASSES[number % len(CLASSES)]}"
        self.acked: list[tuple[int, str]] = []
        self._server = server
        self._name = f"{cycle}-{number}"

    def run(self) -> None:
        # A dead server is an end like any other: the answer that never came counts for nothing.
        with (
            contextlib.suppress(OSError, http.client.HTTPException, ValueError),
            connected(self._server) as connection,
        ):
            self._append(connection)

    def _append(self, connection: http.client.HTTPConnection) -> NoReturn:
        chance = random.Random(self._name)
        for count in itertools.count():
            batch = [f"{self._name}-{count}-{i}" for i in range(chance.randrange(1, 5))]
            body = json.dumps({"records": [{"data": text} for text in batch]})
            connection.request(
                "POST", f"/v0/topics/{self.topic}", body, {"content-type": "application/json"}
            )
            answer = connection.getresponse()
            document = json.loads(answer.read())
            assert answer.status in (200, 201), document
            self.acked.extend(zip(document["seqs"], batch, strict=True))


def read_all(server: ServerProcess, topic: str) -> dict[int, str]:
    found: dict[int, str] = {}
    cursor = 0
    with connected(server) as connection:
        while True:
            body = json.dumps({"from_seq": cursor, "limit": 1000})
            connection.request(
                "POST", f"/v0/topics/{topic}/diff", body, {"content-type": "application/json"}
            )
            page = json.loads(connection.getresponse().read())
            assert page["tombstone"] is None, page["tombstone"]
            found.update((record["$seq"], record["data"]) for record in page["records"])
            cursor = page["next_from_seq"]
            if page["caught_up"]:
                return found


@pytest.mark.timeout(240)
@pytest.mark.parametrize("cycles", [CYCLES_FEW, pytest.param(CYCLES, marks=pytest.mark.slow)])
def test_every_answered_append_survives(tmp_path: Path, cycles: int) -> None:
    chance = random.Random(9)
    acked: dict[str, dict[int, str]] = {f"kill-{name}": {} for name in CLASSES}
    for cycle in range(cycles):
        server = ServerProcess(tmp_path, log="error")
        with connected(server) as connection:
            for name in CLASSES:
                connection.request(
                    "PUT",
                    f"/v0/topics/kill-{name}",
                    json.dumps({"durability": name}),
                    {"content-type": "application/json"},
                )
                connection.getresponse().read()
        writers = [Writer(server, number, cycle) for number in range(WRITERS)]
        for writer in writers:
            writer.start()
        time.sleep(chance.uniform(0.2, 0.8))
        server.kill()
        for writer in writers:
            writer.join(30)
            for seq, text in writer.acked:
                assert acked[writer.topic].setdefault(seq, text) == text, "a seq was given twice"
        with ServerProcess(tmp_path, log="error") as again:
            for topic, wanted in acked.items():
                found = read_all(again, topic)
                assert sorted(found) == list(range(1, len(found) + 1)), "a hole"
                lost = {seq: text for seq, text in wanted.items() if found.get(seq) != text}
                assert not lost, (topic, dict(list(lost.items())[:5]))
    assert all(len(records) > 50 for records in acked.values()), "the test did next to nothing"
