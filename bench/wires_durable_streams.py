"""How the generator speaks Durable Streams: appends of producers, and readers that catch up.

The same requests go to every server of the protocol; a file that is served as it is takes the
reader's first request for all there is.
"""

from __future__ import annotations

import re

from bench.wires import HOST, BadAnswer, Http, Wire, document, http_request

JSON_STREAM = {"Content-Type": "application/json"}
_STATUS_OK = b"HTTP/1.1 200"
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_NEXT = re.compile(rb"(?i)\r\nstream-next-offset: *([^\r]+)")
_UP_TO_DATE = re.compile(rb"(?i)\r\nstream-up-to-date: *true")
_CHUNKED = re.compile(rb"(?i)\r\ntransfer-encoding: *chunked")


class StreamAppends(Http):
    """Appends to the streams of one connection in turn, each with the next number of its producer.

    Where there are fewer streams than connections, several write to one, each as its own producer.
    """

    _connections = 0

    def __init__(self, port: int, path: str, streams: int, writers: int) -> None:
        number = StreamAppends._connections
        StreamAppends._connections += 1
        first = number % writers % streams
        lines = [f"POST {path.format(n)} HTTP/1.1" for n in range(first, streams, writers)]
        rest = http_request("POST", "/", document(), JSON_STREAM).partition(b"\r\n")[2]
        who = f"\r\nProducer-Id: p{number}\r\nProducer-Epoch: 0\r\nProducer-Seq: "
        self._heads = [(line + who).encode() for line in lines]
        self._rest = b"\r\n" + rest
        self._sent = 0
        super().__init__(port, b"")

    def send_next(self) -> None:
        sequence, turn = divmod(self._sent, len(self._heads))
        self._sent += 1
        self.socket.sendall(b"%b%d%b" % (self._heads[turn], sequence, self._rest))


class CatchUp(Wire):
    """Reads a stream from its beginning to its end, again and again: one answer is one reading.

    `size`: how many bytes that is; 0: it is not looked at.
    """

    def __init__(self, port: int, path: str, size: int = 0) -> None:
        self._path = path
        self._size = size
        self._read = 0  # bytes of bodies, of this reading
        self._missing = -1  # of the body that arrives; -1: its head has not come
        self._chunks = False
        self._next = b""  # where the next request goes on; empty: there is no more
        super().__init__(port)

    def send_next(self) -> None:
        self._read = 0
        self._ask(b"-1")

    def _ask(self, offset: bytes) -> None:
        self._missing = -1
        self.socket.sendall(
            f"GET {self._path}?offset={offset.decode()} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()
        )

    def received(self, buffer: bytearray, size: int) -> int:
        if not size:
            raise BadAnswer("the connection was closed")
        if self._missing >= 0 and not self._chunks:  # most of all pieces
            self._missing -= size
            self._read += size
            return self._whole() if not self._missing else 0
        self.rest += bytes(buffer[:size])
        if self._missing < 0 and not self._take_head():
            return 0
        if self._chunks:
            return self._whole() if self._take_chunks() else 0
        data, self.rest = self.rest, b""
        self._missing -= len(data)
        self._read += len(data)
        assert self._missing >= 0, "two answers to one request"
        return self._whole() if not self._missing else 0

    def _take_head(self) -> bool:
        head, blank, rest = self.rest.partition(b"\r\n\r\n")
        if not blank:
            return False
        length = _LENGTH.search(head)
        self._chunks = _CHUNKED.search(head) is not None
        if not head.startswith(_STATUS_OK) or not (length or self._chunks):
            raise BadAnswer(head[:500].decode("latin-1"))
        self._missing = int(length[1]) if length else 0
        found = _NEXT.search(head)
        self._next = found[1] if found and not _UP_TO_DATE.search(head) else b""
        self.rest = rest
        return True

    def _take_chunks(self) -> bool:
        """Whether the last chunk is there."""
        while True:
            line, end, rest = self.rest.partition(b"\r\n")
            size = int(line.partition(b";")[0], 16) if end else 0
            if not end or len(rest) < size + 2:
                return False
            self.rest = rest[size + 2 :]
            self._read += size
            if not size:
                return True

    def _whole(self) -> int:
        """1 at the end of a reading; else the next request goes out."""
        if self._next:
            self._ask(self._next)
            return 0
        if self._size and self._read != self._size:
            raise BadAnswer(f"{self._read} bytes were read, of {self._size}")
        return 1
