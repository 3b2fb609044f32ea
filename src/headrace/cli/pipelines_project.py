"""`headrace pipelines project`: declared pipelines as a project of `spark-pipelines`, and its run.

What fits is decided by `pipelines/worker/declarative.py`; here it is written to a directory, where
files that somebody changed are left alone, and run with the Java and the Python that `headrace`
has.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import headrace
from headrace.cli.options import (
    TOKEN_VARIABLE,
    URL_VARIABLE,
    Verb,
    add_server,
    print_json,
    server_of,
)
from headrace.cli.talking import client_of
from headrace.core.errors import ConfigError, Internal, InvalidRequest, PipelineNotFound
from headrace.storage.fs import RealFilesystem, parent, read_file, write_file_durably

if TYPE_CHECKING:
    from headrace.api.pipelines import Declaration
    from headrace.cli.options import ServerAddress
    from headrace.pipelines.worker.declarative import Misfit, Project

SCRIPT = "spark-pipelines"


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="the pipelines")
    parser.add_argument(
        "--all", action="store_true", help="every pipeline that fits; the others are named"
    )
    parser.add_argument("--to", required=True, metavar="DIR", help="where the project goes")
    parser.add_argument(
        "--sinks",
        action="store_true",
        help="append results to their topics as well, and not only to tables",
    )
    parser.add_argument(
        "--replace", action="store_true", help="replace what an earlier project left in DIR"
    )
    parser.add_argument(
        "--run", action="store_true", dest="run_it", help="run it, too: once, up to now"
    )
    add_server(parser)


def _project(options: argparse.Namespace) -> int:
    from headrace.pipelines.worker.declarative import fit, project_of
    from headrace.spark.options import Connection

    if bool(options.names) == options.all:
        raise ConfigError("which pipelines is not clear", fix="name some, or use --all")
    server = server_of(options)
    fitted, misfits = fit(_declared(options), sinks=options.sinks)
    if misfits and not options.all:
        raise InvalidRequest(f"{misfits[0].pipeline!r}: {misfits[0].why}", fix=misfits[0].fix)
    if not fitted:
        raise InvalidRequest("there is no pipeline that fits", fix="see why: name one")
    directory = os.path.abspath(options.to)
    name = os.path.basename(directory) or "headrace"
    connection = Connection(server.url, server.token, server.ca_file)
    project = project_of(name, fitted, connection, directory)
    written = write(project.files, directory, replace=options.replace)
    started = start_of(directory, os.environ, server) if options.run_it or _has_spark() else None
    if not options.json:
        _say(project, misfits, written, directory, started)
    if options.run_it:
        assert started is not None
        run(started, to_stderr=options.json)
    if options.json:
        _print(project, misfits, written, directory, started, ran=options.run_it)
    return 0


def _declared(options: argparse.Namespace) -> dict[str, Declaration]:
    import msgspec

    from headrace.api.pipelines import Declaration

    with client_of(options) as client:
        names = options.names or [one.pipeline for one in client.pipelines("")]
        if not names:
            raise PipelineNotFound("there are no pipelines", fix="declare one first")
        found = {name: client.pipeline(name).declaration for name in names}
    return {name: msgspec.convert(one, Declaration) for name, one in found.items()}


# Files


def write(files: Mapping[str, str], directory: str, *, replace: bool) -> list[str]:
    """Write what is not there yet; the paths that were. Files that differ are replaced if asked."""
    from headrace.pipelines.worker.declarative import DEFINITIONS

    fs = RealFilesystem(directory)
    changed = [path for path, text in files.items() if not _holds(fs, path, text)]
    stale = [path for path in _own_queries(fs, DEFINITIONS) if path not in files]
    in_the_way = [*(path for path in changed if fs.exists(path)), *stale]
    if in_the_way and not replace:
        raise ConfigError(
            f"{os.path.join(directory, in_the_way[0])} is of another project, or was changed",
            fix="choose another directory, or add --replace",
        )
    for path in changed:
        fs.mkdir(parent(path))
        write_file_durably(fs, path, [files[path].encode()])
    for path in stale:
        fs.unlink(path)
    return changed


def _holds(fs: RealFilesystem, path: str, text: str) -> bool:
    return fs.exists(path) and read_file(fs, path) == text.encode()


def _own_queries(fs: RealFilesystem, directory: str) -> list[str]:
    """Queries that an earlier project wrote: another run would take them for its own."""
    from headrace.pipelines.worker.declarative import QUERY_MARK

    paths = [f"{directory}/{name}" for name in fs.listdir(directory) if name.endswith(".sql")]
    return [path for path in paths if read_file(fs, path).startswith(QUERY_MARK.encode())]


# The run


class Start(NamedTuple):
    """How a project is run: what is added to the environment, the words, and where."""

    variables: dict[str, str]
    secrets: dict[str, str]  # the same, and not to be shown
    words: list[str]
    directory: str

    def shown(self) -> str:
        """As it can be typed into a shell."""
        given = [f"{name}={shlex.quote(value)}" for name, value in self.variables.items()]
        given = ["env", *given] if given else []
        return f"cd {shlex.quote(self.directory)} && {' '.join([*given, shlex.join(self.words)])}"


def _has_spark() -> bool:
    return importlib.util.find_spec("pyspark") is not None


def start_of(directory: str, environ: Mapping[str, str], server: ServerAddress) -> Start:
    """The command that runs the project with our Java and our Python."""
    from headrace.pipelines.worker.declarative import SETTINGS, SPEC
    from headrace.spark.java import find_java

    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None or importlib.util.find_spec("yaml") is None:
        raise ConfigError(
            "what spark-pipelines needs is not installed", fix="pip install 'headrace[spark]'"
        )
    home = os.path.dirname(spec.origin)
    given = dict(environ)
    find_java(given)
    given.setdefault("PYSPARK_PYTHON", sys.executable)
    given["SPARK_HOME"] = home
    given.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    given[URL_VARIABLE] = server.url
    given["PYTHONPATH"] = _python_path(environ.get("PYTHONPATH", ""))
    given.setdefault("SPARK_CONF_DIR", os.path.join(directory, SETTINGS))
    variables = {name: value for name, value in given.items() if environ.get(name) != value}
    secrets = {} if server.token is None else {TOKEN_VARIABLE: server.token}
    words = [os.path.join(home, "bin", SCRIPT), "run", "--spec", SPEC]
    return Start(variables, secrets, words, directory)


def _python_path(before: str) -> str:
    """So that our package is found from the project's directory, where Spark looks for sources."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(headrace.__file__)))
    paths = [os.path.abspath(path) for path in before.split(os.pathsep) if path]
    return os.pathsep.join(dict.fromkeys([package, *paths]))


