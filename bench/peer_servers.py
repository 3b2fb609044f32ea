"""Redis, NATS, the servers of Durable Streams in Node and in Rust, S2: installed, started, stopped.

Everything comes from the ordinary registries (Debian's, npm's, PyPI, crates.io), listens on
127.0.0.1 only (but S2, which knows no address but all of them) and keeps its data in a directory of
ours that is removed afterwards.  What cannot be had here is left out of the table, with the reason.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from bench.peer_builds import CRATES, cache, cargo_install
from bench.served import Served, ServerFailed, free_port, started
from bench.wires import HOST, document
from bench.wires_peers import Nats

INSTALL_SECONDS = 300.0
# Where programs are that a service runs, not a person.
MORE_PATH = ("/usr/sbin", "/usr/local/sbin", "/sbin")
PROGRAMS = {"redis": "redis-server", "nats": "nats-server", "nginx": "nginx"}
PACKAGE = "@durable-streams/server"
PYTHON_PACKAGES = ("dramatiq", "redis")
STREAM = "/v1/stream/{}"
STREAM_PATH = STREAM.format("orders")
BASIN = "bench-basin"
BASIN_HEADERS = {"Content-Type": "application/json", "s2-basin": BASIN}
S2_RECORDS = "/v1/streams/t{}/records"
STREAM_RECORD = document().decode()


class NotOffered(Exception):
    """This version of a server cannot do what the row asks for."""


def program(name: str) -> str | None:
    path = os.pathsep.join([os.environ.get("PATH", ""), *MORE_PATH])
    return shutil.which(name, path=path)


def install(
    say: Callable[[str], None], kinds: Collection[str], allowed: bool = True
) -> dict[str, str]:
    """Install what is missing of the servers that are asked for; for those still missing, why."""
    missing = {}
    for kind in kinds:
        if is_installed(kind):
            continue
        problem = install_one(kind, say) if allowed else "it is not installed"
        if problem:
            missing[kind] = problem
            say(f"{kind} is skipped: {problem}")
    return missing


def install_one(kind: str, say: Callable[[str], None]) -> str | None:
    """The reason, if it did not work."""
    if kind in CRATES:
        return cargo_install(CRATES[kind], say)
    if kind in PROGRAMS:
        name = PROGRAMS[kind]
        return None if program(name) else apt_install(name, say)
    if kind == "durable-streams-node":
        return npm_install(say)
    if kind == "dramatiq":
        return install_one("redis", say) or pip_install(say)
    return None  # ours


def is_installed(kind: str) -> bool:
    """Whether rows of this kind can run now, without anything being installed."""
    if kind in CRATES:
        return CRATES[kind].path.exists()
    if kind in PROGRAMS:
        return program(PROGRAMS[kind]) is not None
    if kind == "durable-streams-node":
        return has_durable_streams()
    if kind == "dramatiq":
        return is_installed("redis") and has_dramatiq()
    return True


def apt_install(package: str, say: Callable[[str], None]) -> str | None:
    """The reason, if it did not work."""
    if not shutil.which("apt-get"):
        return f"{package} is not installed, and there is no apt-get to install it with"
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    say(f"installing {package}")
    # A package that wants to start its service is told that this is not the time.
    command = [*sudo, "env", "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1", "apt-get", "install"]
    problem = run([*command, "-y", "--no-install-recommends", package])
    if problem and run([*sudo, "apt-get", "update"]) is None:
        problem = run([*command, "-y", "--no-install-recommends", package])
    return problem


def has_durable_streams() -> bool:
    return bool(program("node")) and (cache() / "node_modules" / PACKAGE / "package.json").exists()


def npm_install(say: Callable[[str], None]) -> str | None:
    if has_durable_streams():
        return None
    for name, package in (("node", "nodejs"), ("npm", "npm")):
        problem = None if program(name) else apt_install(package, say)
        if problem:
            return problem
    say(f"installing {PACKAGE}")
    cache().mkdir(parents=True, exist_ok=True)
    return run(["npm", "install", "--no-audit", "--no-fund", "--prefix", str(cache()), PACKAGE])


def client_python() -> Path:
    """A Python with the libraries that only peers need."""
    return cache() / "venv" / "bin" / "python"


def has_dramatiq() -> bool:
    return any((cache() / "venv").glob("lib/python*/site-packages/dramatiq"))


def pip_install(say: Callable[[str], None]) -> str | None:
    if has_dramatiq():
        return None
    say(f"installing {', '.join(PYTHON_PACKAGES)}")
    venv = [sys.executable, "-m", "venv", "--clear", str(cache() / "venv")]
    return run(venv) or run([str(client_python()), "-m", "pip", "install", *PYTHON_PACKAGES])


def run(command: list[str]) -> str | None:
    """The end of what it said, if it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    if done.returncode == 0:
        return None
    last = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return " ".join([*last[-1:], f"({' '.join(command)})"])


