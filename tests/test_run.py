"""The launcher: `./run` on a fresh checkout, on a used one, twice at once, and after a kill.

Each test gets a small checkout of its own, with a package that only prints its version and empty
requirement lists, so that nothing is downloaded; launcher and virtual environments are real.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.checkout import ROOT

PATIENCE_SECONDS = 120


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "a checkout"
    for directory in ("requirements", "tests", "src/headrace"):
        (root / directory).mkdir(parents=True)
    shutil.copy(ROOT / "run", root)
    (root / "src" / "headrace" / "__init__.py").touch()
    (root / "src" / "headrace" / "__main__.py").write_text("print('headrace 0.1.0')\n")
    for name in ("server.txt", "optional.txt", "spark.txt", "test.txt"):
        (root / "requirements" / name).write_text("# nothing\n")
    (root / "tests" / "driver.py").write_text("import sys; print('driver', sys.argv[1:])\n")
    return root


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A PATH with what a plain system has, and neither uv nor another Python."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "dirname", "cmp", "cp", "rm", "chmod"):
        found = shutil.which(name)
        assert found is not None, name
        (tools / name).symlink_to(found)
    return {"PATH": str(tools), "PYTHON": sys.executable, "HOME": str(tmp_path)}


def give_uv(environment: dict[str, str]) -> None:
    (Path(environment["PATH"]) / "uv").symlink_to(Path(sys.executable).parent / "uv")


def start(checkout: Path, environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(checkout / "run"), *arguments],
        cwd=checkout.parent,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(checkout: Path, environment: dict[str, str], *arguments: str) -> tuple[int, str, str]:
    with start(checkout, environment, *arguments) as process:
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
        return process.returncode, out, err


def test_first_use_makes_the_environment_and_later_uses_are_silent(
    checkout: Path, environment: dict[str, str]
) -> None:
    code, out, err = run(checkout, environment, "--version")
    assert (code, out) == (0, "headrace 0.1.0\n"), err
    assert "making .venv" in err
    assert run(checkout, environment, "--version") == (0, "headrace 0.1.0\n", "")

    code, out, err = run(checkout, environment, "test", "-k", "two words")
    assert (code, out) == (0, "driver ['-k', 'two words']\n"), err
    assert "installing what `test` needs" in err
    assert run(checkout, environment, "test")[2] == ""

    # The command of the environment works as well, and a changed list is installed again.
    command = [str(checkout / ".venv/bin/headrace"), "--version"]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "headrace 0.1.0\n"
    (checkout / "requirements" / "server.txt").write_text("# nothing yet\n")
    assert "installing what `server` needs" in run(checkout, environment, "--version")[2]
    assert run(checkout, environment, "--version")[2] == ""


def test_spark_is_installed_when_it_is_asked_for(
    checkout: Path, environment: dict[str, str]
) -> None:
    give_uv(environment)
    (checkout / "bench").mkdir()
    (checkout / "bench" / "__main__.py").write_text("print('bench')\n")
    for command in ((), ("--version",), ("bench",), ("bench", "append")):
        run(checkout, environment, *command)
    assert not (checkout / ".venv" / ".installed-spark").exists()
    for command in (("sql", "select 1"), ("bench", "append", "spark_scan")):
        code, _, err = run(checkout, environment, *command)
        assert (code, "installing what `spark` needs" in err) == (0, True), err
        (checkout / ".venv" / ".installed-spark").unlink()


def test_a_moved_checkout_runs_its_own_code(checkout: Path, environment: dict[str, str]) -> None:
    give_uv(environment)
    assert run(checkout, environment, "--version")[0] == 0
    moved = checkout.rename(checkout.parent / "moved")
    (moved / "src" / "headrace" / "__main__.py").write_text("print('headrace elsewhere')\n")
    assert run(moved, environment, "--version") == (0, "headrace elsewhere\n", "")


@pytest.mark.slow
def test_two_at_once_install_once(checkout: Path, environment: dict[str, str]) -> None:
    processes = [start(checkout, environment, "--version") for _ in range(3)]
    results = [process.communicate(timeout=PATIENCE_SECONDS) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], results
    assert [out for out, _ in results] == ["headrace 0.1.0\n"] * 3
    assert sum("making .venv" in err for _, err in results) == 1


@pytest.mark.slow
def test_a_killed_install_does_not_wedge_the_next(
    checkout: Path, environment: dict[str, str]
) -> None:
    process = start(checkout, environment, "--version")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (checkout / ".venv" / ".installing").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert (checkout / ".venv" / ".installing").exists()

    code, out, err = run(checkout, environment, "--version")
    assert (code, out) == (0, "headrace 0.1.0\n"), err
    assert "making .venv" in err


def test_uv_is_used_when_it_is_there(checkout: Path, environment: dict[str, str]) -> None:
    give_uv(environment)
    for command in ("--version", "test"):
        code, _, err = run(checkout, environment, command)
        assert code == 0, err
    assert "uv =" in (checkout / ".venv" / "pyvenv.cfg").read_text()
    assert not (checkout / ".venv" / "bin" / "pip").exists()


@pytest.mark.slow
def test_pip_is_used_when_uv_fails(checkout: Path, environment: dict[str, str]) -> None:
    uv = Path(environment["PATH"]) / "uv"
    uv.write_text("#!/bin/sh\nexit 1\n")
    uv.chmod(0o755)
    code, out, err = run(checkout, environment, "--version")
    assert (code, out) == (0, "headrace 0.1.0\n"), err


@pytest.mark.slow
def test_a_failed_install_is_said_and_tried_again(
    checkout: Path, environment: dict[str, str]
) -> None:
    environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
    wanted = checkout / "requirements" / "server.txt"
    wanted.write_text(f"headrace-has-no-such-package==1 --hash=sha256:{'0' * 64}\n")
    code, out, err = run(checkout, environment, "--version")
    assert (code, out) == (1, "")
    assert "could not install requirements/server.txt" in err
    wanted.write_text("# nothing\n")
    assert run(checkout, environment, "--version")[:2] == (0, "headrace 0.1.0\n")


@pytest.mark.slow
@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_a_server_still_runs_when_spark_cannot_be_had(
    checkout: Path, environment: dict[str, str], installer: str
) -> None:
    if installer == "uv":
        give_uv(environment)
    assert run(checkout, environment, "--version")[0] == 0
    environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "UV_NO_INDEX": "1"}
    wanted = checkout / "requirements" / "spark.txt"
    wanted.write_text(f"headrace-has-no-such-package==1 --hash=sha256:{'0' * 64}\n")
    code, out, err = run(checkout, environment, "sql", "select 1")
    assert (code, out) == (1, "")
    assert "could not install requirements/spark.txt" in err
    assert run(checkout, environment, "--version") == (0, "headrace 0.1.0\n", "")
    wanted.write_text("# nothing\n")
    code, _, err = run(checkout, environment, "sql", "select 1")
    assert (code, "installing what `spark` needs" in err) == (0, True), err


def test_a_server_runs_without_what_cannot_be_built(
    checkout: Path, environment: dict[str, str]
) -> None:
    give_uv(environment)
    wanted = checkout / "requirements" / "optional.txt"
    wanted.write_text("no-such-package-xyz==1.0 --hash=sha256:" + "0" * 64 + "\n")
    code, out, err = run(checkout, environment | {"UV_NO_INDEX": "1"}, "--version")
    assert (code, out) == (0, "headrace 0.1.0\n")
    assert "goes without requirements/optional.txt" in err
    assert run(checkout, environment, "--version")[2] == "", "and it is not tried each time"


@pytest.mark.parametrize("version", ["3.10.13", None])
def test_a_python_that_is_too_old_or_missing_is_named(
    checkout: Path, environment: dict[str, str], version: str | None
) -> None:
    del environment["PYTHON"]
    if version is not None:
        old = Path(environment["PATH"]) / "python3"
        old.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "Python {version}"\n')
        old.chmod(0o755)
    code, out, err = run(checkout, environment, "serve")
    assert (code, out) == (1, "")
    assert "needs Python 3.11 or newer" in err
    assert (f"found Python {version}" if version else "no working python3") in err
    assert not (checkout / ".venv").exists()


def give_python(environment: dict[str, str], name: str, microseconds: int) -> str:
    """Put an interpreter on the PATH that says it is as fast as this; its path."""
    path = Path(environment["PATH"]) / name
    path.write_text(
        f"""#!/bin/sh
