"""Names: of basins, streams, access tokens and locations, and which topic a stream is.

Only this file knows which names there can be.  A name that cannot be is refused by the code of the
place where it stood: a check takes the constructor of that refusal.

>>> basin_name("my-basin", bad_header)
'my-basin'
>>> basin_name("My-Basin", bad_header)
Traceback (most recent call last):
headrace.wire.s2.errors.S2_bad_header: basin name 'My-Basin' must have only a-z, 0-9 and '-', and \
begin and end with a letter or digit
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from typing import Final

from headrace.core.limits import topic_name_bytes_max
from headrace.wire.s2.errors import S2Refusal, bad_header

Refuse = Callable[[str], S2Refusal]

# Topics that are streams of this dialect begin so.
TOPIC_PREFIX: Final = "s2:"

BASIN_BYTES_MIN: Final = 8
BASIN_BYTES_MAX: Final = 48
STREAM_BYTES_MAX: Final = 512
TOKEN_ID_BYTES_MAX: Final = 96
LOCATION_BYTES_MAX: Final = 64
FENCING_TOKEN_BYTES_MAX: Final = 36
REQUEST_TOKEN_BYTES_MAX: Final = 36
ENCRYPTION_KEY_CHARS_MAX: Final = 44
ENCRYPTION_KEY_BYTES: Final = 32

assert len(TOPIC_PREFIX) + BASIN_BYTES_MAX + 1 + STREAM_BYTES_MAX <= topic_name_bytes_max

_is_basin = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?").fullmatch
_is_basin_prefix = re.compile(r"(?:[a-z0-9][a-z0-9-]*)?").fullmatch
_is_location = re.compile(r"[A-Za-z0-9:.-]+").fullmatch


def topic_name(basin: str, stream: str) -> str:
    """The topic of a stream.

    >>> topic_name("my-basin", "orders/eu")
    's2:my-basin/orders/eu'
    """
    return f"{TOPIC_PREFIX}{basin}/{stream}"


def split_topic(name: str) -> tuple[str, str]:
    """Basin and stream of a topic; a basin's name has no slash.

    >>> split_topic("s2:my-basin/orders/eu")
    ('my-basin', 'orders/eu')
    """
    assert name.startswith(TOPIC_PREFIX), name
    basin, _, stream = name[len(TOPIC_PREFIX) :].partition("/")
    return basin, stream


def basin_name(text: str, refuse: Refuse) -> str:
    """The name of a basin: 8 to 48 of a-z, 0-9 and hyphens."""
    if not BASIN_BYTES_MIN <= len(text) <= BASIN_BYTES_MAX:
        raise refuse(
            f"basin name {_shown(text)} must have {BASIN_BYTES_MIN} to {BASIN_BYTES_MAX} characters"
        )
    if _is_basin(text) is None:
        raise refuse(
            f"basin name {_shown(text)} must have only a-z, 0-9 and '-', and begin and end with a"
            " letter or digit"
        )
    return text


def basin_prefix(text: str, refuse: Refuse) -> str:
    """What names of basins may begin with, or come after; empty is any."""
    if len(text) > BASIN_BYTES_MAX or _is_basin_prefix(text) is None:
        raise refuse(f"no basin name begins with {_shown(text)}")
    return text


def stream_name(text: str, refuse: Refuse) -> str:
    """The name of a stream: 1 to 512 bytes of UTF-8.

    >>> stream_name("..", bad_header)
    Traceback (most recent call last):
    headrace.wire.s2.errors.S2_bad_header: stream name must not be '.' or '..'
    """
    return _checked_name("stream name", text, STREAM_BYTES_MAX, refuse)


def stream_prefix(text: str, refuse: Refuse) -> str:
    """What names of streams may begin with, or come after; empty is any."""
    return _checked_prefix("stream name", text, STREAM_BYTES_MAX, refuse)


def token_id(text: str, refuse: Refuse) -> str:
    """The id of an access token: 1 to 96 bytes of UTF-8."""
    return _checked_name("access token id", text, TOKEN_ID_BYTES_MAX, refuse)


def token_id_prefix(text: str, refuse: Refuse) -> str:
    """What ids of access tokens may begin with, or come after; empty is any."""
    return _checked_prefix("access token id", text, TOKEN_ID_BYTES_MAX, refuse)


def location_name(text: str, refuse: Refuse) -> str:
    """The name of a location."""
    if len(text) > LOCATION_BYTES_MAX or _is_location(text) is None:
        raise refuse(
            f"location {_shown(text)} must have 1 to {LOCATION_BYTES_MAX} of A-Z, a-z, 0-9, ':',"
            " '.' and '-'"
        )
    return text


def fencing_token(text: str, refuse: Refuse) -> str:
    """A fencing token: at most 36 bytes of UTF-8."""
    return _checked_bytes("fencing token", text, FENCING_TOKEN_BYTES_MAX, refuse)


def request_token(text: str, refuse: Refuse) -> str:
    """What a client sends to make a creation repeatable: at most 36 bytes."""
    return _checked_bytes("request token", text, REQUEST_TOKEN_BYTES_MAX, refuse)


def encryption_key(text: str, cipher: str) -> bytes:
    """The 32 bytes of the header `s2-encryption-key`, for a stream of this cipher."""
    try:
        if len(text) > ENCRYPTION_KEY_CHARS_MAX:
            raise ValueError(text)
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != ENCRYPTION_KEY_BYTES:
        # A key is a secret: not even a wrong one is repeated.
        raise bad_header(
            f"a stream with cipher {cipher} needs the header s2-encryption-key: the base64 of"
            f" {ENCRYPTION_KEY_BYTES} bytes"
        )
    return key


def _checked_name(what: str, text: str, bytes_max: int, refuse: Refuse) -> str:
    if not text:
        raise refuse(f"{what} must not be empty")
    if text in (".", ".."):
        raise refuse(f"{what} must not be '.' or '..'")
    return _checked_prefix(what, text, bytes_max, refuse)


def _checked_prefix(what: str, text: str, bytes_max: int, refuse: Refuse) -> str:
    if "\0" in text:
        raise refuse(f"{what} must not have a NUL in it")
    return _checked_bytes(what, text, bytes_max, refuse)


def _checked_bytes(what: str, text: str, bytes_max: int, refuse: Refuse) -> str:
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise refuse(f"{what} is not UTF-8") from None
    if size > bytes_max:
        raise refuse(f"{what} has {size} bytes, more than {bytes_max}")
    return text


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
