"""Server-sent events as bytes.

Only this file knows the form of an event: `id`, `event` and `data` lines, each with one space after
the colon, then an empty line.  A payload may have line breaks between its JSON tokens; they become
spaces, because a line break would end the `data` line.  Inside a JSON string there are none.
"""

from __future__ import annotations

from typing import Final

RETRY: Final = b"retry: 2000\n\n"
_FLAT: Final = bytes.maketrans(b"\r\n", b"  ")


def event(name: bytes, data: bytes) -> bytes:
    """An event without its id.

    >>> event(b"caught-up", b'{"a":\\n1}')
    b'event: caught-up\\ndata: {"a": 1}\\n\\n'
    """
    if b"\n" in data or b"\r" in data:
        data = data.translate(_FLAT)
    return b"event: %b\ndata: %b\n\n" % (name, data)


def with_id(id: bytes, event: bytes) -> bytes:
    """An event with its id."""
    return b"id: %b\n%b" % (id, event)


def heartbeat(now_ms: int) -> bytes:
    """A comment that says that the stream is alive, and what time it is.

    >>> heartbeat(1700000000000)
    b': hb 1700000000000\\n\\n'
    """
    return b": hb %d\n\n" % now_ms
