"""Checks of the names and numbers in requests of the native API.

Only this file decides which names may be created and written here, and how far a number may go.
"""

from __future__ import annotations

import re
from typing import Final, overload

from headrace.core.errors import Forbidden, InvalidRequest
from headrace.core.limits import (
    native_topic_name_bytes_max,
    own_topic_prefix,
    reserved_topic_prefixes,
    seq_max,
)
from headrace.engine.topics.config import TopicConfig
from headrace.wire.exchange import Key

U64_MAX: Final = (1 << 64) - 1
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*", re.ASCII)


def check_new_name(name: str) -> None:
    """Refuse a name that cannot be created here.

    >>> check_new_name("orders:eu-1")
    >>> check_new_name("ds:x")
    Traceback (most recent call last):
    headrace.core.errors.InvalidRequest: 'ds:x' starts with a reserved prefix; use another name
    """
    if len(name) > native_topic_name_bytes_max or _NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"{name[:80]!r} is not a name",
            fix=f"use 1 to {native_topic_name_bytes_max} of A-Z a-z 0-9 . _ : - and begin with a "
            "letter or a digit",
        )
    if name.startswith(reserved_topic_prefixes):
        raise InvalidRequest(f"{name!r} starts with a reserved prefix", fix="use another name")


def check_not_own(name: str) -> None:
    """Refuse to write to a topic that the server keeps for itself; to read it is allowed.

    >>> check_not_own("orders")
    >>> check_not_own("_pipelines")
    Traceback (most recent call last):
    headrace.core.errors.Forbidden: '_pipelines' is a topic of the server itself; read it, or use \
the calls that it belongs to
    """
    if name.startswith(own_topic_prefix):
        raise Forbidden(
            f"{name!r} is a topic of the server itself",
            fix="read it, or use the calls that it belongs to",
            detail={"topic": name},
        )


def check_dead_letter(config: TopicConfig, key: Key | None) -> None:
    """Refuse a config whose dead letters would go to a bad name, or where the key may not write."""
    name = config.dead_letter
    if name is None:
        return
    check_new_name(name)
    if key is not None and not key.allows_name(name):
        raise Forbidden(
            f"this key may not use {name!r} for dead letters",
            fix="use a name with one of its prefixes",
            detail={"topic": name},
        )


@overload
def check_u64(name: str, value: int) -> int: ...
@overload
def check_u64(name: str, value: int | None) -> int | None: ...
def check_u64(name: str, value: int | None) -> int | None:
    """A number of 64 bits as the engine takes it: beyond the last possible seq it is that."""
    if value is None or value <= seq_max:
        return value
    if value > U64_MAX:
        raise InvalidRequest(f"{name} is {value}", fix="send a whole number of 64 bits")
    return seq_max


class SentNumber(int):
    """The last possible seq, in place of a larger number, which is what it is shown as."""

    def __new__(cls, sent: int) -> SentNumber:
        made = super().__new__(cls, seq_max)
        made._sent = sent
        return made

    _sent: int

    def __repr__(self) -> str:
        return str(self._sent)

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(self._sent, spec)


def check_told_u64(name: str, value: int | None) -> int | None:
    """`check_u64` for a number that a refusal repeats: it does as it was sent.

    >>> asked = check_told_u64("to_seq", 2**64 - 1)
    >>> asked == check_u64("to_seq", 2**64 - 1), f"to_seq is {asked}"
    (True, 'to_seq is 18446744073709551615')
    """
    within = check_u64(name, value)
    return within if value is None or within == value else SentNumber(value)
