"""Heads that repeat, of all connections: what a parser made of the same bytes before.

A client sends the same headers again and again, and the same few request lines.  What a parser
makes of them is a function of their bytes, so both are remembered: a line with the route that it
means, and the header lines as a layout, in which the values that differ from request to request
(lengths, keys, sequences, trace ids) are holes.  No value of a hole is kept in them, so no key is.

A line and a layout that came together are a `KnownHead`.  With it is kept what handlers know of
such requests before they see a body, and whether they are let in if that is the same for all of
them (`admitted_heads.py`).  A head that holds nothing but steady values and comes again with the
same length is also remembered by all its bytes: a client that repeats a request costs one lookup.
So is that of a producer, whose name and epoch are steady, by all its bytes but those of its number.

Only this file decides which heads may be taken that way; everything else goes through the parser.
A full table drops what it has held longest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from headrace.core.lru import FifoMap
from headrace.metrics.requests import UNROUTED
from headrace.server.app import RequestTarget

if TYPE_CHECKING:
    from headrace.server.admitted_heads import AdmittedHead
    from headrace.server.http1.answer import Http1Exchange

LINES_MAX: Final = 16_384
LINE_BYTES_MAX: Final = 512
LAYOUTS_MAX: Final = 1_024
KNOWN_HEADS_MAX: Final = 16_384
WHOLE_HEADS_MAX: Final = 16_384
WHOLE_HEAD_BYTES_MAX: Final = 1_024
HEAD_BYTES_MAX: Final = 4 * 1024
VALUE_BYTES_MAX: Final = 512
LENGTH_DIGITS_MAX: Final = 7
# Heads of a connection that are remembered since it last sent one that was known, before no more
# are.  Others may send what it was the first to send, so these are many; but one whose heads never
# repeat drops no more than a part of what is known.
ATTEMPTS_MAX: Final = LINES_MAX // 4
# What changes how a request is read, or what may come after it.
_UNSTEADY: Final = frozenset({b"expect", b"transfer-encoding", b"upgrade"})
_KEEP_ALIVE: Final = b"keep-alive"
_LENGTH: Final = b"content-length"
NUMBER: Final = b"producer-seq"
# Headers whose values differ from one request of a client to the next, or must not be kept.
VARYING: Final = frozenset(
    {
        _LENGTH,
        b"authorization",
        b"baggage",
        b"expected-head-seq",
        b"idempotency-key",
        b"if-match",
        b"if-none-match",
        b"last-event-id",
        b"producer-epoch",
        b"producer-id",
        NUMBER,
        b"stream-fork-offset",
        b"stream-forked-from",
        b"stream-seq",
        b"traceparent",
        b"tracestate",
        b"x-correlation-id",
        b"x-request-id",
    }
)
# Those that a client repeats all the same, as long as it does the same.
_REPEATED: Final = frozenset({_LENGTH, b"producer-epoch", b"producer-id", NUMBER})
_HOLE: Final = re.compile(
    rb"\r\n(" + b"|".join(map(re.escape, sorted(VARYING))) + rb"): ?([^\r]*)", re.IGNORECASE
)
# What a parser takes for a value as it stands: printable, and no space at either end.
_VALUE: Final = rb"([!-~](?:[ -~]{0,%d}[!-~])?)" % (VALUE_BYTES_MAX - 3)
_DIGITS: Final = rb"([0-9]{1,%d})" % LENGTH_DIGITS_MAX


class KnownHead:
    """What a request with this head is, and what is known of all that have it."""

    __slots__ = ("admitted", "length", "memo", "target")

    def __init__(self, target: RequestTarget, length: int, memo: dict[object, object]) -> None:
        self.target = target
        self.length = length  # of the body of the last one
        self.memo = memo  # see `Exchange.memo`
        self.admitted: AdmittedHead | None = None  # None: not settled, or asked each time


class WholeHead(KnownHead):
    """A head that is known by all its bytes, so that its headers are, too.

    `numbered`: all but those of a producer's number, which is that of the first request here.
    """

    __slots__ = ("headers", "numbered")

    def __init__(self, known: KnownHead, headers: dict[bytes, bytes], *, numbered: bool) -> None:
        super().__init__(known.target, known.length, known.memo)
        self.admitted = known.admitted
        self.headers = headers
        self.numbered = numbered


# A request that was not parsed: its head, headers, body, and where it ends in what was read.
Taken = tuple[KnownHead, dict[bytes, bytes], bytes, int]


class HeadLayout:
    """The header lines of a head around the values that differ."""

    __slots__ = ("_length_at", "_names", "_steady", "is_steady", "match", "number")

    def __init__(
        self, pieces: list[bytes], names: list[bytes], headers: Mapping[bytes, bytes]
    ) -> None:
        pattern = re.escape(pieces[0])
        for name, piece in zip(names, pieces[1:], strict=True):
            pattern += (_DIGITS if name == _LENGTH else _VALUE) + re.escape(piece)
        # Of header lines, at a place of what was read; None if another head is there.
        self.match = re.compile(pattern).match
        self._names = names
        self._length_at = names.index(_LENGTH) if _LENGTH in names else -1
        self._steady = {name: value for name, value in headers.items() if name not in VARYING}
        # Nothing but the length and a producer's number differs much, so that the whole head may be
        # remembered; and what stands before that number, as its client writes it.
        self.is_steady = _REPEATED.issuperset(names)
        before = pieces[names.index(NUMBER)] if NUMBER in names else b""
        self.number = before[before.rfind(b"\r\n") :]

    def read(self, found: re.Match[bytes]) -> tuple[dict[bytes, bytes], int, int]:
        """Headers, where the body begins, and its length."""
        values, headers = found.groups(), self._steady.copy()
        headers.update(zip(self._names, values))  # noqa: B905 - a group for each name
        at = self._length_at
        # Without a length it is a request without a body.
        return headers, found.end(), int(values[at]) if at >= 0 else 0


class KnownHeads:
    """Request lines and layouts of header lines that were seen before."""

    def __init__(self) -> None:
        self._lines: FifoMap[bytes, RequestTarget] = FifoMap(LINES_MAX)
        self._layouts: FifoMap[bytes, HeadLayout] = FifoMap(LAYOUTS_MAX)
        self._known: FifoMap[tuple[HeadLayout, bytes], KnownHead] = FifoMap(KNOWN_HEADS_MAX)
        # By all bytes of the head: a reader looks here first.
        self.whole: FifoMap[bytes, WholeHead] = FifoMap(WHOLE_HEADS_MAX)

    def __len__(self) -> int:
        """How many lines, layouts and heads are remembered."""
        return len(self._lines) + len(self._layouts) + len(self._known) + len(self.whole)

    def take(self, data: bytes, at: int, layout: HeadLayout | None) -> Taken | None:
        """The request that is at this place of what was read, if it is whole and known.

        `layout` is that of its header lines, by the connection's last request.
        """
        line_end = data.find(b"\r", at, at + LINE_BYTES_MAX)
        if line_end < 0 or layout is None:
            return None
        line = data[at:line_end]
        known = self._known.get((layout, line))
        target = self._lines.get(line) if known is None else known.target
        if target is None:
            return None
        found = layout.match(data, line_end)
        if found is None:
            return None
        headers, start, length = layout.read(found)
        end = start + length
        if end > len(data):
            return None
        if known is None:
            known = KnownHead(target, length, {})
            self._known.put((layout, line), known)
        elif known.length != length:
            known.length = length
        elif layout.is_steady and not at and start <= WHOLE_HEAD_BYTES_MAX:
            key, number = whole_key(data, start, layout.number)
            self.whole.put(key, WholeHead(known, headers, numbered=bool(number)))
        return known, headers, data[start:end], end

    def layout_of(self, data: bytes, at: int) -> HeadLayout | None:
        """The layout of the header lines of the request at this place, if it is known."""
        line_end = data.find(b"\r", at, at + LINE_BYTES_MAX)
        end = data.find(b"\r\n\r\n", at, at + HEAD_BYTES_MAX)
        if line_end < 0 or end < 0:
            return None
        return self._layouts.get(_HOLE.sub(rb"\r\n\1", data[line_end : end + 2]))

    def learn(self, data: bytes, exchange: Http1Exchange) -> None:
        """Remember the head of a request that `data` begins with, unless such must be parsed."""
        headers, route = exchange.headers, exchange.route
        if route is None or not exchange.modern or not exchange.keep_alive:
            return
        if exchange.streamed or exchange.long_lived or route.handling is not None:
            return  # nothing looks again how the next one is to be handled
        if route.template == UNROUTED or not _UNSTEADY.isdisjoint(headers):
            return
        if headers.get(b"connection", _KEEP_ALIVE).lower() != _KEEP_ALIVE:
            return
        line_end = data.find(b"\r", 0, LINE_BYTES_MAX)
        end = data.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX)
        if line_end < 0 or end < 0 or data[data.find(b" ") + 1 : data.find(b" ") + 2] != b"/":
            return
        lines = data[line_end : end + 4]
        around = _HOLE.sub(rb"\r\n\1", lines[:-2])
        layout = self._layouts.get(around) or _layout(lines, headers)
        if layout is None:
            return
        # The proof that a layout is right: it gives what the parser gave.
        found = layout.match(lines, 0)
        if found is None or layout.read(found)[0] != headers:
            return
        method, path, query = exchange.method, exchange.path, exchange.query
        target = RequestTarget(method, path, query, route, exchange.params)
        self._lines.put(data[:line_end], target)
        self._layouts.put(around, layout)


def whole_key(data: bytes, start: int, before: bytes) -> tuple[bytes, bytes]:
    """The bytes of a head that ends at `start`, and cut out of it the number behind `before`.

    >>> whole_key(b"POST / HTTP/1.1\\r\\nn: 12\\r\\n\\r\\n", 26, b"\\r\\nn: ")
    (b'POST / HTTP/1.1\\r\\nn: \\r\\n\\r\\n', b'12')
    """
    found = data.find(before, 0, start) if before else -1
    if found < 0:
        return data[:start], b""
    at = found + len(before)
    end = data.find(b"\r", at, start)
    return data[:at] + data[end:start], data[at:end]


def _layout(lines: bytes, headers: Mapping[bytes, bytes]) -> HeadLayout | None:
    """The layout of header lines, from the end of the request line to the blank line."""
    pieces, names, at = [], [], 0
    for found in _HOLE.finditer(lines):
        pieces.append(lines[at : found.start(2)])
        names.append(found[1].lower())
        at = found.end(2)
    if len(set(names)) != len(names):
        return None
    return HeadLayout([*pieces, lines[at:]], names, headers)
