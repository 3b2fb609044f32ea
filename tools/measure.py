"""Measure each dependency against what we would use without it.

Prints the table of docs/internals/dependencies.md.  A peer that is not installed (`pip install
orjson google-crc32c typer`) is left out; nothing of the project needs one.

    .venv/bin/python tools/measure.py
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from typing import cast

import httptools
import msgspec
import pyroaring
import uvloop
import xxhash

ROUNDS = 7
ROUND_SECONDS = 0.05
ECHOES = 4_000
SEQS = 100_000


class Sent(msgspec.Struct):
    data: msgspec.Raw
    tag: str = ""


class Batch(msgspec.Struct):
    records: list[Sent]


def cost_us(work: Callable[[], object]) -> float:
    """Microseconds a call, the best of several rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        calls, started = 0, time.perf_counter()
        while (spent := time.perf_counter() - started) < ROUND_SECONDS:
            work()
            calls += 1
        best = min(best, spent / calls)
    return best * 1e6


def start_ms(code: str) -> float:
    """Milliseconds of a fresh interpreter that runs `code`, the best of several."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        best = min(best, time.perf_counter() - started)
    return best * 1e3


def show(what: str, unit: str, **figures: float) -> None:
    shown = ", ".join(f"{name} {figure:.3g}" for name, figure in figures.items())
    print(f"| {what} | {shown} {unit} |", flush=True)


def peer(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def measure_codec() -> None:
    records = [
        {"data": {"order": n, "note": "x" * 90, "paid": True}, "tag": f"t{n}"} for n in range(100)
    ]
    body = json.dumps({"records": records}).encode()
    decode = {
        "msgspec": lambda: msgspec.json.decode(body, type=Batch),
        "json": lambda: json.loads(body),
    }
    batch = msgspec.json.decode(body, type=Batch)
    encode = {"msgspec": lambda: msgspec.json.encode(batch), "json": lambda: json.dumps(records)}
    if peer("orjson"):
        import orjson

        decode["orjson"] = lambda: orjson.loads(body)
        encode["orjson"] = lambda: orjson.dumps(records)
    show(
        f"decode 100 records, {len(body)} bytes", "µs", **{k: cost_us(v) for k, v in decode.items()}
    )
    show("encode them", "µs", **{k: cost_us(v) for k, v in encode.items()})


def measure_hash() -> None:
    for size in (200, 65_536):
        data = bytes(range(256)) * 256
        data = data[:size]
        hashes = {
            "xxh3": lambda d=data: xxhash.xxh3_64_intdigest(d),
            "crc32": lambda d=data: zlib.crc32(d),
        }
        if peer("google_crc32c"):
            import google_crc32c

            hashes["crc32c"] = lambda d=data: google_crc32c.value(d)
        show(f"hash {size} bytes", "µs", **{k: cost_us(v) for k, v in hashes.items()})


def measure_bitmap() -> None:
    seqs = range(0, SEQS * 3, 3)
    bitmap, plain = pyroaring.BitMap64(seqs), set(seqs)
    show(
        f"bytes to store {SEQS} deleted seqs, every third",
        "KiB",
        pyroaring=len(bitmap.serialize()) / 1024,
        array=SEQS * 8 / 1024,
    )
    ranged = pyroaring.BitMap64(range(SEQS))
    ranged.run_optimize()
    show(
        "the same, one run", "KiB", pyroaring=len(ranged.serialize()) / 1024, array=SEQS * 8 / 1024
    )
    other = set(range(SEQS))
    show(
        "union of the two",
        "µs",
        pyroaring=cost_us(lambda: bitmap | ranged),
        set=cost_us(lambda: plain | other),
    )


class Sink:
    def on_header(self, name: bytes, value: bytes) -> None: ...
    def on_body(self, body: bytes) -> None: ...
    def on_message_complete(self) -> None: ...


def measure_http() -> None:
    headers = "".join(f"x-header-{n}: value-{n}\r\n" for n in range(7))
    request = (
        f"POST /v0/topics/t HTTP/1.1\r\nhost: h\r\n{headers}content-length: 1024\r\n\r\n".encode()
    )
    request += b"x" * 1024

    def by_split() -> None:
        head, _, _ = request.partition(b"\r\n\r\n")
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            name.lower(), value.strip()

    show(
        "parse a request, 9 headers and 1 KiB",
        "µs",
        httptools=cost_us(lambda: httptools.HttpRequestParser(Sink()).feed_data(request)),
        split=cost_us(by_split),
    )


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


def echo_cpu_us(loop: asyncio.AbstractEventLoop) -> float:
    """CPU of the loop's thread for one small echo over loopback."""
    server = loop.run_until_complete(loop.create_server(Echo, "127.0.0.1", 0))
    port = server.sockets[0].getsockname()[1]

    def client() -> None:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            for _ in range(ECHOES):
                connection.sendall(b"x" * 100)
                connection.recv(100)

    def run_client() -> None:
        try:
            client()
        finally:
            loop.call_soon_threadsafe(loop.stop)

    thread = threading.Thread(target=run_client)
    started = time.thread_time()
    thread.start()
    loop.run_forever()
    spent = time.thread_time() - started
    thread.join()
    server.close()
    loop.close()
    return spent / ECHOES * 1e6


def measure_loop() -> None:
    figures = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
    best = {name: min(echo_cpu_us(new()) for _ in range(3)) for name, new in figures.items()}
    show("CPU of one 100-byte echo", "µs", **best)


def measure_start() -> None:
    figures = {"argparse": start_ms("import argparse")}
    if peer("typer"):
        figures["typer"] = start_ms("import typer")
    figures["python"] = start_ms("pass")
    show("start of a process that imports it", "ms", **figures)
    ours = "import headrace.cli.main as m; m.build_parser()"
    show("start up to the parsed arguments of ours", "ms", headrace=start_ms(ours))
    show("start of a process that imports it", "ms", pyarrow=start_ms("import pyarrow"))


if __name__ == "__main__":
    print(f"| Python {sys.version.split()[0]}: what | figures |\n|---|---|")
    for measure in (measure_codec, measure_hash, measure_bitmap, measure_http, measure_loop):
        measure()
    measure_start()
