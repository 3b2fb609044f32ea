"""Paths of streams in bodies: relative to the stream root, percent-encoded as in a URL.

What is kept is decoded, as the topics' names are; what is shown can be put behind the stream root
as it is.  A slash at either end means nothing.
"""

from __future__ import annotations

from headrace.core.errors import InvalidRequest
from headrace.wire.durable_streams.paths import (
    NAME_PREFIX,
    RESERVED,
    ROOT,
    path_below_root,
    path_of,
    stream_name,
)
from headrace.wire.routes import PathRest


def parse_path(text: str) -> str:
    """Return the decoded path of a stream.

    >>> parse_path("/events/a%20b")
    'events/a b'
    """
    segments = text.strip("/").split("/")
    if segments in ([""], [RESERVED]) or segments[0] == RESERVED:
        raise InvalidRequest(f"{text[:80]!r} is no stream", fix="send a path like a/b")
    if not text.isprintable():
        raise InvalidRequest(f"{text[:80]!r} has a control character", fix="leave it out")
    return path_below_root(stream_name(PathRest.of(segments)))


def decoded_segment(segment: str) -> str:
    """Return one segment of a path, decoded."""
    return path_below_root(stream_name(PathRest.of(["", segment])))[1:]


def show_path(path: str) -> str:
    """Return a decoded path as it is written in URLs and bodies.

    >>> show_path("events/a b")
    'events/a%20b'
    """
    return path_of(NAME_PREFIX + path).removeprefix(ROOT)


def topic_of(path: str) -> str:
    """Return the topic of the stream at a decoded path."""
    return NAME_PREFIX + path
