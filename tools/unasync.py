"""Write the synchronous client from the one for asyncio.

python tools/unasync.py            rewrite src/headrace/client/_sync
python tools/unasync.py --check    fail when a file there is not what would be written
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).resolve().parent.parent / "src" / "headrace" / "client"
FILES = ("pool.py", "sender.py", "topics.py", "queues.py", "pipelines.py", "client.py")
NOTE = "# Written by tools/unasync.py from _async/{name}: change that, then run it.\n"

# In this order, each on the whole text.
RULES = (
    (r"from collections\.abc import AsyncIterator, ", "from collections.abc import Iterator, "),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bAsyncClient\b", "Client"),
    (r"\bAsyncPool\b", "Pool"),
    (r"\bAsyncSender\b", "Sender"),
    (r"\bAsyncTopicCalls\b", "TopicCalls"),
    (r"\bAsyncQueueCalls\b", "QueueCalls"),
    (r"\bAsyncPipelineCalls\b", "PipelineCalls"),
    (r"\b_async\b", "_sync"),
    (r"\b__aenter__\b", "__enter__"),
    (r"\b__aexit__\b", "__exit__"),
    (r"\basyncio\.run\((.+)\)$", r"\1"),
    (r"(?<=one server), for asyncio\.", "; threads may share it."),
    (r"The client for asyncio:", "The client for programs without an event loop:"),
    (r" +`_sync/client\.py` is generated from this file by tools/unasync\.py\.", ""),
    (r"\bimport asyncio, tempfile\b", "import tempfile"),
    (r"\bfor (\w+) in ([\w.]+):\n +yield \1\b", r"yield from \2"),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
)


def synchronous(text: str, used: set[str]) -> str:
    for pattern, replacement in RULES:
        text, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
        if count:
            used.add(pattern)
    return text


def formatted(text: str, name: str) -> str:
    """As ruff would have it: lines that became shorter are joined, imports sorted."""
    path = str(CLIENT / "_sync" / name)
    for command in (["check", "--select=I", "--fix"], ["format"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--quiet", f"--stdin-filename={path}", "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        text = done.stdout
    return text


def main() -> int:
    check = "--check" in sys.argv[1:]
    used: set[str] = set()
    stale = []
    for name in FILES:
        source = (CLIENT / "_async" / name).read_text(encoding="utf-8")
        text = formatted(NOTE.format(name=name) + synchronous(source, used), name)
        target = CLIENT / "_sync" / name
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                target.write_text(text, encoding="utf-8")
    unused = [pattern for pattern, _ in RULES if pattern not in used]
    if unused:
        print(f"rules that change nothing: {unused}")
    if check and stale:
        print(f"not what tools/unasync.py writes: {', '.join(stale)}")
    return 1 if unused or (check and stale) else 0


if __name__ == "__main__":
    sys.exit(main())
