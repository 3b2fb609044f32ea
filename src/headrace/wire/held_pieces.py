"""Bytes of a frame that arrive in pieces, held until it is whole, for what they are and no more.

One buffer that grows would be copied from place to place, and what it leaves behind is memory that
nobody counts; an object for each piece of a byte or two would be mostly overhead.  So large pieces
are held as they came, and small ones together.
"""

from __future__ import annotations

from typing import Final

# A smaller piece is held together with the next ones.
PIECE_BYTES_MIN: Final = 4 * 1024


class HeldPieces:
    """The pieces of one frame.

    >>> held = HeldPieces()
    >>> held.add(b"one "), held.add(b"two"), held.size
    (None, None, 7)
    >>> held.take(), held.size
    (b'one two', 0)
    """

    __slots__ = ("_pieces", "size")

    def __init__(self) -> None:
        self._pieces: list[bytes | bytearray] = []
        self.size = 0

    def add(self, data: bytes) -> None:
        """Hold what has come."""
        self.size += len(data)
        pieces = self._pieces
        if pieces and type(pieces[-1]) is bytearray and len(pieces[-1]) < PIECE_BYTES_MIN:
            pieces[-1] += data
        else:
            pieces.append(data if len(data) >= PIECE_BYTES_MIN else bytearray(data))

    def take(self) -> bytes:
        """Return all that is held, and hold nothing any more."""
        whole = b"".join(self._pieces)
        self.clear()
        return whole

    def clear(self) -> None:
        """Let go of what is held."""
        self._pieces = []
        self.size = 0
