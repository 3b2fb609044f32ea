"""Where streams are: which path is which topic, and what a stream's address is.

Only this file maps paths to names.  Two paths never share a name: a slash inside of a segment
(`%2F`) is refused, because the name could not tell it from the one between two segments.  So are
`.` and `..`, which clients and proxies take out of a path before they send it.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from headrace.core.errors import InvalidRequest, NotFound
from headrace.core.limits import topic_name_bytes_max
from headrace.core.settings import Settings
from headrace.wire.exchange import Exchange
from headrace.wire.routes import PathRest

ROOT: Final = "/v1/stream/"
TEMPLATE: Final = ROOT + "{path*}"
# Topics that are streams of this dialect begin so.
NAME_PREFIX: Final = "ds:"
# A first segment that is no stream: what belongs to subscriptions is below it.
RESERVED: Final = "__ds"

_DOTS: Final = frozenset((".", ".."))
# Printable and without a percent sign: it is what it says.
_is_plain = re.compile(r"[!-$&-~]+").fullmatch
_is_escaped_badly = re.compile(r"%(?![0-9A-Fa-f]{2})").search
_has_control = re.compile(r"[\x00-\x1f\x7f]").search


def stream_name(rest: PathRest) -> str:
    """Return the topic of the stream at this path, below `ROOT`.

    >>> stream_name(PathRest.of(["orders", "eu%20west"]))
    'ds:orders/eu west'
    >>> stream_name(PathRest.of(["orders%2Feu"]))
    Traceback (most recent call last):
    headrace.core.errors.InvalidRequest: 'orders%2Feu' has a slash or a control character in a \
segment; leave it out of the path
    """
    raw = rest.raw
    if rest.segments[0] == RESERVED:
        raise NotFound(f"{raw[:80]!r} is no stream", fix=f"do not begin its path with {RESERVED}")
    if _is_plain(raw) is None:
        _check_segments(rest)
    if "." in rest and not _DOTS.isdisjoint(rest.segments):
        raise InvalidRequest(
            f"{raw[:80]!r} has a segment that is only dots",
            fix="leave `.` and `..` out of the path",
        )
    name = NAME_PREFIX + rest
    if len(name) > topic_name_bytes_max or len(name.encode()) > topic_name_bytes_max:
        raise InvalidRequest(
            f"a path of {len(name.encode()) - len(NAME_PREFIX)} bytes",
            fix=f"use at most {topic_name_bytes_max - len(NAME_PREFIX)}",
        )
    return name


def _check_segments(rest: PathRest) -> None:
    if _is_escaped_badly(rest.raw) is not None:
        raise InvalidRequest(
            f"{rest.raw[:80]!r} has a percent sign that begins no byte", fix="write it as %25"
        )
    for segment in rest.segments:
        if "/" in segment or _has_control(segment) is not None:
            raise InvalidRequest(
                f"{rest.raw[:80]!r} has a slash or a control character in a segment",
                fix="leave it out of the path",
            )


def name_at(path: str) -> str:
    """Return the topic of the stream that a whole path, as of a URL, names.

    >>> name_at("/v1/stream/orders/1")
    'ds:orders/1'
    """
    rest = path.removeprefix(ROOT)
    if not rest or len(rest) == len(path) or not path.isascii() or "?" in path or "#" in path:
        raise InvalidRequest(f"{path[:80]!r} is no stream", fix=f"send a path that begins {ROOT}")
    return stream_name(PathRest.of(rest.split("/")))


def path_below_root(name: str) -> str:
    """Return the decoded path of a stream below `ROOT`.

    >>> path_below_root("ds:orders/1")
    'orders/1'
    """
    assert name.startswith(NAME_PREFIX), name
    return name[len(NAME_PREFIX) :]


def path_of(name: str) -> str:
    """Return the whole path of a stream, encoded.

    >>> path_of("ds:orders/eu west")
    '/v1/stream/orders/eu%20west'
    """
    return ROOT + quote(path_below_root(name), safe="/-._~!$&'()*+,;=:@")


def origin_of(exchange: Exchange, settings: Settings) -> str:
    """Return scheme and authority by which a client has reached the server; "" if it did not say.

    A proxy in front of it may say that it was addressed by https.
    """
    host = exchange.header(b"host")
    if not host:
        return ""
    secure = settings.tls_cert or exchange.headers.get(b"x-forwarded-proto") == b"https"
    return f"{'https' if secure else 'http'}://{host}"
