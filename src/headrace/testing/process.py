"""A real server in a process of its own, for tests and examples.

The rule it owns: the process takes a free port, none of the caller's `HEADRACE_` variables, and is
gone when its block ends.  It knows the address from the line that `headrace serve --json` prints.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import IO, Self

from headrace.core.config import TEST_VARIABLE_PREFIX, variables_of
from headrace.core.errors import Unreachable

STOP_SECONDS_MAX = 60


class ServerProcess:
    """A server on a data directory; `settings` are those of `Settings`, by name.

    `module` is run in the place of `headrace`: it has to be that and something that watches it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with ServerProcess(directory, log="error") as server:
    ...         server.url.startswith("http://127.0.0.1:")
    True
    """

    # What starts the process; a suite that starts hundreds may have something quicker.
    popen: type[subprocess.Popen[bytes]] = subprocess.Popen

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        variables: dict[str, str] | None = None,
        stderr: int | IO[bytes] | None = None,
        module: str = "headrace",
        **settings: str | int,
    ) -> None:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("HEADRACE_") or name.startswith(TEST_VARIABLE_PREFIX)
        }
        given = {"port": 0, "log": "warning", **settings, "data_dir": os.fspath(directory)}
        environment |= {variables_of(name)[0]: str(value) for name, value in given.items()}
        environment |= variables or {}
        # The same package as here, wherever it was found.
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        environment["PYTHONPATH"] = os.pathsep.join(
            [package, *filter(None, [environment.get("PYTHONPATH")])]
        )
        self.process = self.popen(
            [sys.executable, "-P", "-m", module, "serve", "--json"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise Unreachable(
                f"the server did not start: exit code {self._wait()}",
                fix="see what it wrote to stderr",
                detail={"outcome": "nothing"},
            )
        self.address: str = json.loads(line)["address"]
        scheme = "https" if "tls_cert" in settings else "http"
        self.url = f"{scheme}://{self.address}"

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def stop(self) -> int:
        """Ask it to leave, and wait; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self._wait()

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self._wait()

    def _wait(self) -> int:
        try:
            return self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            assert self.process.stdout is not None
            self.process.stdout.close()
