"""A server that programs of other languages can have killed and started again, by a request."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from tests.support.servers import Servers


class KilledOnRequest:
    """A server that a request to another address kills and starts again, at the same port."""

    def __init__(self, servers: Servers, data: Path, settings: dict[str, Any]) -> None:
        self._servers, self._data, self._settings = servers, data, settings
        self.server = servers.start(data, **settings)
        self.kills = 0

    def restart(self, kill: bool = True) -> None:
        """Kill it, or ask it to stop, and start it again."""
        port = self.server.port
        if kill:
            self.server.kill()
        else:
            self.server.stop()
        self.kills += 1
        self.server = self._servers.start(self._data, port=port, **self._settings)

    @contextmanager
    def asked_at(self) -> Iterator[str]:
        """The address that restarts it."""
        restart = self.restart

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                restart()
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        with HTTPServer(("127.0.0.1", 0), Handler) as listener:
            thread = threading.Thread(target=listener.serve_forever)
            thread.start()
            try:
                yield f"http://127.0.0.1:{listener.server_port}/"
            finally:
                listener.shutdown()
                thread.join()
