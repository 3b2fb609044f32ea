"""Errors that are kept: no frames, no errors around them, and the trace of a bug as text."""

from __future__ import annotations

import ast
import os
import traceback

import pytest

from headrace.core.error_frames import has_trace, without_frames
from headrace.core.errors import InvalidRequest
from headrace.core.runtime import StepRuntime, Ticket, attempt
from tests.support.checkout import ROOT

PACKAGE = ROOT / "src" / "headrace"


def refuse() -> None:
    try:
        b"\xff".decode()
    except UnicodeDecodeError:
        raise InvalidRequest("not text", fix="send text") from None


def refuse_because() -> None:
    try:
        os.stat("/no/such/file")
    except OSError as error:
        raise InvalidRequest("no file", fix="send one") from error


def divide() -> None:
    1 // 0  # noqa: B018


def test_an_error_of_ours_is_its_words_only() -> None:
    _, error = attempt(refuse)
    assert isinstance(error, InvalidRequest)
    # What it was raised among holds the body that could not be decoded.
    assert (error.__traceback__, error.__context__, error.__cause__) == (None, None, None)
    assert not has_trace(error)


def test_a_cause_is_kept_without_its_frames() -> None:
    _, error = attempt(refuse_because)
    assert error is not None
    assert isinstance(error.__cause__, FileNotFoundError)
    assert error.__cause__.__traceback__ is None and error.__context__ is None


def test_the_trace_of_a_bug_is_kept_as_text_once() -> None:
    _, error = attempt(divide)
    assert error is not None and error.__traceback__ is None
    said = "".join(traceback.format_exception(error))
    assert "in divide" in said
    ticket: Ticket[int] = Ticket(StepRuntime())
    ticket.fail(error)
    with pytest.raises(ZeroDivisionError):
        ticket.result()
    assert error.__traceback__ is not None  # of the caller, as of any error
    assert len(without_frames(error).__notes__) == 1


def test_a_lack_of_memory_gets_no_text() -> None:
    def too_much() -> object:
        raise MemoryError

    _, error = attempt(too_much)
    assert isinstance(error, MemoryError) and not has_trace(error)


def test_a_chain_that_comes_back_to_itself_ends() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert without_frames(one).__cause__ is two


# Where an error would leave its handler with its frames

SERVING = ("core", "engine", "metrics", "server", "storage", "wire")


def kept_with_frames(source: str) -> list[int]:
    """The lines on which a handler returns its error, or keeps it in an attribute, as it is."""
    lines = []
    for handler in ast.walk(ast.parse(source)):
        if not isinstance(handler, ast.ExceptHandler) or handler.name is None:
            continue
        for node in ast.walk(handler):
            leaves = isinstance(node, ast.Return) or (
                isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute)
            )
            if leaves and isinstance(node.value, ast.Name) and node.value.id == handler.name:
                lines.append(node.lineno)
    return lines


def test_the_look_for_kept_errors_sees_both_ways_to_keep_one() -> None:
    handler = "try:\n    f()\nexcept OSError as error:\n    {}\n"
    for leaves in ("self.error = error", "x.y = error"):
        assert kept_with_frames(handler.format(leaves)) == [4]
    returns = (
        "def g():\n    try:\n        f()\n    except OSError as error:\n        return error\n"
    )
    assert kept_with_frames(returns) == [5]
    for passes in ("self.error = without_frames(error)", "raise error", "other = error"):
        assert kept_with_frames(handler.format(passes)) == []


@pytest.mark.parametrize("package", SERVING)
def test_no_handler_of_a_server_keeps_its_error_with_the_frames(package: str) -> None:
    """The frame of a caller that keeps the error is among its frames: a circle (`f_back`)."""
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted((PACKAGE / package).rglob("*.py"))
        for line in kept_with_frames(path.read_text())
    ]
    assert not found, f"keep `without_frames(error)` instead: {found}"
