"""What every endpoint of the native API shares: the two vocabularies, bodies in, answers out.

Only this file knows that a topic is also called a box: `/v0/topics/...` and `/v0/boxes/...` are the
same data in two vocabularies, and a handler is made once for each.  It also owns how a JSON body is
read (content type, UTF-8, types, each with its own refusal), how a query is, and what an error and
the `performance` block look like.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar
from urllib.parse import parse_qsl

import msgspec

from headrace.core.clock import Clock
from headrace.core.errors import (
    Forbidden,
    HeadraceError,
    InvalidRequest,
    UnsupportedMediaType,
)
from headrace.core.limits import (
    native_topic_name_bytes_max,
    own_topic_prefix,
    reserved_topic_prefixes,
    seq_max,
)
from headrace.core.runtime import Ticket
from headrace.engine.topic_config import (
    EPHEMERAL,
    MEMORY,
    SHOWN_WHERE_SET,
    TopicConfig,
    decode_config,
)
from headrace.wire.exchange import JSON, Exchange, Header, Headers, Key, Reply

T = TypeVar("T")

U64_MAX: Final = (1 << 64) - 1
QUERY_FIELDS_MAX: Final = 100
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*", re.ASCII)
_TRUE: Final = frozenset({"true", "1"})
_FALSE: Final = frozenset({"false", "0"})

encode = msgspec.json.Encoder().encode


class Vocabulary:
    """The words of one of the two forms of the API; a `Dialect`."""

    name = "native"

    def __init__(self, noun: str, plural: str, default_tags: bool) -> None:
        self.noun = noun
        self.plural = plural
        self.default_tags = default_tags  # of `include_tags` in a diff

    def __repr__(self) -> str:
        return f"<{self.plural}>"

    def failure(self, error: HeadraceError) -> Reply:
        """An error as this vocabulary says it.

        >>> TOPICS.failure(InvalidRequest("limit is -1", fix="send 0 or more"))[1]
        b'{"error":{"code":"invalid_request","message":"limit is -1; send 0 or more"}}'
        """
        return error.status, encode({"error": self.describe(error)}), JSON, _error_headers(error)

    def describe(self, error: HeadraceError) -> dict[str, object]:
        """What is inside `error`."""
        described: dict[str, object] = {"code": self.word(error.code), "message": str(error)}
        if error.detail:
            detail = {self.word(k): v for k, v in error.detail.items()}
            if "limit" in detail:  # the name of a cap: `max_topics` is `max_boxes` for boxes
                detail["limit"] = self.word(str(detail["limit"]))
            described["detail"] = detail
        return described

    def word(self, word: str) -> str:
        """A code, a key or an event's name: `topic_not_found` is `box_not_found` for boxes."""
        return word

    def config(self, config: TopicConfig) -> dict[str, object]:
        """A config as it is echoed.

        >>> len(TOPICS.config(TopicConfig())), len(TOPICS.config(TopicConfig(retain_bytes_max=1)))
        (17, 20)
        """
        echoed: dict[str, object] = msgspec.structs.asdict(config)
        if not any(echoed[name] for name in SHOWN_WHERE_SET):
            for name in SHOWN_WHERE_SET:
                del echoed[name]
        return echoed

    def read_config(self, data: bytes) -> TopicConfig:
        """A config as it was sent."""
        return decode_config(data)


class BoxVocabulary(Vocabulary):
    """The older words.  Its class `memory` is what is now called `ephemeral`."""

    def word(self, word: str) -> str:
        return word.replace("topics", "boxes").replace("topic", "box")

    def config(self, config: TopicConfig) -> dict[str, object]:
        echoed = super().config(config)
        if config.durability == EPHEMERAL:
            echoed["durability"] = MEMORY
        return echoed

    def read_config(self, data: bytes) -> TopicConfig:
        config = decode_config(data)
        if config.durability != MEMORY:
            return config
        return msgspec.structs.replace(config, durability=EPHEMERAL)


