"""Real server processes that tests share, and the checks made when they stop.

A server whose log has a traceback, or whose requests left circles (`watched_headrace.py`), fails
the tests it was started for.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from headrace.testing.process import ServerProcess
from tests.support import watched_headrace
from tests.support.checkout import ROOT
from tests.support.speakers import SPEAKERS, Speaker

numbers = itertools.count(1)


class Servers:
    """Servers of one module, started when they are first asked for and stopped at its end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._all: list[tuple[ServerProcess, Path]] = []  # with their logs
        self._shared: dict[str, ServerProcess] = {}
        self._speakers: dict[tuple[int, str], Speaker] = {}

    def start(
        self,
        data: Path | None = None,
        variables: dict[str, str] | None = None,
        **settings: Any,
    ) -> ServerProcess:
        """A new one; stopped at the end unless it was before."""
        number = next(numbers)
        log = self._directory / f"log-{number}"
        with open(log, "wb") as stderr:
            server = ServerProcess(
                data or self._directory / f"data-{number}",
                stderr=stderr,
                module=watched_headrace.MODULE,
                variables={"PYTHONPATH": str(ROOT), **(variables or {})},
                **settings,
            )
        self._all.append((server, log))
        return server

    def with_settings(self, **settings: Any) -> ServerProcess:
        """One with these settings; the same for each who asks."""
        name = repr(sorted(settings.items()))
        if name not in self._shared:
            self._shared[name] = self.start(**settings)
        return self._shared[name]

    def speaker(self, server: ServerProcess, kind: str) -> Speaker:
        key = id(server), kind
        if key not in self._speakers:
            self._speakers[key] = SPEAKERS[kind](server)
        return self._speakers[key]

    def log_of(self, server: ServerProcess) -> str:
        return next(log for running, log in self._all if running is server).read_text()

    def stop_all(self) -> None:
        for speaker in self._speakers.values():
            speaker.close()
        logs = []
        for server, log in self._all:
            server.stop()
            logs.append(log.read_text())
        assert not [text for text in logs if "Traceback" in text], logs
        assert not [text for text in logs if watched_headrace.SAID in text], logs
