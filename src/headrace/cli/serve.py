"""`headrace serve`: take the directory and the port, recover, serve, leave cleanly when told to.

This file owns the order of a start and of a stop.  A start: settings that cannot be served are
refused before anything is touched; then the directory's lock, the port, and connections are
accepted; then recovery, with the probes answering meanwhile; the port file comes last.  A stop:
no more connections, streams are told, requests in progress end or time out, and a last snapshot is
written.  A second signal ends the process at once.  What a server consists of is in
`cli/compose.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

import pyarrow as pa

from headrace.cli.compose import Server, compose
from headrace.cli.options import print_json, settings_of
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.server.auth import KeyRing
from headrace.server.listener import Listener, check_exposure, tls_context
from headrace.storage.fs import RealFilesystem, write_file_durably

log = logging.getLogger("headrace")

# A serving process makes many objects that live long and are in no cycle.  A collection of the
# middle generation then looks at no more than takes 8 ms, and full ones, 520 ms for 50,000
# topics, are left to very rare occasions.
GC_THRESHOLDS = (5_000, 2, 1_000_000)
# Of the open files that the machine allows, connections leave one in `CONNECTIONS_LEAVE`, and at
# least `FILES_MIN`, to the data.
FILES_MIN = 64
CONNECTIONS_LEAVE = 4
# How often a stop looks whether the last connection has ended.
DRAIN_LOOK_SECONDS = 0.01
# An exit code that says which signal it was, as shells do.
EXIT_SIGNAL_BASE = 128
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run(options: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM."""
    settings = settings_of(options).settings
    _start_logging(settings.log)
    _raise_file_limit()
    do_without_pandas()
    pa.set_cpu_count(1)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(settings, as_json=options.json))
    return 0


def _start_logging(level: str) -> None:
    """Log to stderr.  Only our own words: what libraries say at lower levels repeats headers."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    log.setLevel(level.upper())


class _NoPandas:
    """A finder for which pandas is not installed."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        if name == "pandas":
            raise ImportError(name)


def do_without_pandas() -> None:
    """Have pyarrow look for pandas now, once and for all, and not find it.

    It looks when it first makes an array of Python values, and imports it where it is installed.
    Nothing here needs it, and the import would hold up every request: 0.3 s on an idle machine.
    """
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(_NoPandas)


def _raise_file_limit() -> None:
    """Raise the limit on open files as far as it goes: each sealed file and connection is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _within_file_limit(settings: Settings) -> Settings:
    """Bound connections by the limit on open files, so that the log can always open one."""
    files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files_max == resource.RLIM_INFINITY:
        return settings
    connections_max = max(files_max - max(files_max // CONNECTIONS_LEAVE, FILES_MIN), 1)
    if connections_max >= settings.max_connections:
        return settings
    log.info("%d open files are allowed: %d connections", files_max, connections_max)
    return dataclasses.replace(settings, max_connections=connections_max)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(settings: Settings, *, as_json: bool) -> None:
    keys = KeyRing.parse(settings.api_keys, settings)
    # From here on no part of the server has the keys themselves.
    settings = dataclasses.replace(settings, api_keys="")
    check_exposure(settings, keys)
    listener = Listener(settings, tls_context(settings))
    settings = _within_file_limit(settings)
    signals = StopSignals()
    engine = Engine.prepare_async(settings.data_dir, settings)
    try:
        listener.bind()
        server = compose(settings, engine, keys)
        server.start()
        await listener.start(server.protocol)
        if await _recover(engine, signals):
            server.app.go_live()
            engine.scrub.start()
            _announce(settings, listener, as_json)
            await signals.asked.wait()
        log.info("stopping")
        listener.close()
        await _drain(server, settings.drain_timeout_ms)
    finally:
        listener.close()
        # The last snapshot is written on this very thread, which then hears no loop.
        signals.leave_the_loop()
        engine.close()
    log.info("stopped")


class StopSignals:
    """SIGINT and SIGTERM: the first one asks, the second one ends the process."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            self._loop.add_signal_handler(number, self._heard, number)

    def _heard(self, number: int) -> None:
        if self.asked.is_set():
            _exit_now(number)
        self.asked.set()

    def leave_the_loop(self) -> None:
        """Handle signals without the loop, which is about to end."""
        for number in STOP_SIGNALS:
            self._loop.remove_signal_handler(number)
            signal.signal(number, lambda number, _frame: _exit_now(number))


def _exit_now(number: int) -> NoReturn:
    log.warning("a second signal: ending at once; the next start replays the log")
    logging.shutdown()
    os._exit(EXIT_SIGNAL_BASE + number)


async def _recover(engine: Engine, signals: StopSignals) -> bool:
    """Bring back the state of the last run; False when a signal came first."""
    recovery = asyncio.ensure_future(engine.recover_async())
    stop = asyncio.ensure_future(signals.asked.wait())
    await asyncio.wait((recovery, stop), return_when=asyncio.FIRST_COMPLETED)
    if not recovery.done():
        # It ends when the engine is closed, and whatever it has to say then is known already.
        recovery.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return False
    stop.cancel()
    recovery.result()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    return True


def _announce(settings: Settings, listener: Listener, as_json: bool) -> None:
    if settings.port_file:
        directory, name = os.path.split(settings.port_file)
        content = listener.address.encode()
        write_file_durably(RealFilesystem(directory or "."), name, [content])
    if as_json:
        print_json({"address": listener.address, "data_dir": settings.data_dir})
        sys.stdout.flush()
    log.info("serving %s on %s", settings.data_dir, listener.url)


async def _drain(server: Server, timeout_ms: int) -> None:
    """Drain, and stop when the last connection has ended or the time is over."""
    app = server.app
    server.drain()
    deadline_ms = app.now_ms() + timeout_ms
    while app.connections and app.now_ms() < deadline_ms:
        await asyncio.sleep(DRAIN_LOOK_SECONDS)
    if app.connections:
        log.warning("%d connections did not end in %d ms", len(app.connections), timeout_ms)
    server.stop()