case "$*" in
*thread_time*) echo {microseconds} "$0" ;;
*print*sys.executable*) echo "$0" ;;
*) exec {sys.executable} "$@" ;;
esac
"""
    )
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("microseconds", "chosen", "taken"),
    [(7, {}, True), (9, {}, False), (7, {"VIRTUAL_ENV": "/somewhere"}, False)],
)
def test_a_python_that_is_much_faster_is_taken(
    checkout: Path,
    environment: dict[str, str],
    microseconds: int,
    chosen: dict[str, str],
    taken: bool,
) -> None:
    give_uv(environment)
    del environment["PYTHON"]
    first = give_python(environment, "python3", 10)
    other = give_python(environment, "python3.12", microseconds)
    code, out, err = run(checkout, environment | chosen, "--version")
    assert (code, out) == (0, "headrace 0.1.0\n"), err
    said = f"takes {other}, which runs Python much faster than {first}; PYTHON={first} ./run"
    assert (said in err) is taken, err


def test_python_with_asserts_off_is_refused() -> None:
    command = [sys.executable, "-O", "-m", "headrace", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT / "src")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "-O" in done.stderr
    assert "Traceback" not in done.stderr


def pins(path: Path) -> dict[str, set[str]]:
    """Name to versions, for each entry; each has a hash, and nothing else is in the file."""
    found: dict[str, set[str]] = {}
    text = path.read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if line.startswith("#") or line == "-r server.txt":
            continue
        name, _, rest = line.partition("==")
        assert " --hash=sha256:" in rest, line
        assert "://" not in line, line
        found.setdefault(name, set()).add(rest.split()[0])
    return found


def test_the_pinned_packages_satisfy_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = ("server", "optional", "spark", "test")
    server, optional, spark, test = (pins(ROOT / "requirements" / f"{n}.txt") for n in names)
    for wanted, pinned in (
        (project["dependencies"], server),
        (extras["spark"], server | spark),
        (extras["lake"], server | spark),
        (extras["cold"], server),
        (extras["pipelines"], server),
        (extras["webhooks"], server),
        (extras["encryption"], server | optional),
        (extras["test"], server | test),
    ):
        for text in wanted:
            requirement = Requirement(text)
            if requirement.name == "headrace":
                assert requirement.extras in ({"cold", "spark"}, {"lake", "pipelines", "webhooks"})
                continue
            versions = pinned[canonicalize_name(requirement.name)]
            assert all(requirement.specifier.contains(version) for version in versions), text
    assert spark.items() <= test.items(), "what `test` installs is what `spark` would"
