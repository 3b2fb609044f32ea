"""A real nginx in front of a server, which keeps what the answers allow to be kept."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Self

PROGRAM = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
PATIENCE_SECONDS = 30.0
# Nothing of it is outside of its directory.  It obeys the headers of answers, and has no rule of
# its own about how long anything is kept.
CONFIGURATION = """
daemon off;
worker_processes 1;
error_log {directory}/error.log;
pid {directory}/pid;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {directory}/body;
  proxy_temp_path {directory}/proxied;
  fastcgi_temp_path {directory}/fastcgi;
  uwsgi_temp_path {directory}/uwsgi;
  scgi_temp_path {directory}/scgi;
  proxy_cache_path {directory}/cache keys_zone=kept:8m max_size=256m use_temp_path=off;
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://{upstream};
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $http_host;
      proxy_cache kept;
      proxy_cache_key $request_uri;
      proxy_cache_methods GET;
      proxy_cache_lock on;
      proxy_cache_revalidate on;
      add_header X-Cache $upstream_cache_status always;
    }}
  }}
}}
"""


class CachingProxy:
    """Listens until its block ends; a header `X-Cache` says whether an answer was kept (`HIT`)."""

    def __init__(self, directory: Path, upstream: str) -> None:
        assert PROGRAM is not None
        directory.mkdir()
        directory.chmod(0o755)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = directory / "error.log"
        configuration = directory / "nginx.conf"
        # Of root, the workers would be another user, who may not write here.
        user = "user root;\n" if os.geteuid() == 0 else ""
        configuration.write_text(
            user + CONFIGURATION.format(directory=directory, port=self.port, upstream=upstream)
        )
        self._process = subprocess.Popen(
            [PROGRAM, "-p", str(directory), "-e", str(self._log), "-c", str(configuration)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), PATIENCE_SECONDS),
            ):
                return
            time.sleep(0.02)
        said = self._log.read_text() if self._log.exists() else ""
        self.stop()
        raise AssertionError(f"nginx does not listen: {said}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait(PATIENCE_SECONDS)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
