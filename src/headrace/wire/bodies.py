"""JSON bodies of requests: their content type, UTF-8 and types, each with its own refusal."""

from __future__ import annotations

import re
from itertools import islice
from typing import Final, TypeVar

import msgspec

from headrace.core.errors import (
    InvalidRequest,
    OutOfResources,
    UnsupportedMediaType,
)
from headrace.wire.exchange import JSON, Exchange

T = TypeVar("T")

_SURROGATE: Final = re.compile(rb"\\u[dD]([89a-fA-F])[0-9a-fA-F]{2}")
_SECOND: Final = frozenset(b"%c" % digit for digit in b"cdefCDEF")
# How much of a body that does not parse is searched for them, and how many are looked at: for a
# better message no other request has to wait.
SEARCHED_BYTES_MAX: Final = 1 << 20
SURROGATES_SEARCHED_MAX: Final = 10_000
_BACKSLASHES_MAX: Final = 256  # an even number


def check_json_type(exchange: Exchange) -> None:
    """Refuse a body that does not say that it is JSON.

    What `curl -d` says by itself is taken too, unless a web page is asking: a page can send that
    type to any server without asking first.
    """
    content_type = exchange.headers.get(b"content-type", b"")
    if content_type == JSON:
        return
    content_type = content_type.lstrip()
    if content_type.startswith(b"application/json"):
        return
    if (
        content_type.startswith(b"application/x-www-form-urlencoded")
        and b"origin" not in exchange.headers
    ):
        return
    raise UnsupportedMediaType(
        f"the content type is {content_type.decode('latin-1')[:80]!r}",
        fix="send `Content-Type: application/json`",
    )


def refuse_lone_surrogate(body: bytes) -> None:
    """Say so if a body that does not parse has half of a surrogate pair.

    The parser takes it for a body that ends too early.
    """
    found = lone_surrogate(body)
    if found is not None:
        half, place = found
        raise InvalidRequest(
            f"{half} at byte {place} of the body is half of a surrogate pair",
            fix="send both halves, as in \\ud83d\\ude00, or U+FFFD in its place",
        )


def lone_surrogate(body: bytes) -> tuple[str, int] | None:
    r"""Return the first escape that is half of a surrogate pair, and where it is; None: no such.

    >>> lone_surrogate(rb'"\ud83d\ude00 \\ud83d \ud83d"')
    ('\\ud83d', 22)
    """
    paired_to = 0
    searched = _SURROGATE.finditer(body, 0, SEARCHED_BYTES_MAX)
    for found in islice(searched, SURROGATES_SEARCHED_MAX):
        start, end = found.span()
        before = body[max(0, start - _BACKSLASHES_MAX) : start]
        if start < paired_to or (len(before) - len(before.rstrip(b"\\"))) % 2:
            continue  # the other half of the last one; a backslash, and text
        other = _SURROGATE.match(body, end)
        if found[1] in _SECOND or other is None or other[1] not in _SECOND:
            return found[0].decode(), start
        paired_to = other.end()
    return None


def decode(exchange: Exchange, decoder: msgspec.json.Decoder[T]) -> T:
    """The body as the decoder's type, or a refusal that says where it is wrong."""
    check_json_type(exchange)
    return decode_json(exchange.body, decoder)


def decode_json(
    body: bytes,
    decoder: msgspec.json.Decoder[T],
    fix: str = "see /docs for the fields of this body",
) -> T:
    """JSON bytes as the decoder's type; payloads inside stay bytes, so UTF-8 is checked here."""
    try:
        if not body.isascii():
            str(body, "utf-8")
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error), fix=fix) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        refuse_lone_surrogate(body)
        raise InvalidRequest(f"the body is not JSON: {error}", fix="send valid JSON") from None
    except MemoryError:
        raise OutOfResources.told("nothing") from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply", fix="send flatter JSON") from None
