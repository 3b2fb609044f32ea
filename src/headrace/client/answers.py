"""Answers of the server: values, or errors of core/errors.py.

Only this file turns an error body into an exception: the `code` picks the class, message and detail
are kept.  A code that this version does not know becomes `ClientError` or `ServerError` by its
status, with the code in the detail.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from headrace.api.failures import ErrorAnswer
from headrace.client.message import Response
from headrace.core import errors
from headrace.core.errors import HeadraceError, Unreachable

T = TypeVar("T")

ERRORS: dict[str, type[HeadraceError]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, HeadraceError) and "code" in vars(kind)
}
# The base class has a code of its own, as the last resort of the server.
ERRORS["internal"] = errors.Internal


_decode_failure = msgspec.json.Decoder(ErrorAnswer).decode


_decoders: dict[object, msgspec.json.Decoder[Any]] = {}  # one for each type of answer


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    found = _decoders.get(kind)
    if found is None:
        found = _decoders[kind] = msgspec.json.Decoder(kind)
    return found


def value(response: Response, kind: type[T]) -> T:
    """The body of a successful answer."""
    try:
        return _decoder(kind).decode(response.body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Unreachable(
            f"the answer is not what this version expects: {error}",
            fix="check that the address is of a Headrace server, and that it is not newer",
            detail={"outcome": "unknown", "status": response.status},
        ) from None


def failure(response: Response) -> HeadraceError:
    """The error of an answer that is not 2xx.

    >>> body = b'{"error":{"code":"topic_not_found","message":"none","detail":{"topic":"a"}}}'
    >>> error = failure(Response(404, {}, body, True))
    >>> type(error).__name__, error.detail
    ('TopicNotFound', {'topic': 'a'})
    """
    try:
        error = _decode_failure(response.body).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _foreign(response)
    kind = ERRORS.get(error.code)
    if kind is not None:
        return kind(error.message, detail=error.detail)
    base = errors.ClientError if response.status < 500 else errors.ServerError
    return base(error.message or error.code, detail={**error.detail, "code": error.code})


def _foreign(response: Response) -> HeadraceError:
    """An error that is not in the form of our server: a proxy's, most likely."""
    text = response.body[:200].decode("latin-1")
    message = f"status {response.status}, without an error that this client knows: {text!r}"
    detail = {"status": response.status}
    if response.status == 429:
        return errors.Throttled(message, detail=detail)
    if response.status in (502, 503, 504):
        # A gateway does not say whether it had passed the request on.
        return Unreachable(message, fix="try later", detail={**detail, "outcome": "unknown"})
    if response.status < 500:
        return errors.ClientError(message, detail=detail)
    return errors.ServerError(message, detail=detail)
