"""What the verbs of the command line share: the table row, settings, the server, output.

Cheap to import: a verb's own module imports what it needs when it runs.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from headrace.core import config
from headrace.core.errors import ConfigError
from headrace.core.settings import DEFAULTS, RULES
from headrace.storage.fs import RealFilesystem, read_file

URL_VARIABLE = "HEADRACE_URL"
TOKEN_VARIABLE = "HEADRACE_TOKEN"
# One name of 600 bytes must not push the other columns of every row out of sight.
CELL_WIDTH_MAX = 60


class Verb(NamedTuple):
    """One command: `words` are what is typed, `run` returns the exit code."""

    words: tuple[str, ...]
    summary: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add_settings(parser: argparse.ArgumentParser) -> None:
    """A flag for each setting, and `--config`; `settings_of` reads them."""
    group = parser.add_argument_group("settings", "each is also a HEADRACE_* variable")
    group.add_argument("--config", metavar="FILE", help="a TOML file of settings")
    for name, rule in RULES.items():
        group.add_argument(
            config.flag_of(name),
            dest=f"setting_{name}",
            metavar=rule.kind.upper(),
            help=f"{rule.doc} (default: {config.show_value(name, DEFAULTS[name])})",
        )


def settings_of(options: argparse.Namespace) -> config.Configuration:
    """The settings of a verb whose arguments came from `add_settings`."""
    flags = {
        name: value for name in RULES if (value := getattr(options, f"setting_{name}")) is not None
    }
    return config.load(flags, os.environ, _config_file(options.config))


def _config_file(path: str | None) -> tuple[str, str] | None:
    return None if path is None else (path, read_text(path, fix="name a TOML file"))


def read_text(path: str, *, fix: str) -> str:
    """What a file holds; `ConfigError` if it cannot be read."""
    directory, name = os.path.split(path)
    try:
        return read_file(RealFilesystem(directory), name).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", fix=fix) from None


class ServerAddress(NamedTuple):
    """The server that a verb speaks to.  The token is never shown."""

    url: str
    token: str | None
    ca_file: str | None = None

    def __repr__(self) -> str:
        return f"ServerAddress({self.url!r})"


def add_server(parser: argparse.ArgumentParser) -> None:
    """Which server, for every verb that speaks to one; `server_of` reads it."""
    parser.add_argument(
        "--url", help=f"the server; else ${URL_VARIABLE}, else {default_url()}", metavar="URL"
    )
    # A key among the arguments would be seen by everybody who lists processes.
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help=f"a file that holds the API key; else ${TOKEN_VARIABLE}",
    )
    parser.add_argument(
        "--ca-file",
        metavar="FILE",
        help="certificates to trust, for https with a private authority",
    )


def server_of(options: argparse.Namespace) -> ServerAddress:
    """The server of a verb whose arguments came from `add_server`."""
    url = options.url or os.environ.get(URL_VARIABLE) or default_url()
    token = os.environ.get(TOKEN_VARIABLE) or None
    if options.token_file is not None:
        token = read_text(options.token_file, fix="name a file that holds an API key").strip()
    return ServerAddress(url, token, options.ca_file)


def default_url() -> str:
    return f"http://{DEFAULTS['host']}:{DEFAULTS['port']}"


def print_json(document: object) -> None:
    """One JSON document, on one line."""
    print(json.dumps(document, ensure_ascii=False))


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Columns wide enough for their widest cell, up to a point; the first row is the heading."""
    widths = [min(CELL_WIDTH_MAX, max(map(len, column))) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(n) for cell, n in zip(row, widths, strict=True)).rstrip())


def check_delta(otherwise: str = "") -> None:
    """Refuse to go on without Delta; `otherwise`: what else would help than installing it."""
    try:
        import deltalake  # noqa: F401 - whether it can be
    except ImportError:
        raise ConfigError(
            "what the lake needs is not installed", fix=f"pip install 'headrace[lake]'{otherwise}"
        ) from None
