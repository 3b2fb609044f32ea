"""The ids of a watch: where a stream is in all its topics, in one word.

Only this file reads and writes them.  Up to `NAMED_TOPICS_MAX` topics an id is base64url without
padding of compact JSON, names to seqs, keys sorted, with the topics' epochs under `$e` (no name
starts with `$`).  Beyond that it is `cp_` and a list of (epoch, seq): an epoch names a topic, so
that the id stays five to ten bytes a topic, and nothing has to be kept on the server for it.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from headrace.core.limits import is_seq

NAMED_TOPICS_MAX: Final = 64
_OPAQUE: Final = "cp_"
_OPAQUE_VERSION: Final = b"\x01"
_EPOCHS: Final = "$e"

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(dict[str, int | dict[str, int]])


class Position(NamedTuple):
    """Where a reader is in one topic."""

    name: str
    epoch: int
    cursor: int


class Positions(NamedTuple):
    """What an id says: cursors by name (with epochs, if it has them), or by epoch."""

    by_name: Mapping[str, int]
    epochs: Mapping[str, int]
    by_epoch: Mapping[int, int]
    is_whole: bool = False  # an id that we made: it has every topic that was followed then

    def of(self, name: str, epoch: int) -> tuple[int, int] | None:
        """(epoch, cursor) of a topic; None when the id does not tell."""
        cursor = self.by_epoch.get(epoch)
        if cursor is not None:
            return epoch, cursor
        cursor = self.by_name.get(name)
        return None if cursor is None else (self.epochs.get(name, epoch), cursor)


def encode_id(positions: Sequence[Position]) -> bytes:
    """The id of these positions, which are in the order of their names.

    >>> encode_id([Position("jobs", 4, 1)])
    b'eyIkZSI6eyJqb2JzIjo0fSwiam9icyI6MX0'
    """
    if len(positions) > NAMED_TOPICS_MAX:
        return join_opaque(opaque_piece(p.epoch, p.cursor) for p in positions)
    epochs = b",".join(named_piece(p.name, p.epoch) for p in positions)
    return join_named(epochs, [named_piece(p.name, p.cursor) for p in positions])


# The parts of an id.  Who makes one id after the other keeps those of the topics that did not move.


def named_piece(name: str, number: int) -> bytes:
    """A name and its cursor, or its epoch."""
    return b"%b:%d" % (_encode(name), number)


def join_named(epochs: bytes, cursors: Sequence[bytes]) -> bytes:
    """The id of up to `NAMED_TOPICS_MAX` topics."""
    comma = b"," if cursors else b""
    text = b'{"%b":{%b}%b%b}' % (_EPOCHS.encode(), epochs, comma, b",".join(cursors))
    return urlsafe_b64encode(text).rstrip(b"=")


def opaque_piece(epoch: int, cursor: int) -> bytes:
    """An epoch and its cursor: seven bits a byte, the lowest first; the last has no high bit."""
    piece = bytearray()
    for number in (epoch, cursor):
        while number >= 0x80:
            piece.append(number & 0x7F | 0x80)
            number >>= 7
        piece.append(number)
    return bytes(piece)


def join_opaque(pieces: Iterable[bytes]) -> bytes:
    """The id of more topics than that."""
    return _OPAQUE.encode() + urlsafe_b64encode(_OPAQUE_VERSION + b"".join(pieces)).rstrip(b"=")


def decode_id(text: str) -> Positions | None:
    """What an id says; None when it is not one.

    >>> decode_id("eyJqb2JzIjoxfQ").of("jobs", epoch=4)
    (4, 1)
    """
    try:
        if text.startswith(_OPAQUE):
            return _decode_opaque(text)
        fields = _decoder.decode(_from_base64(text))
    except (msgspec.MsgspecError, UnicodeError, Base64Error, ValueError, RecursionError):
        return None
    is_whole = _EPOCHS in fields
    epochs = fields.pop(_EPOCHS, {})
    if isinstance(epochs, int):
        return None
    seqs = {name: seq for name, seq in fields.items() if is_seq(seq) and isinstance(seq, int)}
    return Positions(seqs, epochs, {}, is_whole)


def _from_base64(text: str) -> bytes:
    return urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))


def _decode_opaque(text: str) -> Positions | None:
    raw = _from_base64(text.removeprefix(_OPAQUE))
    if not raw.startswith(_OPAQUE_VERSION):
        return None
    numbers = _numbers(raw[1:])
    if len(numbers) % 2:
        return None
    by_epoch = dict(zip(numbers[::2], numbers[1::2], strict=True))
    return Positions({}, {}, by_epoch, True) if all(map(is_seq, by_epoch.values())) else None


def _numbers(raw: bytes) -> list[int]:
    numbers, number, shift = [], 0, 0
    for byte in raw:
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            numbers.append(number)
            number = shift = 0
        elif shift > 63:
            raise ValueError("a number of more than 64 bits")
    if shift:
        raise ValueError("the last number is cut off")
    return numbers
