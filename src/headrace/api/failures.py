"""The form of every refusal; core/errors.py has the codes."""

from __future__ import annotations

import msgspec


class ErrorBody(msgspec.Struct, frozen=True):
    """What went wrong, and what to do next."""

    code: str
    message: str = ""
    detail: dict[str, object] = {}


class ErrorAnswer(msgspec.Struct, frozen=True):
    """Every refusal has this form."""

    error: ErrorBody
