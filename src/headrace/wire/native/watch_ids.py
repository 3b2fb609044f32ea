"""The ids of a watch: where a stream is in all its topics, as one token.

Only this file reads and writes them.  Up to `NAMED_TOPICS_MAX` topics an id is base64url without
padding of compact JSON, names to seqs, keys sorted, with the topics' epochs under `$e` (no name
starts with `$`).  Beyond that it is `cp_` and a list of (epoch, seq): an epoch names a topic, so
that the id stays five to ten bytes a topic, and nothing has to be kept on the server for it.

The id of a watch whose patterns match more topics than it follows one by one is `cp_` and its
`Place` (`engine/live/places.py`): some tens of bytes however many topics there are.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec

from headrace.core.limits import is_seq
from headrace.engine.live.follower import Position
from headrace.engine.live.places import Place, Sweep

NAMED_TOPICS_MAX: Final = 64
_OPAQUE: Final = "cp_"
_OPAQUE_VERSION: Final = b"\x01"
_PLACE_VERSION: Final = b"\x02"
# More than any id has: a client may have made it.
EXACT_MAX: Final = 4_096
SWEEPS_MAX: Final = 1_024
_EPOCHS: Final = "$e"

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(dict[str, int | dict[str, int]])
_U64 = Annotated[int, msgspec.Meta(ge=0)]
_place_decoder = msgspec.msgpack.Decoder(
    tuple[_U64, _U64, _U64, list[tuple[str, str, str, _U64, _U64]], list[tuple[_U64, _U64]]]
)


class Positions(NamedTuple):
    """What an id says: cursors by name (with epochs, if it has them), or by epoch."""

    by_name: Mapping[str, int]
    epochs: Mapping[str, int]
    by_epoch: Mapping[int, int]
    is_whole: bool = False  # an id that we made: it has every topic that was followed then
    place: Place | None = None  # in the topics of its patterns, if these are many

    def of(self, name: str, epoch: int) -> tuple[int, int] | None:
        """Return (epoch, cursor) of a topic; None when the id does not tell."""
        cursor = self.by_epoch.get(epoch)
        if cursor is not None:
            return epoch, cursor
        cursor = self.by_name.get(name)
        return None if cursor is None else (self.epochs.get(name, epoch), cursor)


def encode_id(positions: Sequence[Position]) -> bytes:
    """Return the id of these positions, which are in the order of their names.

    >>> encode_id([Position("jobs", 4, 1)])
    b'eyIkZSI6eyJqb2JzIjo0fSwiam9icyI6MX0'
    """
    if len(positions) > NAMED_TOPICS_MAX:
        return join_opaque(opaque_piece(p.epoch, p.cursor) for p in positions)
    epochs = b",".join(named_piece(p.name, p.epoch) for p in positions)
    return join_named(epochs, [named_piece(p.name, p.cursor) for p in positions])


# The parts of an id.  A session that makes many ids keeps the parts of topics that did not move.


def named_piece(name: str, number: int) -> bytes:
    """Return the part of a name and its cursor, or its epoch."""
    return b"%b:%d" % (_encode(name), number)


def join_named(epochs: bytes, cursors: Sequence[bytes]) -> bytes:
    """Return the id of up to `NAMED_TOPICS_MAX` topics."""
    comma = b"," if cursors else b""
    text = b'{"%b":{%b}%b%b}' % (_EPOCHS.encode(), epochs, comma, b",".join(cursors))
    return urlsafe_b64encode(text).rstrip(b"=")


def opaque_piece(epoch: int, cursor: int) -> bytes:
    """Return an epoch and its cursor: seven bits a byte, lowest first; the last has no high bit."""
    piece = bytearray()
    for number in (epoch, cursor):
        while number >= 0x80:
            piece.append(number & 0x7F | 0x80)
            number >>= 7
        piece.append(number)
    return bytes(piece)


def join_opaque(pieces: Iterable[bytes]) -> bytes:
    """Return the id of more topics than that."""
    return _OPAQUE.encode() + urlsafe_b64encode(_OPAQUE_VERSION + b"".join(pieces)).rstrip(b"=")


def encode_place(place: Place, positions: Iterable[Position]) -> bytes:
    """Return the id of a place in the topics of patterns, and of positions beside it.

    >>> encode_place(Place(7, 1_000, 1_700_000_000_000), [Position("jobs", 4, 1)])
    b'cp_ApUHzQPozwAAAYvP5WgAkJGSBAE'
    """
    exact = [*place.exact, *((position.epoch, position.cursor) for position in positions)]
    raw = msgspec.msgpack.encode((place.run, place.number, place.ms, place.sweeps, exact))
    return _OPAQUE.encode() + urlsafe_b64encode(_PLACE_VERSION + raw).rstrip(b"=")


def _decode_place(raw: bytes) -> Positions | None:
    run, number, ms, sweeps, exact = _place_decoder.decode(raw)
    if len(sweeps) > SWEEPS_MAX or len(exact) > EXACT_MAX:
        return None
    numbers = [number, ms, *(n for sweep in sweeps for n in sweep[3:]), *(c for _, c in exact)]
    if not all(map(is_seq, numbers)):
        return None
    place = Place(run, number, ms, tuple(Sweep(*sweep) for sweep in sweeps), tuple(exact))
    return Positions({}, {}, dict(exact), False, place)


def decode_id(text: str) -> Positions | None:
    """Return what an id says; None when it is not one.

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
    if raw.startswith(_PLACE_VERSION):
        return _decode_place(raw[1:])
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
