"""`headrace check`, `dump`, `backup` and `restore`: tools for a data directory nobody serves.

Each prints for people by default and one JSON document with `--json`; a bar on stderr shows how far
long work is, when stderr is a terminal.  Exit code 0 means that all is well, 1 that it is not.
Nothing heavy is imported before a verb runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.cli.options import Verb, print_json, settings_of
from headrace.cli.progress import ProgressBar
from headrace.core import config
from headrace.core.clock import SystemClock, SystemRandom
from headrace.core.errors import ConfigError, DataDirLocked, InvalidRequest, NotReady
from headrace.core.settings import RULES, Settings
from headrace.storage.fs import Filesystem, RealFilesystem

if TYPE_CHECKING:
    from headrace.storage.files.store import Store
    from headrace.storage.tools.findings import Report

EXIT_DAMAGED = 1
PLACES = "a directory, s3://bucket/prefix or gs://bucket/prefix"


@contextlib.contextmanager
def _progress() -> Iterator[ProgressBar]:
    bar = ProgressBar(sys.stderr, SystemClock(), shown=sys.stderr.isatty())
    try:
        yield bar
    except OSError as error:
        raise NotReady(
            f"{error.filename or 'a file'}: {error.strerror or error}",
            fix="check the disk, its room and the permissions, then run this again",
            detail={"errno": error.errno},
        ) from error
    finally:
        bar.clear()


def _add_place(parser: argparse.ArgumentParser) -> None:
    """The few settings that say where data is; each is also a HEADRACE_* variable."""
    parser.set_defaults(**{f"setting_{name}": None for name in RULES})
    parser.add_argument("--config", metavar="FILE", help="a TOML file of settings")
    for name in ("data_dir", "cold_url"):
        rule = RULES[name]
        parser.add_argument(
            config.flag_of(name), dest=f"setting_{name}", metavar="PLACE", help=rule.doc
        )


def _open(options: argparse.Namespace) -> tuple[Settings, Filesystem, Store | None]:
    """The settings, the data directory and its cold tier."""
    from headrace.storage.files.store import open_store

    settings = settings_of(options).settings
    cold = open_store(settings.cold_url) if settings.cold_url else None
    return settings, RealFilesystem(settings.data_dir), cold


# check


def _check_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repair", action="store_true", help="mend what can be mended; old files become *.broken"
    )
    _add_place(parser)


def _check(options: argparse.Namespace) -> int:
    import msgspec

    from headrace.storage.tools.check import check
    from headrace.storage.tools.examination import lock_directory
    from headrace.storage.tools.repair import repair

    _, fs, cold = _open(options)
    lock = lock_directory(fs, "check")
    try:
        with _progress() as progress:
            run = repair if options.repair else check
            report = run(fs, cold, progress)
    finally:
        lock.release()
    if options.json:
        print_json({**msgspec.to_builtins(report), "ok": report.ok})
    else:
        _print_report(report)
    return 0 if report.ok else EXIT_DAMAGED


def _print_report(report: Report) -> None:
    for finding in report.findings:
        print(finding)
    if report.repaired and report.left:
        print("after the repair:")
        for finding in report.left:
            print(finding)
    read = f"{report.files} files, {report.bytes:,} bytes, {report.topics} topics, "
    read += f"{report.records} sealed records, {report.batches} log batches"
    left = report.left if report.repaired else report.findings
    errors = sum(finding.severity == "error" for finding in left)
    if not errors:
        print(f"ok: {report.directory}: {read}")
    else:
        print(f"{errors} error{'s' if errors > 1 else ''}: {report.directory}: {read}")


# dump


def _dump_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="relative to the data directory; default: all"
    )
    parser.add_argument("--topic", metavar="NAME", help="only what is about this topic")
    parser.add_argument("--records", action="store_true", help="every record too")
    _add_place(parser)


def _dump(options: argparse.Namespace) -> int:
    from headrace.storage.tools.dump import dump

    settings, fs, cold = _open(options)
    if not any(fs.exists(name) for name in ("meta", "wal", "segments")):
        raise InvalidRequest(
            f"{settings.data_dir} is not a data directory", fix="name one with --data-dir"
        )
    lines = dump(fs, options.files, topic=options.topic, records=options.records, cold=cold)
    before = "[" if options.json else ""
    for line in lines:
        print(before + json.dumps(line, ensure_ascii=False), end="" if options.json else "\n")
        before = ",\n" if options.json else ""
    if options.json:
        print("]" if before != "[" else "[]")
    return 0


# backup and restore


def _backup_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help=PLACES)
    parser.add_argument(
        "--replace", action="store_true", help="even if TARGET holds another directory's backup"
    )
    _add_place(parser)


def _backup(options: argparse.Namespace) -> int:
    import msgspec

    from headrace.storage.tools.backup import freeze_directory, write_backup
    from headrace.storage.tools.examination import lock_directory

    _, fs, cold = _open(options)
    try:
        lock = lock_directory(fs, "back up")
    except DataDirLocked as error:
        raise DataDirLocked(
            error.message,
            fix="stop that process first; a program that has the engine open can call "
            "`engine.backup(target)` itself",
            detail=error.detail,
        ) from None
    try:
        with _progress() as progress:
            target = _store(options.target)
            frozen = freeze_directory(fs, cold)
            report = write_backup(frozen, target, SystemClock(), progress, replace=options.replace)
    finally:
        lock.release()
    if options.json:
        print_json(msgspec.to_builtins(report))
    else:
        print(
            f"backed up {report.topics} topics to {report.target}: {report.files} files, "
            f"{report.bytes:,} bytes, of which {report.files_copied} files, "
            f"{report.bytes_copied:,} bytes were new"
        )
    return 0


def _restore_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help=f"a backup: {PLACES}")
    _add_place(parser)


def _restore(options: argparse.Namespace) -> int:
    import msgspec

    from headrace.storage.tools.restore import restore

    settings, fs, _ = _open(options)
    source = _store(options.source, must_exist=True)
    with _progress() as progress:
        report = restore(source, fs, SystemRandom(), SystemClock(), progress)
    if options.json:
        print_json(msgspec.to_builtins(report))
    else:
        print(
            f"restored {report.topics} topics to {settings.data_dir}: {report.files} files, "
            f"{report.bytes:,} bytes; every topic has a new epoch"
        )
    return 0


def _store(place: str, *, must_exist: bool = False) -> Store:
    """The place of a backup."""
    from headrace.storage.files.store import open_store
    from headrace.storage.files.store_role import redact_url

    if must_exist and "://" not in place and not RealFilesystem(place).exists(""):
        raise InvalidRequest(f"{place} does not exist", fix="name the target of a backup")
    try:
        return open_store(place)
    except ConfigError as error:
        raise ConfigError(
            f"{redact_url(place)!r} cannot hold a backup: {error.message.rpartition(': ')[2]}",
            fix=f"name {PLACES}",
        ) from None


VERBS = (
    Verb(("check",), "verify every checksum of a data directory", _check_arguments, _check),
    Verb(("dump",), "print what files hold, as JSON lines", _dump_arguments, _dump),
    Verb(("backup",), "copy a data directory to another place", _backup_arguments, _backup),
    Verb(("restore",), "fill an empty directory from a backup", _restore_arguments, _restore),
)
