"""The errors with which a transport refuses a request that it does not hand over.

Only this file words these errors, so that HTTP/1.1 and HTTP/2 say the same.  It decides nothing:
transports know their bounds.
"""

from __future__ import annotations

from headrace.core.errors import (
    HeadersTooLarge,
    InvalidRequest,
    PayloadTooLarge,
    RequestTimeout,
)
from headrace.wire.request_memory import no_memory as no_memory


def headers_too_large(bytes_max: int) -> HeadersTooLarge:
    """The error for more headers than `header_bytes_max`.

    >>> headers_too_large(1024).status
    431
    """
    return HeadersTooLarge(
        f"more than {bytes_max} bytes of headers",
        fix="send fewer, or raise HEADRACE_HEADER_BYTES_MAX",
        detail={"max": bytes_max},
    )


def body_too_large(bytes_max: int) -> PayloadTooLarge:
    """The error for a body above `body_bytes_max`.

    >>> body_too_large(1024).detail
    {'max': 1024}
    """
    return PayloadTooLarge(
        f"a body of more than {bytes_max} bytes",
        fix="send less at a time, or raise HEADRACE_MAX_BODY_BYTES",
        detail={"max": bytes_max},
    )


def body_late(bytes_per_second_min: int) -> RequestTimeout:
    """The error when nothing of a body came for `body_timeout_ms`, or too little.

    >>> body_late(256).status, body_late(256).detail
    (408, {'bytes_per_second_min': 256})
    """
    return RequestTimeout(
        "the body did not arrive in time",
        fix="send it faster, or in several requests",
        detail={"bytes_per_second_min": bytes_per_second_min},
    )


def too_much_overhead(bytes_max: int) -> HeadersTooLarge:
    """The error for a chunked body with more than `chunk_overhead_bytes_max` around its bytes.

    >>> too_much_overhead(1024).status
    431
    """
    return HeadersTooLarge(
        f"more than {bytes_max} bytes of chunk extensions, chunk sizes and trailers",
        fix="send larger chunks without extensions, or raise HEADRACE_CHUNK_OVERHEAD_BYTES_MAX",
        detail={"max": bytes_max},
    )


def bad_expectation() -> InvalidRequest:
    """The error for an `Expect` that is not `100-continue`.

    >>> bad_expectation().status
    400
    """
    return InvalidRequest("Expect is not 100-continue", fix="leave Expect out")