def run(started: Start, *, to_stderr: bool) -> None:
    """Run it, its output going where ours does; an error if it does not end well."""
    done = subprocess.run(
        started.words,
        cwd=started.directory,
        env={**os.environ, **started.variables, **started.secrets},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if to_stderr else None,
    )
    if done.returncode != 0:
        raise Internal(
            f"{SCRIPT} ended with {done.returncode}", fix="see what it printed above this line"
        )


# What is printed


def _say(
    project: Project,
    misfits: list[Misfit],
    written: list[str],
    directory: str,
    started: Start | None,
) -> None:
    for one in project.fitted:
        kind = "materialized view" if one.replaces else "streaming table"
        topic = "" if one.columns is None else f" and the topic {one.declaration.dest.topic}"
        print(f"{one.pipeline}: the {kind} {one.table}{topic}")
    for misfit in misfits:
        print(f"left out {misfit.pipeline}: {misfit.why}; {misfit.fix}")
    for note in project.notes:
        print(f"note: {note}")
    print(f"{len(written)} of {len(project.files)} files written to {directory}")
    if started is not None:
        print(f"run it: {started.shown()}", flush=True)


def _print(
    project: Project,
    misfits: list[Misfit],
    written: list[str],
    directory: str,
    started: Start | None,
    *,
    ran: bool,
) -> None:
    tables = [
        {
            "pipeline": one.pipeline,
            "table": one.table,
            "kind": "materialized_view" if one.replaces else "streaming_table",
            "topic": None if one.columns is None else one.declaration.dest.topic,
        }
        for one in project.fitted
    ]
    print_json(
        {
            "directory": directory,
            "files": sorted(project.files),
            "written": sorted(written),
            "pipelines": tables,
            "left_out": [misfit._asdict() for misfit in misfits],
            "notes": project.notes,
            "command": None if started is None else started.shown(),
            "ran": ran,
        }
    )


VERBS = (
    Verb(
        ("pipelines", "project"),
        "write pipelines as a project of spark-pipelines",
        _arguments,
        _project,
    ),
)
