"""Rewrite requirements/*.txt, the pinned and hashed packages that `./run` installs.

`server.txt` is what the server itself needs; `spark.txt` is what a verb that runs Spark (`sql`,
`lake`, `pipelines run`) adds to it, `test.txt` what the tests add, Spark too.  They are requirement
files and not constraint files because pip refuses a hashed constraint on a range, and because with
a hash for every package neither pip nor uv accepts a file that was swapped.  The versions hold
for each Python that pyproject.toml allows.  Needs `uv`; nothing else does.

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
HEADER = "# {what}\n# Made by `python tools/lock.py` from pyproject.toml; do not edit.\n"


def resolve(*options: str) -> dict[str, str]:
    """Each package's name with its whole entry: pin, marker and hashes.

    A package that has no version for all Pythons has an entry for each, told apart by its marker.
    """
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--generate-hashes"]
    command += ["--python-version", PYTHON_OLDEST, "--no-header", "--no-annotate"]
    command += ["--no-emit-index-url", "--no-emit-find-links", *options, "pyproject.toml"]
    text = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
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
        served = ("--extra", "pipelines", "--extra", "cold")
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
    print(
        f"{len(server)} packages for the server, {len(spark)} with Spark, {len(everything)} in all"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