@contextlib.contextmanager
def redis(directory: str, policy: str) -> Iterator[Served]:
    """`policy` is Redis's own appendfsync: always, or everysec."""
    port = free_port()
    options = {
        "bind": HOST,
        "port": str(port),
        "dir": directory,
        "save": "",
        "appendonly": "yes",
        "appendfsync": policy,
        # A rewrite of the file would be measured as if appends cost it.
        "auto-aof-rewrite-percentage": "0",
    }
    command = [str(program(PROGRAMS["redis"]))]
    for name, value in options.items():
        command += [f"--{name}", value]
    with started(command, port, directory) as server:
        yield server


@contextlib.contextmanager
def nats(directory: str, sync: str, with_stream: bool = True) -> Iterator[Served]:
    """JetStream, with one stream in a file; `sync` is "default" (each two minutes) or "always"."""
    port = free_port()
    store = f'store_dir: "{directory}/store"'
    if sync == "always":
        store += ", sync_interval: always"
    config = Path(directory, "nats.conf")
    config.write_text(f"listen: {HOST}:{port}\njetstream {{ {store} }}\n")
    server_program = str(program(PROGRAMS["nats"]))
    refused = run([server_program, "-t", "-c", str(config)])
    if refused and "unknown field" in refused:
        version = subprocess.run([server_program, "--version"], capture_output=True, text=True)
        raise NotOffered(f"{version.stdout.strip()} has no such setting")
    if refused:
        raise ServerFailed(refused)
    with started([server_program, "-c", str(config)], port, directory) as server:
        if with_stream:
            put_nats_stream(port)
        yield server


def put_nats_stream(port: int) -> None:
    stream = {
        "name": "ORDERS",
        "subjects": ["orders"],
        "storage": "file",
        "retention": "limits",
    }
    with contextlib.closing(Nats(port)) as connection:
        connection.ask("$JS.API.STREAM.CREATE.ORDERS", stream)


NODE_PROGRAM = """
import { createRequire } from "node:module";
const require = createRequire(process.argv[2] + "/");
const { DurableStreamTestServer } = require("@durable-streams/server");
const options = JSON.parse(process.argv[3]);
await new DurableStreamTestServer(options).start();
"""


@contextlib.contextmanager
def durable_streams(directory: str, stored: bool) -> Iterator[Served]:
    """The reference server in Node, in memory or on files, with one JSON stream."""
    port = free_port()
    options: dict[str, object] = {"host": HOST, "port": port}
    if stored:
        options["dataDir"] = f"{directory}/streams"
    source = Path(directory, "serve.mjs")
    source.write_text(NODE_PROGRAM)
    command = [str(program("node")), str(source), str(cache()), json.dumps(options)]
    with started(command, port, directory) as server:
        put_stream(port)
        yield server


@contextlib.contextmanager
def durable_streams_rust(directory: str, durability: str, names: list[str]) -> Iterator[Served]:
    """The server in Rust with JSON streams; `durability` is its own: memory, or wal."""
    port = free_port()
    command = [str(CRATES["durable-streams-rust"].path), "--host", HOST, "--port", str(port)]
    command += ["--durability", durability, "--data-dir", f"{directory}/streams"]
    with started(command, port, directory) as server:
        for name in names:
            put(port, STREAM.format(name), {"Content-Type": "application/json"})
        yield server


@contextlib.contextmanager
def s2_lite(directory: str, stored: bool, streams: int = 0) -> Iterator[Served]:
    """`s2 lite`, in memory or on files that it syncs; with a basin of t0, t1, ... if any."""
    port = free_port()
    command = [str(CRATES["s2-lite"].path), "lite", "--port", str(port)]
    if stored:
        Path(directory, "root").mkdir(parents=True, exist_ok=True)
        command += ["--local-root", f"{directory}/root"]
    with started(command, port, directory) as server:
        if streams:
            put(port, f"/v1/basins/{BASIN}", {})
        for number in range(streams):
            put(port, f"/v1/streams/t{number}", {"s2-basin": BASIN})
        yield server


def put_stream(port: int) -> None:
    put(port, STREAM_PATH, {"Content-Type": "application/json"})


def put(port: int, path: str, headers: dict[str, str]) -> None:
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    connection.request("PUT", path, headers=headers)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    if answer.status not in (200, 201):
        raise ServerFailed(f"PUT {path}: {answer.status} {text[:200]!r}")
