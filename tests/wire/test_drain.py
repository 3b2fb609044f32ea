"""A stop while clients wait: a long poll is answered at once."""

from __future__ import annotations

import http.client
import json
import threading
import time
from pathlib import Path

from headrace.testing.process import ServerProcess


def test_a_long_poll_is_answered_at_once(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        headers = {"content-type": "application/json"}
        connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
        connection.request("PUT", "/v0/topics/quiet")
        connection.getresponse().read()
        answers: list[tuple[int, dict[str, object]]] = []

        def poll() -> None:
            waiting = http.client.HTTPConnection(server.host, server.port, timeout=60)
            body = json.dumps({"wait_ms": 30_000})
            waiting.request("POST", "/v0/topics/quiet/diff", body, headers)
            response = waiting.getresponse()
            answers.append((response.status, json.loads(response.read())))
            waiting.close()

        thread = threading.Thread(target=poll)
        thread.start()
        while True:
            connection.request("GET", "/v0/metrics")
            text = connection.getresponse().read()
            if b'headrace_watch_connections{kind="longpoll"} 1' in text:
                break
            time.sleep(0.01)
        connection.close()
        assert server.stop() == 0
        thread.join(5)
        ((status, page),) = answers
        assert (status, page["records"], page["caught_up"]) == (200, [], True)
