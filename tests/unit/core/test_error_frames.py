"""Errors that are kept: no frames, no errors around them, and the trace of a bug as text."""

from __future__ import annotations

import os
import traceback

import pytest

from headrace.core.error_frames import has_trace, without_frames
from headrace.core.errors import InvalidRequest
from headrace.core.runtime import StepRuntime, Ticket, attempt


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