TOPICS: Final = Vocabulary("topic", "topics", default_tags=False)
BOXES: Final = BoxVocabulary("box", "boxes", default_tags=True)


def dialect_of(path: str) -> Vocabulary:
    """In which words to refuse a path that has no route."""
    return BOXES if path.startswith("/v0/boxes") else TOPICS


def _error_headers(error: HeadraceError) -> Headers:
    """What HTTP wants beside a refusal: when to try again, what is allowed, how to sign in."""
    if error.retryable:
        return ((b"retry-after", b"%d" % _retry_seconds(error)),)
    if error.status == 405:
        allowed = error.detail.get("allow")
        return ((b"allow", ", ".join(allowed if isinstance(allowed, list) else ()).encode()),)
    if error.status == 401:
        return ((b"www-authenticate", b"Bearer"),)
    return ()


def _retry_seconds(error: HeadraceError) -> int:
    """When to try again, in whole seconds and not too early."""
    detail = error.detail
    if "retry_after_ms" in detail:
        return max(-(-int(str(detail["retry_after_ms"])) // 1000), 1)
    return int(str(detail.get("retry_after_s", 1)))


# Names


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


def failed(exchange: Exchange, ticket: Ticket[T]) -> bool:
    """Whether there is nothing to answer but an error, which then has been."""
    if exchange.answered:
        return True
    if ticket.error is not None:
        exchange.fail(ticket.error)
        return True
    return False


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


# Bodies


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
        raise InvalidRequest(f"the body is not JSON: {error}", fix="send valid JSON") from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply", fix="send flatter JSON") from None


def check_u64(name: str, value: int | None) -> int | None:
    """A number of 64 bits as the engine takes it: what is beyond every seq is the last seq."""
    if value is None or value <= seq_max:
        return value
    if value > U64_MAX:
        raise InvalidRequest(f"{name} is {value}", fix="send a whole number of 64 bits")
    return seq_max


# Queries


def query_of(exchange: Exchange) -> Mapping[str, str]:
    """The query's fields; of a repeated one the first counts."""
    if not exchange.query:
        return {}
    try:
        pairs = parse_qsl(
            exchange.query,
            keep_blank_values=True,
            errors="strict",
            max_num_fields=QUERY_FIELDS_MAX,
        )
    except ValueError as error:
        raise InvalidRequest(f"the query does not parse: {error}", fix="percent-encode") from None
    fields: dict[str, str] = {}
    for name, value in pairs:
        fields.setdefault(name, value)
    return fields


def flag(query: Mapping[str, str], name: str, default: bool) -> bool:
    """A yes or no of the query; anything else is the default.

    >>> flag({"touch": "0"}, "touch", True), flag({"touch": "maybe"}, "touch", True)
    (False, True)
    """
    value = query.get(name)
    if value in _TRUE:
        return True
    return False if value in _FALSE else default


# Answers


class Timing:
    """How long an answer took, as JSON and as a header."""

    __slots__ = ("header", "json")

    def __init__(self, exchange: Exchange, clock: Clock, parts: Sequence[tuple[str, int]] = ()):
        total = (clock.monotonic_ns() - exchange.started_ns) / 1e6
        self.json = f'{{"server_total_ms":{total:.3f}'
        timing = f"total;dur={total:.3f}"
        for name, ns in parts:
            self.json += f',"{name}_ms":{ns / 1e6:.3f}'
            timing += f", {name};dur={ns / 1e6:.3f}"
        self.header: Header = (b"server-timing", timing.encode("ascii"))

    def close(self, more: str = "") -> bytes:
        """The `performance` object; `more` are further fields, each with its comma in front."""
        return f"{self.json}{more}}}".encode("ascii")


def answer_object(
    exchange: Exchange, status: int, fields: bytes, timing: Timing, more: str = ""
) -> None:
    """Answer with an object whose fields (encoded, with braces) get a `performance` block."""
    body = fields[:-1] + b',"performance":' + timing.close(more) + b"}"
    exchange.answer(status, body, JSON, (timing.header,))
