"""The ids of a watch: where a stream is in all its topics, in one word.

Only this file reads and writes them.  Up to `NAMED_TOPICS_MAX` topics an id is base64url without
padding of compact JSON, names to seqs, keys sorted, with the topics' epochs under `$e` (no name
starts with `$`).  Beyond that it is `cp_` and a list of (epoch, seq): an epoch names a topic, so
that the id stays about five bytes a topic, and nothing has to be kept on the server for it.
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
_OPAQUE_VERSION: Final = 1
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
        return _encode_opaque(positions)
    fields: dict[str, object] = {_EPOCHS: {p.name: p.epoch for p in positions}}
    for position in positions:
        fields[position.name] = position.cursor
    return urlsafe_b64encode(_encode(fields)).rstrip(b"=")


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
    epochs = fields.pop(_EPOCHS, {})
    if isinstance(epochs, int):
        return None
    seqs = {name: seq for name, seq in fields.items() if is_seq(seq) and isinstance(seq, int)}
    return Positions(seqs, epochs, {})


def _from_base64(text: str) -> bytes:
    return urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))


def _encode_opaque(positions: Iterable[Position]) -> bytes:
    numbers = bytearray((_OPAQUE_VERSION,))
    before = 0
    for epoch, cursor in sorted((p.epoch, p.cursor) for p in positions):
        _put(numbers, epoch - before)
        _put(numbers, cursor)
        before = epoch
    return _OPAQUE.encode() + urlsafe_b64encode(numbers).rstrip(b"=")


def _decode_opaque(text: str) -> Positions | None:
    raw = _from_base64(text.removeprefix(_OPAQUE))
    if not raw or raw[0] != _OPAQUE_VERSION:
        return None
    numbers = _numbers(raw[1:])
    if len(numbers) % 2:
        return None
    by_epoch: dict[int, int] = {}
    epoch = 0
    for step, cursor in zip(numbers[::2], numbers[1::2], strict=True):
        epoch += step
        if not is_seq(cursor):
            return None
        by_epoch[epoch] = cursor
    return Positions({}, {}, by_epoch)


def _put(into: bytearray, number: int) -> None:
    """Seven bits a byte, the lowest first; the last byte has its high bit clear."""
    while number >= 0x80:
        into.append(number & 0x7F | 0x80)
        number >>= 7
    into.append(number)


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
