"""Rewrite requirements/*.txt, the pinned and hashed packages that `./run` installs.

`server.txt` is what the server itself needs; `spark.txt` is what a verb that runs Spark (`sql`,
`lake`, `pipelines run`) adds to it, `test.txt` what the tests add, Spark too.  They are requirement
files and not constraint files because pip refuses a hashed constraint on a range, and because with
a hash for every package neither pip nor uv accepts a file that was swapped.  The versions hold
for each Python that pyproject.toml allows.  Two packages are pinned alone, and what they need is in
the sets: `optional.txt` has one that needs a C compiler, without which the server runs as well, and
`s2_sdk.txt` a client that asks for an older protobuf than Spark's and works with Spark's.  Needs
`uv`; nothing else does.

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
SETS = {
    "server": "What the server needs.",
    "spark": "What Spark needs beside that.",
    "test": "What the tests need beside that.",
}
# Each package that is installed by itself: what the file says of it, and what it asks for.
ALONE = {
    "optional": ("What the server uses where a C compiler can build it.", "pyaegis>=0.3,<1"),
    "s2_sdk": ("A client that tests use; what it needs is in test.txt.", "s2-sdk>=0.13,<0.14"),
}
COMPILE = ["uv", "pip", "compile", "--quiet", "--universal", "--generate-hashes"]
COMPILE += ["--python-version", PYTHON_OLDEST, "--no-header", "--no-annotate"]
COMPILE += ["--no-emit-index-url", "--no-emit-find-links"]
HEADER = "# {what}\n# Made by `python tools/lock.py` from pyproject.toml; do not edit.\n"


def resolve(*options: str) -> dict[str, str]:
    """Each package's name with its whole entry: pin, marker and hashes.

    A package that has no version for all Pythons has an entry for each, told apart by its marker.
    """
    return entries_of([*COMPILE, *options, "pyproject.toml"])


def entries_of(command: list[str], given: str = "") -> dict[str, str]:
    """What `command` resolves, by package."""
    done = subprocess.run(
        command, cwd=ROOT, check=True, input=given, stdout=subprocess.PIPE, text=True
    )
    text = done.stdout
    entries: dict[str, str] = {}
    for name, rest in re.findall(r"^([A-Za-z0-9._-]+)(==.*(?:\n    .*)*\n)", text, re.MULTILINE):
        entries[name] = entries.get(name, "") + name + rest
    return entries


def path_of(name: str) -> Path:
    return REQUIREMENTS / f"{name}.txt"


def write(name: str, entries: dict[str, str], included: dict[str, str]) -> None:
    """One file: `included` are the packages of server.txt, which it names instead."""
    text = HEADER.format(what=SETS[name]) + ("-r server.txt\n" if included else "")
    text += "".join(entry for package, entry in entries.items() if package not in included)
    path_of(name).write_text(text, encoding="utf-8")


def main() -> int:
    if shutil.which("uv") is None:
        print("tools/lock.py: uv is not on PATH; install it with `pip install uv`")
        return 1
    REQUIREMENTS.mkdir(exist_ok=True)
    kept = [] if "--upgrade" in sys.argv else [p for name in SETS if (p := path_of(name)).exists()]
    preferences = [option for path in kept for option in ("--constraint", str(path))]
    everything = resolve("--extra", "test", *preferences)

    # What is needed for less is a part of that, with the same versions.
    pins = REQUIREMENTS / ".pins"
    pins.write_text("".join(everything.values()), encoding="utf-8")
    try:
        served = ("--extra", "pipelines", "--extra", "cold", "--extra", "webhooks")
        server = resolve(*served, "--constraint", str(pins))
        spark = resolve(*served, "--extra", "lake", "--constraint", str(pins))
    finally:
        pins.unlink()
    assert set(server) < set(spark) < set(everything), "each set is a part of the next"
    # The next set leaves out what is in this one, which therefore has it for all Pythons of both.
    server = {package: everything[package] for package in server}
    spark = {package: everything[package] for package in spark}

    write("server", server, {})
    write("spark", spark, server)
    write("test", everything, server)
    for name, (what, asked) in ALONE.items():
        alone = entries_of([*COMPILE, "--no-deps", "-"], asked)
        text = HEADER.format(what=what) + "".join(alone.values())
        path_of(name).write_text(text, encoding="utf-8")
    print(
        f"{len(server)} packages for the server, {len(spark)} with Spark, {len(everything)} in all"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
