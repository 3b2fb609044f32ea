"""The publisher's conformance suite of Durable Streams: one run of it, and what it found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.node_programs import run_program

LONG_POLL_MS = 500
# Beside the defaults: the suite waits less than 5 s for a long poll, and receives webhooks itself.
SETTINGS: dict[str, Any] = {"ds_long_poll_ms": LONG_POLL_MS, "ds_webhook_loopback": "true"}
# Those of version 0.3.6, with those of subscriptions.
TESTS = 338
SECONDS_MAX = 280.0


class Found(NamedTuple):
    """How many tests passed, and each that did not with what it said first."""

    passed: int
    others: list[str]


def run_conformance_suite(
    directory: Path, url: str, *options: str, seconds: float = SECONDS_MAX, **variables: str
) -> Found:
    """Run it in a directory of its own against the server at `url`."""
    report = directory / "report.json"
    program = run_program(
        directory,
        "node_modules/vitest/vitest.mjs",
        "run",
        "--reporter=json",
        f"--outputFile={report}",
        *options,
        seconds=seconds,
        INTEROP_URL=url,
        INTEROP_LONG_POLL_MS=str(LONG_POLL_MS),
        **variables,
    )
    if not report.exists():
        return Found(0, [f"the suite did not run: {program.said[-2000:]}"])
    results = [
        result
        for file in json.loads(report.read_text())["testResults"]
        for result in file["assertionResults"]
    ]
    others = [
        f"{result['status']}: {result['fullName']}: {''.join(result['failureMessages'])[:300]}"
        for result in results
        if result["status"] != "passed"
    ]
    return Found(len(results) - len(others), others)
