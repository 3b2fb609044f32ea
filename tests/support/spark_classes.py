"""The Java classes of Spark, loaded and linked once, in a file that each Java of the tests maps.

A start of Spark costs 9.6 s of the processor, half of which is spent on its 15,000 classes; the
long tests start dozens.  The file is Java's own ahead-of-time cache, made by a run of
`spark_program.py` and kept in the virtual environment, whose Java and Spark it belongs to.  Java
checks that it fits, and does without it where it does not.  Only for the Java that comes with the
packages: another one may be too old for it.

`python -m tests.support.spark_classes COMMAND ...` makes the file unless it is there, and then
becomes the command.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyspark

from headrace.client import Client
from headrace.core.errors import HeadraceError
from headrace.spark.java import SHIM_HOME, bundled_java
from headrace.spark.session import MASTER_VARIABLE
from headrace.testing.process import ServerProcess
from tests.support.checkout import ROOT, SOURCES
from tests.support.sealed_topics import SETTINGS, fill, seal

# Java compiles quickly rather than well: a suite runs most code a few times only.  That takes two
# fifths off what each Java spends, here and in the processes of tests.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Without the file Java checks the code of each class that it loads; in the file it is checked.
UNCHECKED = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
VARIABLE = "SPARK_SUBMIT_OPTS"
ROWS = 3_000
MAKING_SECONDS_MAX = 300


def archive() -> Path | None:
    """Where the file is, or would be, for the Java and the Spark that are installed now."""
    java = bundled_java()
    if java is None or os.environ.get("JAVA_HOME", SHIM_HOME) != SHIM_HOME:
        return None
    jars = sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))
    found = hashlib.sha256(QUICK.encode())
    for file in (Path(java), *jars):
        state = file.stat()
        found.update(f"{file} {state.st_size} {state.st_mtime_ns}\n".encode())
    return Path(sys.prefix) / f"spark-classes-{found.hexdigest()[:16]}.aot"


def options() -> str:
    """What each Java is told: to be quick, and where its classes are if they are somewhere."""
    file = archive()
    if file is None or not file.exists():
        return f"{QUICK} {UNCHECKED}"
    return f'{QUICK} -Xlog:disable "-XX:AOTCache={file}"'


def make(file: Path) -> None:
    """Run a program that does what most tests do, and have Java keep what it loaded for that."""
    for old in file.parent.glob("spark-classes-*"):
        with contextlib.suppress(OSError):
            old.unlink()
    begun = file.with_suffix(f".{os.getpid()}")
    settings: dict[str, Any] = dict(SETTINGS)
    with tempfile.TemporaryDirectory() as directory:
        with ServerProcess(f"{directory}/data", **settings) as server, Client(server.url) as client:
            fill(client, "source", ROWS)
            seal(client, "source")
            # Java outlives the program while it writes the file, with the same standard files.
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "tests.support.spark_program"),
                    *(server.url, "source", "target", f"{directory}/checkpoint"),
                ],
                cwd=directory,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join([str(SOURCES), str(ROOT)]),
                    VARIABLE: f'{QUICK} -Xlog:disable "-XX:AOTCacheOutput={begun}"',
                    MASTER_VARIABLE: "local[2]",
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=MAKING_SECONDS_MAX,
            )
        if done.returncode == 0 and begun.exists():
            begun.rename(file)


def main() -> None:
    file = archive()
    if file is not None and not file.exists():
        # Without it everything works, and takes longer.
        with contextlib.suppress(
            OSError, subprocess.SubprocessError, AssertionError, HeadraceError
        ):
            make(file)
    os.execv(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
