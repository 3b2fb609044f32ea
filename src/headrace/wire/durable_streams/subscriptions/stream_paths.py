"""Paths of streams in bodies: relative to the stream root, percent-encoded as in a URL.

What is kept is decoded, as the topics' names are; what is shown can be put behind the stream root
as it is, and sent back.  One slash in front means nothing; any other belongs to the path, because
`logs` and `logs/` are two streams.
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
    >>> parse_path("logs/"), parse_path("//logs")
    ('logs/', '/logs')
    """
    segments = text.removeprefix("/").split("/")
    if segments == [""] or segments[0] == RESERVED:
        raise InvalidRequest(f"{text[:80]!r} is no stream", fix="send a path like a/b")
    if not text.isprintable():
        raise InvalidRequest(f"{text[:80]!r} has a control character", fix="leave it out")
    return path_below_root(stream_name(PathRest.of(segments)))


def decoded_segment(segment: str) -> str:
    """Return one segment of a path, decoded."""
    return path_below_root(stream_name(PathRest.of(["", segment])))[1:]


def show_path(path: str) -> str:
    """Return a decoded path as it is written in bodies, for `parse_path` to read.

    >>> show_path("events/a b"), show_path("/logs")
    ('events/a%20b', '//logs')
    """
    shown = path_of(NAME_PREFIX + path).removeprefix(ROOT)
    return f"/{shown}" if path.startswith("/") else shown


def topic_of(path: str) -> str:
    """Return the topic of the stream at a decoded path."""
    return NAME_PREFIX + path
