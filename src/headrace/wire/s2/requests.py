"""What requests of the S2 API have in common: names, JSON bodies, pages of lists, ready answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple, TypeVar

import msgspec

from headrace.core.limits import MIB
from headrace.core.runtime import Ticket
from headrace.wire.exchange import Exchange, Headers
from headrace.wire.failures import failed
from headrace.wire.s2.access import Caller
from headrace.wire.s2.catalog.streams import CREATED
from headrace.wire.s2.errors import (
    S2Refusal,
    bad_header,
    bad_json,
    bad_path,
    bad_query,
    invalid,
)
from headrace.wire.s2.names import (
    STREAM_BYTES_MAX,
    Refuse,
    basin_name,
    request_token,
    stream_name,
)
from headrace.wire.s2.read_query import query_pairs

T = TypeVar("T")
Check = Callable[[str, Callable[[str], S2Refusal]], str]  # a name, and the refusal of what is none

PAGE_MAX: Final = 1_000
BODY_BYTES_MAX: Final = 2 * MIB  # decompressed
_DIGITS_MAX: Final = 20  # of a number of 64 bits
BASIN_HEADER: Final = b"s2-basin"
REQUEST_TOKEN_HEADER: Final = b"s2-request-token"
PROVISION_RESULT: Final = b"s2-provision-result"
_JSON: Final = "application/json"
_QUERY_FIELDS: Final = frozenset(
    {"prefix", "start_after", "limit", "set", "start", "end", "interval"}
)


def basin_of(exchange: Exchange) -> str:
    """The basin that a request is about, by its header."""
    text = _header_text(exchange, BASIN_HEADER)
    if text is None:
        raise bad_header("the header s2-basin is missing")
    return basin_name(text, bad_header)


def stream_of(exchange: Exchange, caller: Caller) -> str:
    """The stream that the path names, with the prefix that the caller's token adds."""
    return whole_name(caller, exchange.params[0], bad_path)


def whole_name(caller: Caller, given: str, refuse: Refuse) -> str:
    """The whole name of a stream that a caller names; what is given has to be a name by itself."""
    name = caller.stream_name(stream_name(given, refuse))
    if len(name) != len(given) and len(name.encode()) > STREAM_BYTES_MAX:
        raise refuse("stream name is too long behind the prefix of this access token")
    return name


def token_of(exchange: Exchange) -> str | None:
    """What makes a creation repeatable, if the request has it."""
    text = _header_text(exchange, REQUEST_TOKEN_HEADER)
    return None if text is None else request_token(text, bad_header)


def _header_text(exchange: Exchange, name: bytes) -> str | None:
    value = exchange.headers.get(name)
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise bad_header(f"the header {name.decode()} is not UTF-8") from None


def query_fields(exchange: Exchange) -> dict[str, str]:
    """The query as fields; one that is empty is as good as absent."""
    fields: dict[str, str] = {}
    for name, value in query_pairs(exchange.query):
        if name in fields and name in _QUERY_FIELDS:
            raise bad_query(f"{name} is given twice")
        fields[name] = value
    return {name: value for name, value in fields.items() if value}


def whole_number(fields: dict[str, str], name: str, most: int) -> int | None:
    """A field that is a whole number, if it is there."""
    text = fields.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX and int(text) <= most):
        raise bad_query(f"{name} is {text[:80]!r}, not a whole number of at most {most}")
    return int(text)


def check_body_size(exchange: Exchange) -> None:
    """Refuse a body that is larger than any call needs: little of it may be a lot of objects."""
    if len(exchange.body) > BODY_BYTES_MAX:
        raise invalid(f"a body of {len(exchange.body)} bytes; send at most {BODY_BYTES_MAX}")


def json_body(exchange: Exchange, form: type[T]) -> T:
    """The body as a struct."""
    check_json_type(exchange)
    check_body_size(exchange)
    try:
        return msgspec.json.decode(exchange.body, type=form)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise bad_json(str(error)) from None


def optional_body(exchange: Exchange, form: type[T]) -> T | None:
    """The same of a body that may be absent, or null."""
    if not exchange.body or exchange.body.strip() == b"null":
        return None
    return json_body(exchange, form)


def check_json_type(exchange: Exchange) -> None:
    """Refuse a body that does not say that it is JSON."""
    first = exchange.header(b"content-type").partition(",")[0]
    media = first.partition(";")[0].strip().lower()
    if media != _JSON and not (media.startswith("application/") and media.endswith("+json")):
        raise bad_json(f"the content type is {media[:80]!r}, not {_JSON}")


class Listing(NamedTuple):
    """Which part of a list is asked for."""

    prefix: str
    start_after: str
    limit: int


def listing_of(exchange: Exchange, check: Check) -> Listing:
    """What a request asks for of a list of names; `check` refuses what no name begins with."""
    fields = query_fields(exchange)
    limit = whole_number(fields, "limit", (1 << 64) - 1)
    return Listing(
        check(fields.get("prefix", ""), bad_query),
        check(fields.get("start_after", ""), bad_query),
        limit if limit is not None and 0 < limit <= PAGE_MAX else PAGE_MAX,
    )


def page_of(items: Iterable[T], limit: int) -> tuple[list[T], bool]:
    """The first items, and whether there are more."""
    left: Iterator[T] = iter(items)
    page = list(islice(left, limit))
    return page, len(page) == limit and next(left, None) is not None


def answer_json(exchange: Exchange, status: int, body: object, headers: Headers = ()) -> None:
    """Answer with a struct, or with bytes that are JSON already."""
    exchange.answer(status, body if isinstance(body, bytes) else _encode(body), headers=headers)


def answer_provisioned(exchange: Exchange, otherwise: int, result: str, body: object) -> None:
    """Answer 201 to a call that created something, else `otherwise`; and say what it has done."""
    status = 201 if result == CREATED else otherwise
    answer_json(exchange, status, body, ((PROVISION_RESULT, result.encode()),))


def answer_deleted(exchange: Exchange, ticket: Ticket[None]) -> None:
    """Answer a delete that has begun, or with why it has not."""
    if not failed(exchange, ticket):
        exchange.answer(202, b"", b"")


_encode = msgspec.json.Encoder().encode
