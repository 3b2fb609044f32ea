"""Errors that outlive the call that raised them, without the frames that they came through.

A frame refers to everything that its function did, a request's body say, and mostly to whatever the
error is kept in: a circle, and circles are collected very rarely here.  So an error that enters a
ticket, leaves a lane or becomes an answer goes through `without_frames`.
"""

from __future__ import annotations

import traceback
from typing import TypeVar

from headrace.core.errors import HeadraceError

E = TypeVar("E", bound=BaseException)


def without_frames(error: E) -> E:
    """Return the error without its frames and without the errors that it was raised among.

    One of ours says in words what is wrong, and a lack of memory is no place for more text.  Any
    other has its trace added to it as text, for the log.

    >>> try:
    ...     1 / 0
    ... except ZeroDivisionError as error:
    ...     caught = without_frames(error)
    >>> caught.__traceback__ is None, "1 / 0" in caught.__notes__[0]
    (True, True)
    """
    if error.__traceback__ is not None:
        if not isinstance(error, HeadraceError | MemoryError) and not has_trace(error):
            error.add_note("".join(traceback.format_exception(error)))
        error.__traceback__ = None
    error.__context__ = None
    # A cause is kept: it is what the error is about.
    cause = error.__cause__
    if cause is not None:
        error.__cause__ = None  # so that a chain that comes back to itself ends here
        error.__cause__ = without_frames(cause)
    return error


def has_trace(error: BaseException) -> bool:
    """Whether the error carries its trace as text."""
    return any("Traceback" in note for note in getattr(error, "__notes__", ()))
