"""Rewrite requirements/*.txt, the pinned and hashed packages that `./run` installs.

`server.txt` is what the server itself needs, `test.txt` is what the tests add to it.  They are
requirement files and not constraint files because pip refuses a hashed constraint on a range, and
because with a hash for every package neither pip nor uv accepts a file that somebody swapped.
The versions hold for each Python that pyproject.toml allows.  Needs `uv`; nothing else does.

    python tools/lock.py              keep what is pinned, add and drop what pyproject.toml says
    python tools/lock.py --upgrade    move every pin to the newest allowed version
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
PYTHON_OLDEST = "3.11"
HEADER = "# {what}\n# Made by `python tools/lock.py` from pyproject.toml; do not edit.\n"


def resolve(*options: str) -> dict[str, str]:
    """Each package's name with its whole entry: pin, marker and hashes."""
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--generate-hashes"]
    command += ["--python-version", PYTHON_OLDEST, "--no-header", "--no-annotate"]
    command += ["--no-emit-index-url", "--no-emit-find-links", *options, "pyproject.toml"]
    text = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    entries = re.findall(r"^([A-Za-z0-9._-]+)(==.*(?:\n    .*)*\n)", text, flags=re.MULTILINE)
    return {name: name + rest for name, rest in entries}


def write(path: Path, what: str, body: str) -> None:
    path.write_text(HEADER.format(what=what) + body, encoding="utf-8")


def main() -> int:
    if shutil.which("uv") is None:
        print("tools/lock.py: uv is not on PATH; install it with `pip install uv`")
        return 1
    REQUIREMENTS.mkdir(exist_ok=True)
    server_path, test_path = REQUIREMENTS / "server.txt", REQUIREMENTS / "test.txt"
    keep = [] if "--upgrade" in sys.argv else [p for p in (server_path, test_path) if p.exists()]
    preferences = [option for path in keep for option in ("--constraint", str(path))]
    everything = resolve("--extra", "test", *preferences)

    pins = ROOT / "requirements" / ".pins"
    pins.write_text("".join(everything.values()), encoding="utf-8")
    try:
        server = resolve("--constraint", str(pins))
    finally:
        pins.unlink()
    assert set(server) < set(everything), "the tests need everything the server needs"

    write(server_path, "What the server needs.", "".join(server.values()))
    added = (entry for name, entry in everything.items() if name not in server)
    write(test_path, "What the tests need beside that.", "-r server.txt\n" + "".join(added))
    print(f"{len(server)} packages for the server, {len(everything)} with the tests")
    return 0


if __name__ == "__main__":
    sys.exit(main())
