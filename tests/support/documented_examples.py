"""Examples of the documentation: found in a page, run in a shell, compared without what varies.

A fenced block marked `sh run` is run, in the order of its page and in one shell, against a fresh
server; the block behind it, if it is `json` or `text`, is what the commands print.  Times,
durations and ids are not compared.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import headrace

BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Between what two blocks print; nothing that a server sends holds it.
MARK = "\x1e"
SECONDS_MAX = 120
# What differs from run to run, by its JSON key.
VARIES = {
    "performance", "$ts", "last_write_ts", "last_read_ts", "uptime_ms", "wid", "stream_url",
    "lease_id", "deadline", "deadlines",
}  # fmt: skip
# Of `performance`, and only there when the machine has much to do.
BUSY = {"throttle_wait_ms"}
PUBLIC_ADDRESS = re.compile(r"(?:localhost|127\.0\.0\.1):4000")


class Example(NamedTuple):
    """A block of commands, and what it says it prints."""

    commands: str
    form: str  # "json", "text", or "" when nothing is said
    printed: str


def examples_of(text: str) -> list[Example]:
    blocks = BLOCK.findall(text)
    found = []
    for at, (kind, content) in enumerate(blocks):
        if kind.strip() != "sh run":
            continue
        form, printed = blocks[at + 1] if at + 1 < len(blocks) else ("", "")
        found.append(Example(content, *((form, printed) if form in ("json", "text") else ("", ""))))
    return found


def run(examples: list[Example], address: str, directory: Path) -> list[str]:
    """What each example prints."""
    script = "set -eu -o pipefail\n" + "".join(
        PUBLIC_ADDRESS.sub(address, example.commands) + f"printf '{MARK}'\n" for example in examples
    )
    # A command that gets no answer ends, and says so.
    (directory / ".curlrc").write_text("max-time = 20\nshow-error\n", encoding="utf-8")
    # `python3` of the examples is the one that has our packages.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=directory,
        # `headrace` of the examples speaks to the server that theirs stands for.
        env={
            **os.environ,
            "PATH": path,
            "CURL_HOME": str(directory),
            "HEADRACE_URL": f"http://{address}",
        },
        capture_output=True,
        timeout=SECONDS_MAX,
    )
    printed = done.stdout.decode().split(MARK)
    assert done.returncode == 0, (printed[-1], done.stderr.decode())
    return printed[:-1]


def steady(value: Any) -> Any:
    """A JSON value without what differs from run to run; its keys stay."""
    if isinstance(value, dict):
        return {
            key: sorted(item.keys() - BUSY) if isinstance(item, dict) and key == "performance" else
            None if key in VARIES else steady(item)
            for key, item in value.items()
        }  # fmt: skip
    return [steady(item) for item in value] if isinstance(value, list) else value


def documents(text: str) -> list[Any]:
    decoder, found, at = json.JSONDecoder(), [], 0
    text = text.strip()
    while at < len(text):
        document, at = decoder.raw_decode(text, at)
        found.append(steady(document))
        at += len(text[at:]) - len(text[at:].lstrip())
    return found


def settled(text: str) -> str:
    text = re.sub(r"^id: .+$", "id: …", text, flags=re.MULTILINE)
    text = re.sub(r'"(\$ts|uptime_ms)":\d+', r'"\1":0', text)
    text = text.replace(f'"version":"{headrace.__version__}"', '"version":"0.1.0"')
    # Each call prints one document, without an end of line.
    return re.sub(r"\}\s*(?=\{|headrace_)", "}\n", text).strip()
