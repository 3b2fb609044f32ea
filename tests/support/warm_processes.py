"""Python processes that start at once: forked from one that has imported everything already.

A server imports 700 modules, which takes it half a second of the processor, and the suite starts
hundreds; forked, it takes a tenth.  `WarmPopen` is a `subprocess.Popen` for the same programs: the
child has an environment, a working directory and standard files of its own, is a child of this
process, and ends as any other; a server handles turns as the run of tests has it (`turn_modes.py`).
Only its `/proc/<pid>/environ` and `cmdline` are those of the process that it was forked from, so
what looks at these, or passes options to Python, starts its processes the usual way.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Sequence
from typing import Any

from headrace.testing.process import ServerProcess
from tests.support import turn_modes
from tests.support.checkout import ROOT, SOURCES

MESSAGE_BYTES_MAX = 1 << 20
PR_SET_CHILD_SUBREAPER = 36
# What servers and workers import, in the end.
MODULES = ("headrace.cli.serve", "headrace.cli.main", "tests.harness.engine_worker")

libc = ctypes.CDLL(None, use_errno=True)


class Nursery:
    """The process that the others are forked from, started when the first is asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def start(
        self, program: Sequence[str], environment: dict[str, str], directory: str, files: list[int]
    ) -> int:
        """Fork a process that runs `-m module ...` or a file with arguments; its id."""
        request = [list(program), environment, directory]
        with self._lock:
            if self._socket is None:
                self._socket = self._open()
            # An orphan becomes a child of the nearest process above that asks for orphans.
            libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], files)
                return int(self._socket.recv(64))
            finally:
                libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def _open(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_BYTES_MAX)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tests.support.warm_processes", str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCES), str(ROOT)])},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

        def end_it() -> None:
            ours.close()
            process.wait()

        atexit.register(end_it)
        return ours


nursery = Nursery()


class WarmPopen(subprocess.Popen[bytes]):
    """Like `subprocess.Popen` of `[sys.executable, options, program, arguments]`."""

    def _execute_child(self, args: Any, *how: Any) -> None:
        _, prepare, _, passed, directory, environment, *_ = how
        pipes = how[9:15]
        assert prepare is None and not passed, "start it with subprocess.Popen"
        ends = (pipes[0], pipes[3], pipes[5])  # the child's
        files = [own if end == -1 else end for own, end in enumerate(ends)]
        program = list(args[1:])
        while program[0] == "-P":
            program.pop(0)
        self.pid = nursery.start(
            program,
            dict(os.environ if environment is None else environment),
            os.fspath(directory or os.getcwd()),
            files,
        )
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


class ColdServer(ServerProcess):
    """A server that was started as from a shell, for what `ps` shows of it."""

    popen: type[subprocess.Popen[bytes]] = subprocess.Popen


# In the process that the others are forked from


def serve_requests(connection: socket.socket) -> None:
    """Fork until nobody can ask any more; returns in each new process too, to run its program."""
    while True:
        message, files, _, _ = socket.recv_fds(connection, MESSAGE_BYTES_MAX, 3)
        if not message:
            sys.exit(0)
        told, tell = os.pipe()
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid == 0:
                for end in (told, tell, connection.fileno()):
                    os.close(end)
                program, environment, directory = json.loads(message)
                become(program, environment, directory, files)
                return
            os.write(tell, b"%d" % pid)
            os._exit(0)
        os.waitpid(between, 0)
        connection.send(os.read(told, 64))
        for end in (told, tell, *files):
            os.close(end)


def become(
    program: list[str], environment: dict[str, str], directory: str, files: list[int]
) -> None:
    """Take on what the new process was given."""
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)
    sys.argv = program


def run_program() -> None:
    """As `python` does with the arguments that are in `sys.argv`."""
    turn_modes.obey(os.environ.get(turn_modes.VARIABLE, ""))
    if sys.argv[0] == "-m":
        module, *arguments = sys.argv[1:]
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


def main() -> None:
    for module in MODULES:
        with contextlib.suppress(ImportError):  # the program itself will say it
            __import__(module)
    # Threads that a package keeps for itself are of no use to a server, nor missed by it.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    gc.collect()
    gc.freeze()  # so that a child copies fewer pages
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its end is that of the connection
    serve_requests(socket.socket(fileno=int(sys.argv[1])))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run_program()


if __name__ == "__main__":
    main()
