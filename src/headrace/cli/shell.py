"""The shell of `headrace sql`: statements typed on a terminal, with a history.

A statement goes on over lines until its semicolon.  An error or Ctrl-C ends the statement, not the
shell; Ctrl-D and `\\q` end the shell.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from headrace.cli.rows import print_cells
from headrace.cli.statements import split_statements
from headrace.core.errors import HeadraceError, InvalidRequest
from headrace.storage.fs import RealFilesystem

if TYPE_CHECKING:
    from headrace.client import Client
    from headrace.spark.options import Connection

PROMPT = "headrace> "
PROMPT_MORE = "       -> "
HISTORY_LINES_MAX = 2_000
STATEMENT_CHARACTERS_MAX = 1 << 20
TOPICS_LISTED_MAX = 1_000
HELP = """\
select ... ;   runs when a semicolon ends it; every topic is a table, odd names in `backticks`
\\topics        the topics of the server
\\d TOPIC       a topic's columns and state
\\?             this text
\\q             leave, as Ctrl-D does; Ctrl-C cancels a statement"""
COLUMNS = """\
topic STRING, seq BIGINT, ts TIMESTAMP, node STRING, tag STRING
meta VARIANT   as data:  meta:source::string
data VARIANT   the record, if it is JSON:  data:price::double, data:items[0].name::string
raw BINARY     the record as it was written"""


class Shell:
    """Reads what is typed, and has it run."""

    def __init__(
        self,
        run: Callable[[str], None],
        connection: Connection,
        read_line: Callable[[str], str] = input,
    ) -> None:
        self._run = run
        self._connection = connection
        self._read_line = read_line

    def run(self) -> int:
        """Until the end of input or `\\q`; returns the exit code."""
        history = _History()
        history.load()
        print("Statements end with ;  \\? is help, \\q leaves.", file=sys.stderr)
        try:
            while self._turn():
                pass
        except EOFError:
            print(file=sys.stderr)
        finally:
            history.save()
        return 0

    def _turn(self) -> bool:
        """Read and run one thing; False: it was the last."""
        try:
            text = self._read_line(PROMPT).strip()
            if text.startswith("\\"):
                return self._command(text)
            statements, rest = split_statements(text)
            while rest:
                if len(text) > STATEMENT_CHARACTERS_MAX:
                    raise InvalidRequest(
                        f"the statement is longer than {STATEMENT_CHARACTERS_MAX} characters",
                        fix="close its quote or end it with a semicolon; nothing was run",
                    )
                text += "\n" + self._read_line(PROMPT_MORE)
                statements, rest = split_statements(text)
            for statement in statements:
                self._run(statement)
        except KeyboardInterrupt:
            print("\ncancelled", file=sys.stderr)
        except HeadraceError as error:
            print(f"headrace: {error}", file=sys.stderr)
        sys.stdout.flush()
        return True

    def _command(self, text: str) -> bool:
        from headrace.spark.connection import connect

        word, _, argument = text.partition(" ")
        if word == "\\q":
            return False
        if word == "\\topics":
            with connect(self._connection) as client:
                _list_topics(client)
        elif word == "\\d" and argument.strip():
            with connect(self._connection) as client:
                _describe(client, argument.strip().rstrip(";").strip("`"))
        else:
            print(HELP, file=sys.stderr)
        return True


def _list_topics(client: Client) -> None:
    topics = client.topics()
    columns = [("topic", "string"), ("records", "bigint"), ("head_seq", "bigint")]
    rows = [
        (topic.topic, str(topic.count), str(topic.head_seq))
        for topic in islice(topics, TOPICS_LISTED_MAX)
    ]
    print_cells(columns, rows)
    if next(topics, None) is not None:
        print(f"headrace: only the first {TOPICS_LISTED_MAX} topics are shown", file=sys.stderr)


def _describe(client: Client, name: str) -> None:
    state = client.topic(name, touch=False)
    print(
        f"{name}: {state.count} records, {state.bytes} bytes, seqs {state.earliest_seq} to "
        f"{state.head_seq}, epoch {state.epoch}"
    )
    print(COLUMNS)


class _History:
    """What was typed before, in a file of the user; where there is no readline, nothing."""

    def __init__(self) -> None:
        try:
            import readline
        except ImportError:
            self._readline = None
        else:
            self._readline = readline
        state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        self._directory = os.path.join(state, "headrace")
        self._path = os.path.join(self._directory, "sql_history")

    def load(self) -> None:
        if self._readline is None:
            return
        self._readline.set_history_length(HISTORY_LINES_MAX)
        try:
            self._readline.read_history_file(self._path)
        except OSError:
            return  # none yet

    def save(self) -> None:
        if self._readline is None:
            return
        try:
            RealFilesystem(self._directory).mkdir("")
            self._readline.write_history_file(self._path)
        except OSError as error:
            print(f"headrace: no history is kept: {error}", file=sys.stderr)
