"""Somebody else's fuzzer against our own OpenAPI document: no 5xx, no answer it does not describe.

schemathesis sends what the document allows, which has to be taken, and what it forbids, which has
to be refused, and compares every answer with its schema.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing.process import ServerProcess

EXAMPLES = 25
# What a schema cannot say: a cursor is not any text, and 3.0 is no whole number here.
HOOKS = """
import schemathesis

def whole(value):
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [whole(item) for item in value]
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    return value

@schemathesis.hook
def map_body(ctx, body):
    return whole(body)

@schemathesis.hook
def filter_body(ctx, body):
    return not (isinstance(body, dict) and body.get("cursor"))

@schemathesis.hook
def filter_query(ctx, query):
    return not (query and query.get("cursor"))
"""


def fuzz(directory: Path, url: str, examples: int, seed: int) -> None:
    (directory / "hooks.py").write_text(HOOKS, encoding="utf-8")
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"]
    command += ["--max-examples", str(examples), "--seed", str(seed), "--no-color"]
    # A stream does not end, and an upgrade is not something it knows.
    command += ["--exclude-path", "/v0/watch/{wid}", "--exclude-path", "/v0/ws"]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(directory)}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
    assert "Tested:" in done.stdout


def test_the_document_is_true(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        fuzz(tmp_path, server.url, EXAMPLES, seed=1)


@pytest.mark.long
def test_the_document_is_true_for_long(tmp_path: Path, sweep: object) -> None:
    seconds, seed = sweep.seconds, sweep.seed  # type: ignore[attr-defined]
    with ServerProcess(tmp_path / "data") as server:
        # About a hundred examples of all operations a second, on a slow machine.
        fuzz(tmp_path, server.url, max(EXAMPLES, int(seconds * 4)), seed)
