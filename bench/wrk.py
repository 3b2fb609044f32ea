"""`wrk` in place of our own generator, for `./run bench http_append --wrk`: a second opinion."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.load import cpu_seconds
from bench.served import Round, Served
from bench.wires import HOST, append_body

SCRIPT = """
wrk.method = "POST"
wrk.body = [==[%s]==]
wrk.headers["Content-Type"] = "application/json"
function done(summary, latency, requests)
  local errors = summary.errors.status + summary.errors.connect + summary.errors.read
    + summary.errors.write + summary.errors.timeout
  io.write(string.format(
    "\\n{\\"requests\\":%%d,\\"seconds\\":%%f,\\"errors\\":%%d,\\"p50\\":%%f,\\"p90\\":%%f,"
    .. "\\"p99\\":%%f,\\"p999\\":%%f,\\"max\\":%%f}\\n",
    summary.requests, summary.duration / 1e6, errors, latency:percentile(50),
    latency:percentile(90), latency:percentile(99), latency:percentile(99.9), latency.max))
end
"""


def load(
    server: Served, plan: Mapping[str, Any], connections: int, seconds: float, rounds: int
) -> list[Round]:
    """As `Served.load` reports it; a round is a run of wrk, at least a second long."""
    program = shutil.which("wrk")
    if program is None:
        raise SystemExit("wrk is not installed; `apt-get install wrk`, or leave out --wrk")
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory, "append.lua")
        script.write_text(SCRIPT % append_body().decode().replace("%", "%%"))
        command = [program, "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}"]
        command += ["-s", str(script), f"http://{HOST}:{server.port}/v0/topics/{plan['topic']}"]
        return [_round(command, server) for _ in range(rounds)]


def _round(command: list[str], server: Served) -> Round:
    cpu, own, started = cpu_seconds([server.pid]), os.times(), time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds = time.monotonic() - started
    cpu = cpu_seconds([server.pid]) - cpu
    spent = os.times()
    found = json.loads(done.stdout.strip().splitlines()[-1])
    if found["errors"]:
        raise RuntimeError(f"wrk counted {found['errors']} errors\n{done.stdout}")
    used = spent.children_user + spent.children_system - own.children_user - own.children_system
    return {
        "requests": found["requests"],
        "rate": found["requests"] / found["seconds"],
        "cpu": cpu * 1e6 / found["requests"],
        "generator_cpu": used * 1e6 / found["requests"],
        "busy": cpu / seconds,
        **{name: found[name] for name in ("p50", "p90", "p99", "p999", "max")},
    }
