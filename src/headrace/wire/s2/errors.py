"""Refusals in the form of S2: a code with its one status, and the exact body that tells of it.

Only this file knows which code has which status, which code an error of the engine has here, and
what a body looks like.  Answers, SSE error events and terminal frames carry the same bodies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from headrace.core.errors import (
    BatchTooLarge,
    ConfigError,
    CorruptionError,
    EpochMismatch,
    FenceMismatch,
    Forbidden,
    HeadersTooLarge,
    HeadMismatch,
    HeadraceError,
    InvalidRequest,
    LakeUnavailable,
    MethodNotAllowed,
    NotAcceptable,
    NotFound,
    NotReady,
    OutOfResources,
    PayloadTooLarge,
    RecordTooLarge,
    RequestTimeout,
    ServerError,
    ShuttingDown,
    StreamClosed,
    StreamConflict,
    StreamDeleted,
    Throttled,
    TopicExistsIncompatible,
    TopicFull,
    TopicNotFound,
    Unauthorized,
    UnsupportedMediaType,
)

# Every code of the API and its status; clients retry a code only with exactly this status.
STATUSES: Final[dict[str, int]] = {
    "bad_header": 400,
    "bad_path": 400,
    "bad_query": 400,
    "bad_json": 400,
    "bad_proto": 400,
    "bad_frame": 400,
    "decryption_failed": 400,
    "authn": 401,
    "permission_denied": 403,
    "quota_exhausted": 403,
    "access_token_not_found": 404,
    "basin_not_found": 404,
    "stream_not_found": 404,
    "request_timeout": 408,
    "basin_deletion_pending": 409,
    "resource_already_exists": 409,
    "stream_deletion_pending": 409,
    "transaction_conflict": 409,
    "invalid": 422,
    "rate_limited": 429,
    "client_hangup": 499,
    "other": 500,
    "storage": 500,
    "not_implemented": 501,
    "hot_server": 502,
    "unavailable": 503,
    "server_draining": 503,
    "upstream_timeout": 504,
}
RETRYABLE: Final = frozenset(
    {
        "request_timeout",
        "transaction_conflict",
        "rate_limited",
        "other",
        "storage",
        "hot_server",
        "unavailable",
        "server_draining",
        "upstream_timeout",
    }
)
PRECONDITION_FAILED: Final = 412
RANGE_NOT_SATISFIABLE: Final = 416

# What an error of the engine or the server is here.  What is in no row is told by its base.
_CODES: Final[dict[type[HeadraceError], str]] = {
    InvalidRequest: "invalid",
    ConfigError: "invalid",
    BatchTooLarge: "invalid",
    RecordTooLarge: "invalid",
    PayloadTooLarge: "invalid",
    UnsupportedMediaType: "bad_json",
    NotAcceptable: "bad_header",
    HeadersTooLarge: "bad_header",
    Unauthorized: "authn",
    Forbidden: "permission_denied",
    TopicNotFound: "stream_not_found",
    RequestTimeout: "request_timeout",
    StreamDeleted: "stream_deletion_pending",
    StreamClosed: "stream_deletion_pending",
    StreamConflict: "resource_already_exists",
    TopicExistsIncompatible: "resource_already_exists",
    EpochMismatch: "transaction_conflict",
    TopicFull: "quota_exhausted",
    Throttled: "rate_limited",
    ShuttingDown: "server_draining",
    NotReady: "unavailable",
    LakeUnavailable: "unavailable",
}
# What is said where the engine speaks of topics, which clients of this API do not know.
_WORDS: Final[dict[type[HeadraceError], str]] = {
    TopicNotFound: "the stream is not there any more",
    StreamDeleted: "the stream is being deleted",
    StreamClosed: "the stream is being deleted",
    TopicFull: "the stream is full",
}
_STREAM: Final = "stream"  # the detail of a refusal whose message names a stream


class S2Refusal(HeadraceError):
    """What the API refuses, or cannot do; each code is a subclass with its status."""


class RangeNotSatisfiable(S2Refusal):
    """A read starts at or behind the tail, and is not to wait there."""

    code = "range_not_satisfiable"
    status = RANGE_NOT_SATISFIABLE

    def __init__(self, seq_num: int, timestamp: int) -> None:
        super().__init__("the read starts at or behind the tail")
        self.seq_num = seq_num
        self.timestamp = timestamp


def _class_of(code: str, status: int) -> type[S2Refusal]:
    fields = {"code": code, "status": status, "retryable": code in RETRYABLE}
    return type(f"S2_{code}", (S2Refusal,), {"__doc__": f"The code {code}.", **fields})


REFUSALS: Final = {code: _class_of(code, status) for code, status in STATUSES.items()}


def refusal(code: str, message: str, *, stream: str = "") -> S2Refusal:
    """The refusal of this code; `stream` is the whole name of the stream that the message names.

    >>> refusal("rate_limited", "slow down").status
    429
    """
    return REFUSALS[code](message, detail={_STREAM: stream} if stream else None)


def shown_to(error: HeadraceError, shown: Callable[[str], str]) -> HeadraceError:
    """The same error, whose message has the name that a stream is `shown` by.

    >>> error = stream_not_found("my-basin", "team/orders")
    >>> str(shown_to(error, lambda name: name.removeprefix("team/")))
    "stream 'orders' in basin 'my-basin' not found"
    """
    name = error.detail.get(_STREAM)
    if not isinstance(error, S2Refusal) or not isinstance(name, str):
        return error
    return refusal(error.code, str(error).replace(repr(name), repr(shown(name))))


def unnamed(error: HeadraceError) -> HeadraceError:
    """The same error, without the name of a stream that is gone.

    >>> str(unnamed(stream_not_found("my-basin", "team/orders")))
    'the stream was deleted'
    """
    if _STREAM in error.detail and isinstance(error, S2Refusal):
        return refusal(error.code, "the stream was deleted")
    return error


def bad_header(message: str) -> S2Refusal:
    """A request header is missing, or has a value that it cannot have."""
    return refusal("bad_header", message)


def bad_path(message: str) -> S2Refusal:
    """A name in the path is none."""
    return refusal("bad_path", message)


def bad_query(message: str) -> S2Refusal:
    """A parameter of the query is missing, or has a value that it cannot have."""
    return refusal("bad_query", message)


def bad_json(message: str) -> S2Refusal:
    """The body is not JSON, or not of the type that this call takes."""
    return refusal("bad_json", message)


def bad_proto(message: str) -> S2Refusal:
    """The body is not the protobuf message that this call takes."""
    return refusal("bad_proto", message)


def bad_frame(message: str) -> S2Refusal:
    """A frame of a session cannot be read."""
    return refusal("bad_frame", message)


def decryption_failed(message: str) -> S2Refusal:
    """A record cannot be decrypted with the key of this request."""
    return refusal("decryption_failed", message)


def invalid(message: str) -> S2Refusal:
    """The request is well-formed, and asks for what cannot be."""
    return refusal("invalid", message)


def authn(message: str) -> S2Refusal:
    """Nobody is known by the token of this request."""
    return refusal("authn", message)


def permission_denied(message: str) -> S2Refusal:
    """The token of this request does not allow it."""
    return refusal("permission_denied", message)


def quota_exhausted(message: str) -> S2Refusal:
    """A count that an operator has set is reached."""
    return refusal("quota_exhausted", message)


def access_token_not_found(id: str) -> S2Refusal:
    """No access token has this id."""
    return refusal("access_token_not_found", f"access token {id!r} not found")


def basin_not_found(name: str) -> S2Refusal:
    """No basin has this name."""
    return refusal("basin_not_found", f"basin {name!r} not found")


def stream_not_found(basin: str, stream: str) -> S2Refusal:
    """No stream of the basin has this name.

    >>> str(stream_not_found("my-basin", "orders"))
    "stream 'orders' in basin 'my-basin' not found"
    """
    message = f"stream {stream!r} in basin {basin!r} not found"
    return refusal("stream_not_found", message, stream=stream)


def basin_deletion_pending(name: str) -> S2Refusal:
    """The basin is being deleted."""
    return refusal("basin_deletion_pending", f"basin {name!r} is being deleted")


def stream_deletion_pending(basin: str, stream: str) -> S2Refusal:
    """The stream is being deleted."""
    message = f"stream {stream!r} in basin {basin!r} is being deleted"
    return refusal("stream_deletion_pending", message, stream=stream)


def stream_already_exists(basin: str, stream: str) -> S2Refusal:
    """There is a stream of this name."""
    message = f"stream {stream!r} in basin {basin!r} already exists"
    return refusal("resource_already_exists", message, stream=stream)


def resource_already_exists(what: str) -> S2Refusal:
    """There is a basin or token of this name."""
    return refusal("resource_already_exists", f"{what} already exists")


def not_implemented(message: str) -> S2Refusal:
    """This server does not do that."""
    return refusal("not_implemented", message)


def unavailable(message: str) -> S2Refusal:
    """The outcome is unknown, or what served the call is gone."""
    return refusal("unavailable", message)


def server_draining(message: str) -> S2Refusal:
    """The server is about to stop, and has done nothing of this call."""
    return refusal("server_draining", message)


def failure_body(error: HeadraceError) -> tuple[int, bytes]:
    """The status and the exact body that tell of an error; a path or method unknown has none.

    >>> failure_body(bad_query("count is -1"))
    (400, b'{"code":"bad_query","message":"count is -1"}')
    >>> failure_body(HeadMismatch("", detail={"head_seq": 7}))
    (412, b'{"seq_num_mismatch":7}')
    >>> failure_body(RangeNotSatisfiable(3, 1700000000000))
    (416, b'{"tail":{"seq_num":3,"timestamp":1700000000000}}')
    """
    if isinstance(error, NotFound | MethodNotAllowed):
        return error.status, b""
    if isinstance(error, RangeNotSatisfiable):
        tail = {"seq_num": error.seq_num, "timestamp": error.timestamp}
        return RANGE_NOT_SATISFIABLE, _encode({"tail": tail})
    if isinstance(error, HeadMismatch):
        # The head is the last seq; the next seq_num is one more than the last seq_num: the same.
        return PRECONDITION_FAILED, _encode({"seq_num_mismatch": error.detail["head_seq"]})
    if isinstance(error, FenceMismatch):
        token = error.detail["fencing_token"]
        return PRECONDITION_FAILED, _encode({"fencing_token_mismatch": token})
    code = code_of(error)
    message = _WORDS.get(type(error)) or " ".join(str(error).split()) or code
    return STATUSES[code], _encode({"code": code, "message": message})


def code_of(error: HeadraceError) -> str:
    """The code that an error has in this API, unless its body is one of 412 or 416."""
    if isinstance(error, S2Refusal):
        return error.code
    if isinstance(error, OutOfResources):
        return "hot_server" if error.detail.get("outcome") == "nothing" else "unavailable"
    if isinstance(error, CorruptionError):
        return "storage"
    if isinstance(error, Throttled) and error.detail.get("limit") == "max_topics":
        return "quota_exhausted"  # as of basins and tokens: trying again does not help
    code = _CODES.get(type(error))
    if code is None:
        code = "other" if isinstance(error, ServerError) or error.status >= 500 else "invalid"
    return code


_encode = msgspec.json.Encoder().encode
