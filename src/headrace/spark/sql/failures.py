"""What went wrong in Spark, as one of our errors in one sentence instead of pages of traces.

An error that our own code raised in a worker or in the planner comes back as the text of its
traceback: its message is found there.
"""

from __future__ import annotations

import re

from pyspark.errors import AnalysisException, ParseException, PySparkException

from headrace.core import errors
from headrace.core.errors import HeadraceError, Internal, InvalidRequest, NotReady

MESSAGE_CHARACTERS_MAX = 600
# What Spark says of a file that was there when a statement was planned.
FILE_GONE = "FAILED_READ_FILE.FILE_NOT_EXIST"
# The last line of a Python traceback about one of ours.
_OURS = re.compile(r"^(?:\w+Error: )?headrace\.[\w.]*\.(\w+): (.+)$", re.MULTILINE)
# How Spark begins a message: [DIVIDE_BY_ZERO] Division by zero. ... SQLSTATE: 22012
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_.]+)\] ?(.+?)(?= SQLSTATE: |\n|$)", re.DOTALL)
_POSITION = re.compile(r"line (\d+),? pos (\d+)")
_PYTHON = re.compile(r"^(\w[\w.]*(?:Error|Exception)): (.+)$", re.MULTILINE)


def explained(error: Exception) -> HeadraceError:
    """The error to show for whatever Spark raised."""
    if isinstance(error, HeadraceError):
        return error
    text = str(error)
    ours = ours_within(text)
    if ours is not None:
        return ours
    message = sentence(text) or type(error).__name__
    if FILE_GONE in text:
        return file_gone(message)
    if isinstance(error, ParseException | AnalysisException):
        return InvalidRequest(message)
    if isinstance(error, PySparkException) and (error.getSqlState() or "")[:2] in ("22", "42"):
        return InvalidRequest(message)
    return Internal(f"Spark failed: {message}")


def file_gone(message: str) -> NotReady:
    """A file went while a statement ran: nothing but a vacuum of the lake does that."""
    return NotReady(
        message,
        fix="run the statement again; `lake vacuum --keep` is how long files stay for statements"
        " that began before",
    )


def ours_within(text: str) -> HeadraceError | None:
    """The error of ours that a traceback ends with, if there is one.

    >>> ours_within("Traceback ...\\nheadrace.core.errors.TopicNotFound: topic 'a' does not exist")
    TopicNotFound("topic 'a' does not exist")
    """
    found = _OURS.findall(text)
    if not found:
        return None
    name, message = found[-1]
    kind = getattr(errors, name, Internal)
    if not (isinstance(kind, type) and issubclass(kind, HeadraceError)):
        kind = Internal
    return kind(message.strip())


def sentence(text: str) -> str:
    """The part of a message that says what is wrong, on one line, with the place if it has one.

    >>> sentence("[PARSE_SYNTAX_ERROR] Error at 'x'. SQLSTATE: 42601 (line 1, pos 7)")
    "line 1, column 8: Error at 'x'."
    >>> sentence("Job aborted: Lost task\\njava.lang.X: [DIVIDE_BY_ZERO] Division by zero. Use ...")
    'Division by zero. Use ...'
    >>> sentence("File x, line 3\\nValueError: no such thing\\n\\tat org.apache.spark")
    'ValueError: no such thing'
    """
    found = _CONDITION.search(text)
    python = _PYTHON.findall(text)
    if found is not None:
        message = found[2]
    elif python:
        message = ": ".join(python[-1])
    else:
        message = text.strip().partition("\n")[0]
    message = " ".join(message.split())
    if len(message) > MESSAGE_CHARACTERS_MAX:
        message = message[:MESSAGE_CHARACTERS_MAX] + " ..."
    place = _POSITION.search(text)
    if place is not None:
        # Spark counts columns from 0, people and editors from 1.
        message = f"line {place[1]}, column {int(place[2]) + 1}: {message}"
    return message
