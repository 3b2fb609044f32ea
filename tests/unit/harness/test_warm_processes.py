"""Processes that are forked with their imports done behave as those that are started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.warm_processes import WarmPopen

PROGRAM = """
import json, os, sys
said = sys.stdin.read()
print(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd(), said, os.getppid()]))
print("bad", file=sys.stderr)
print(len(os.listdir("/proc/self/fd")))
sys.exit(3)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.parametrize("popen", [subprocess.Popen, WarmPopen])
def test_it_is_as_any_process(popen: type, program: Path, tmp_path: Path) -> None:
    """Arguments, environment, directory, files, parent and exit code are what was asked for."""
    process = popen(
        [sys.executable, "-P", str(program), "a", "b c"],
        env={"ONE": "1", "PATH": os.environ["PATH"]},
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, errors = process.communicate(b"hello")
    arguments, environment, directory, said, parent = json.loads(out.splitlines()[0])
    environment.pop("LC_CTYPE", None)  # Python sets it where the locale is C
    assert (arguments, said, parent) == (["a", "b c"], "hello", os.getpid())
    assert environment == {"ONE": "1", "PATH": os.environ["PATH"]}
    assert Path(directory) == tmp_path
    assert errors == b"bad\n"
    assert out.splitlines()[1] == b"4", "it holds no file of another"
    assert process.returncode == 3


def test_a_signal_is_its_exit_code(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("import time\nprint(1, flush=True)\ntime.sleep(60)")
    process = WarmPopen([sys.executable, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"1\n"
    assert process.poll() is None
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    process.stdout.close()


def test_many_threads_start_them(program: Path) -> None:
    codes: list[int] = []

    def start() -> None:
        with WarmPopen(
            [sys.executable, str(program)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            codes.append(process.wait(60))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [3] * 8


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"subprocess\.Popen"):
        WarmPopen([sys.executable, "x"], preexec_fn=lambda: None)
