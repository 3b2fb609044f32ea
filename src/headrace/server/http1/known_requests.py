"""Requests of a connection whose heads are known: taken as they are, without the parser.

Only this file decides when the parser is not asked: the head of a request was seen before
(`heads.py`), all of its body has come with it, and it is no longer than a body may be.  Whatever
else comes goes to `reader.py`.
"""

from __future__ import annotations

from headrace.server.http1.heads import NUMBER, WHOLE_HEAD_BYTES_MAX, KnownHead, whole_key
from headrace.server.http1.reader import RequestReader
from headrace.server.http1.states import IDLE


class KnownRequests(RequestReader):
    """The requests of a connection that are not parsed."""

    __slots__ = ()

    # What the other half does

    def _take_known(self, known: KnownHead, headers: dict[bytes, bytes], body: bytes) -> None:
        """Take a request whose head is known."""
        raise NotImplementedError

    # Reading

    def _take(self, data: bytes) -> None:
        """Read requests, or parts of them, behind the end of the last one."""
        layout = self._layout
        if layout is not None and not layout.is_steady:  # no head of it is known by all its bytes
            self._take_some(data)
            return
        start = data.find(b"\r\n\r\n", 0, WHOLE_HEAD_BYTES_MAX) + 4
        if layout is None or not layout.number:
            key, number = data[:start], b""
        else:
            key, number = whole_key(data, start, layout.number)
        known = self._heads.whole.get(key)
        if (
            known is None
            or len(data) - start != known.length
            or known.length > self._body_bytes_max
            or self._nothing_follows
            or known.numbered is not number.isdigit()
        ):
            self._take_some(data)
        else:  # all of it is here, and nothing follows
            headers = {**known.headers, NUMBER: number} if number else known.headers
            self._take_known(known, headers, data[start:])

    def _take_some(self, data: bytes) -> None:
        """Take requests whose heads are known in parts, and parse what is left."""
        heads, at, size = self._heads, 0, len(data)
        while at < size and self.reading is IDLE and not self._nothing_follows:
            taken = heads.take(data, at, self._layout)
            if taken is None:
                layout = heads.layout_of(data, at)
                if layout is None or layout is self._layout:
                    break
                self._layout = layout
                continue
            known, headers, body, end = taken
            if len(body) > self._body_bytes_max:
                break
            at = end
            self._take_known(known, headers, body)
        if at < size:
            self._feed(data[at:] if at else data)
