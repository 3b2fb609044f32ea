"""Server-sent events as bytes.

Only this file knows the form of an event: `id`, `event` and `data` lines, then an empty line.  A
line break would end a `data` line.  `event` makes it a space, which is right for JSON: there are
line breaks between its tokens only, never inside a string.  `split_event` begins another `data`
line there, which is right for text: a client joins the lines again.
"""

from __future__ import annotations

import re
from typing import Final

RETRY: Final = b"retry: 2000\n\n"
_FLAT: Final = bytes.maketrans(b"\r\n", b"  ")
_split_lines = re.compile(rb"\r\n|\r|\n").split


def event(name: bytes, data: bytes) -> bytes:
    """An event without its id, with one `data` line.

    >>> event(b"caught-up", b'{"a":\\n1}')
    b'event: caught-up\\ndata: {"a": 1}\\n\\n'
    """
    if b"\n" in data or b"\r" in data:
        data = data.translate(_FLAT)
    return b"event: %b\ndata: %b\n\n" % (name, data)


def split_event(name: bytes, data: bytes, *, space: bool = True) -> bytes:
    """An event without its id, with a `data` line for each line of the data.

    An empty name is left out.  Without `space` nothing is between the colon and the data, unless
    the line begins with a space itself: a client takes one away.

    >>> split_event(b"data", b"one\\r\\ntwo\\r\\n", space=False)
    b'event: data\\ndata:one\\ndata:two\\ndata:\\n\\n'
    >>> split_event(b"", b"[DONE]")
    b'data: [DONE]\\n\\n'
    """
    lines = [
        (b"data: %b\n" if space or line.startswith(b" ") else b"data:%b\n") % line
        for line in _split_lines(data)
    ]
    head = b"event: %b\n" % name if name else b""
    return b"%b%b\n" % (head, b"".join(lines))


def with_id(id: bytes, event: bytes) -> bytes:
    """An event with its id."""
    return b"id: %b\n%b" % (id, event)


def heartbeat(now_ms: int) -> bytes:
    """A comment that says that the stream is alive, and what time it is.

    >>> heartbeat(1700000000000)
    b': hb 1700000000000\\n\\n'
    """
    return b": hb %d\n\n" % now_ms
