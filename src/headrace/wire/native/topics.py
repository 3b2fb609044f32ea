"""Topics of the native API: create, look at, list, delete; and deleting records.

One object for each vocabulary.  What a topic is and when it changes is the engine's; how it looks
in JSON is here.
"""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from typing import Final

import msgspec

from headrace.api.records import DeleteBody, DeleteResult
from headrace.api.topics import ArchivedBody, TopicStream
from headrace.core.errors import HeadraceError, InvalidRequest
from headrace.core.runtime import Ticket
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.engine.removal.deleting import TagMatch
from headrace.engine.removal.watermark import ArchivedTo
from headrace.engine.streams.state import StreamState
from headrace.engine.topics.config import TopicConfig
from headrace.engine.topics.lifecycle import Deleted, Put
from headrace.engine.topics.listing import TopicInfo
from headrace.wire.bodies import check_json_type, decode
from headrace.wire.exchange import Exchange, Key
from headrace.wire.failures import answering, failed
from headrace.wire.native.answers import Timing, answer_object, encode
from headrace.wire.native.request_checks import (
    check_dead_letter,
    check_new_name,
    check_not_own,
    check_told_u64,
    check_u64,
)
from headrace.wire.native.vocabulary import Vocabulary
from headrace.wire.queries import flag, query_of

_DELETE_DECODER: Final = msgspec.json.Decoder(DeleteBody)
_ARCHIVED_DECODER: Final = msgspec.json.Decoder(ArchivedBody)
_CURSOR_BYTES_MAX: Final = 4_096
_U64_DIGITS_MAX: Final = 19


class _Cursor(msgspec.Struct):
    after: str


class TopicsApi:
    """Topics in one vocabulary."""

    def __init__(self, engine: Engine, settings: Settings, vocabulary: Vocabulary) -> None:
        self._engine = engine
        self._settings = settings
        self._vocabulary = vocabulary
        self._clock = engine.runtime.clock

    # Create, look at, delete

    def put(self, exchange: Exchange) -> None:
        """Create a topic, or replace its whole config."""
        name = exchange.params[0]
        config = TopicConfig()
        if exchange.body:
            check_json_type(exchange)
            config = self._vocabulary.read_config(exchange.body)
        if name not in self._engine.topics_by_name:
            check_new_name(name)
        check_not_own(name)
        check_dead_letter(config, exchange.key)

        def answer(ticket: Ticket[Put]) -> None:
            if failed(exchange, ticket):
                return
            put = ticket.result()
            fields = {
                self._vocabulary.noun: put.topic,
                "created": put.created,
                "epoch": put.epoch,
                "config": self._vocabulary.config(put.config),
            }
            status = 201 if put.created else 200
            answer_object(exchange, status, encode(fields), Timing(exchange, self._clock))

        self._engine.put_topic(name, config).when_done(answering(exchange, answer))

    def get(self, exchange: Exchange) -> None:
        """Answer with the state of a topic, once routers have copied what they owe it."""
        touch = flag(query_of(exchange), "touch", True)

        def answer(_: object) -> None:
            try:
                if not exchange.answered:
                    self._state(exchange, touch)
            except HeadraceError as error:
                exchange.fail(error)

        drained = self._engine.routers.drain_into(exchange.params[0])
        if drained is None:
            self._state(exchange, touch)
        else:
            drained.when_done(answering(exchange, answer))

    def _state(self, exchange: Exchange, touch: bool) -> None:
        info = self._engine.topic(exchange.params[0], touch=touch)
        fields: dict[str, object] = {
            self._vocabulary.noun: info.topic,
            "type": info.config.type,
            "epoch": info.epoch,
            "head_seq": info.head_seq,
            "earliest_seq": info.earliest_seq,
            "next_seq": info.next_seq,
            "count": info.count,
            "bytes": info.bytes,
            "config": self._vocabulary.config(info.config),
            "effective_priority": info.effective_priority,
            "last_write_ts": info.last_write_ms or None,
            "last_read_ts": info.last_read_ms or None,
        }
        if info.archived_seq:
            fields["archived_seq"] = info.archived_seq
        if info.overtaken_seq:
            fields["overtaken_seq"] = info.overtaken_seq
        if info.config.type == "queue":
            jobs = self._engine.queues.counts(info.topic)
            shown = {
                "ready": jobs.ready,
                "in_flight": jobs.in_flight,
                "dead_lettered": jobs.dead_lettered,
            }
            if jobs.unreadable:
                shown["unreadable"] = jobs.unreadable
            fields["queue"] = shown
        if info.stream is not None:
            fields["stream"] = _stream(info.stream, exchange.key)
        answer_object(exchange, 200, encode(fields), Timing(exchange, self._clock))

    def list(self, exchange: Exchange) -> None:
        """Answer with a page of topics, by name."""
        query = query_of(exchange)
        key = exchange.key
        infos, after = self._engine.list_topics(
            query.get("prefix", ""),
            read_cursor(query.get("cursor", "")),
            page_size_of(query.get("page_size", ""), self._settings),
            allowed=None if key is None or not key.has_prefixes else key.allows_name,
            touch=flag(query, "touch", False),
        )
        listed = [self._listed(info, key) for info in infos]
        fields: dict[str, object] = {self._vocabulary.plural: listed}
        if after is not None:
            fields["next_cursor"] = write_cursor(after)
        answer_object(exchange, 200, encode(fields), Timing(exchange, self._clock))

    def _listed(self, info: TopicInfo, key: Key | None) -> dict[str, object]:
        listed: dict[str, object] = {
            self._vocabulary.noun: info.topic,
            "head_seq": info.head_seq,
            "earliest_seq": info.earliest_seq,
            "count": info.count,
            "bytes": info.bytes,
            "durable": info.config.durable,
            "effective_priority": info.effective_priority,
            "epoch": info.epoch,
        }
        if info.stream is not None:
            listed["stream"] = _stream(info.stream, key)
        return listed

    def delete(self, exchange: Exchange) -> None:
        """Delete a topic and everything in it; absent is no error."""
        name = exchange.params[0]
        check_not_own(name)
        if_empty = flag(query_of(exchange), "if_empty", False)

        def answer(ticket: Ticket[Deleted]) -> None:
            if failed(exchange, ticket):
                return
            fields = {
                self._vocabulary.noun: name,
                "deleted": ticket.result().deleted,
                "routers_removed": ticket.result().routers_removed,
            }
            answer_object(exchange, 200, encode(fields), Timing(exchange, self._clock))

        key = exchange.key
        allowed = key.allows_name if key is not None and key.has_prefixes else None
        ticket = self._engine.delete_topic(name, if_empty=if_empty, allowed=allowed)
        ticket.when_done(answering(exchange, answer))

    def archived(self, exchange: Exchange) -> None:
        """Note that the records up to a seq are kept elsewhere, too."""
        body = decode(exchange, _ARCHIVED_DECODER)
        epoch, to_seq = check_told_u64("epoch", body.epoch), check_told_u64("to_seq", body.to_seq)
        assert epoch is not None and to_seq is not None

        def answer(ticket: Ticket[ArchivedTo]) -> None:
            if failed(exchange, ticket):
                return
            now = ticket.result()
            fields = {
                self._vocabulary.noun: now.topic,
                "epoch": now.epoch,
                "archived_seq": now.archived_seq,
                "head_seq": now.head_seq,
            }
            answer_object(exchange, 200, encode(fields), Timing(exchange, self._clock))

        self._engine.archives.told(exchange.params[0], epoch, to_seq).when_done(
            answering(exchange, answer)
        )

    # Records

    def delete_records(self, exchange: Exchange) -> None:
        """Delete records below a seq, by tag, or both at once."""
        body = decode(exchange, _DELETE_DECODER)
        check_not_own(exchange.params[0])
        if body.before_seq is None and body.match is None:
            raise InvalidRequest("nothing to delete by", fix="send before_seq, match or both")
        match = None if body.match is None else parse_match(body.match)
        before_seq = check_u64("before_seq", body.before_seq)

        def answer(ticket: Ticket[DeleteResult]) -> None:
            if failed(exchange, ticket):
                return
            done = ticket.result()
            fields = {
                self._vocabulary.noun: done.topic,
                "deleted": done.deleted,
                "earliest_seq": done.earliest_seq,
                "head_seq": done.head_seq,
                "count": done.count,
                "bytes": done.bytes,
            }
            answer_object(exchange, 200, encode(fields), Timing(exchange, self._clock))

        name = exchange.params[0]
        self._engine.delete(name, before_seq=before_seq, match=match).when_done(
            answering(exchange, answer)
        )


def _stream(stream: StreamState, key: Key | None) -> TopicStream:
    """A stream as it is shown; a key with prefixes learns no name that it may not use."""
    source = stream.source or None
    if source is not None and key is not None and not key.allows_name(source):
        source = None
    return TopicStream(
        stream.dialect,
        stream.content_type,
        stream.closed,
        forked_from=source,
        ttl_s=stream.ttl_s,
        expires=stream.expires_at or None,
    )


def page_size_of(text: str, settings: Settings) -> int:
    """How many items a page of a list has; the default where the query has no number."""
    size = settings.page_size_default
    if text.isascii() and text.isdigit() and len(text) <= _U64_DIGITS_MAX:
        size = int(text)
    return min(max(size, 1), settings.page_size_max)


def parse_match(match: str | list[str], name: str = "match") -> TagMatch:
    """`["tag", "Eq", v]`, `["tag", "Glob", "prefix*"]`, or a bare string.

    >>> parse_match(["tag", "Glob", "tenant42:*"])
    TagMatch(tag='tenant42:', prefix=True)
    """
    if isinstance(match, str):
        return TagMatch.parse(match)
    if len(match) != 3 or match[0] != "tag" or match[1] not in ("Eq", "Glob"):
        raise InvalidRequest(
            f"{name} is {match!r}", fix='send ["tag", "Eq", "x"] or ["tag", "Glob", "x*"]'
        )
    if match[1] == "Eq":
        return TagMatch(match[2])
    if not match[2].endswith("*"):
        raise InvalidRequest(f"Glob {match[2]!r} does not end with *", fix="end it with *")
    return TagMatch(match[2][:-1], prefix=True)


def write_cursor(after: str) -> str:
    """Where the next page of a list begins; safe in a query as it is.

    >>> read_cursor(write_cursor("orders"))
    'orders'
    """
    return urlsafe_b64encode(encode(_Cursor(after))).rstrip(b"=").decode("ascii")


def read_cursor(text: str) -> str:
    """What `write_cursor` wrote; "" is the beginning."""
    if not text:
        return ""
    try:
        if len(text) > _CURSOR_BYTES_MAX:
            raise ValueError("too long")
        # A plus sign in a query is a space once decoded; both alphabets are taken.
        raw = text.replace(" ", "+").replace("-", "+").replace("_", "/").rstrip("=")
        decoded = b64decode(raw + "=" * (-len(raw) % 4), validate=True)
        return msgspec.json.decode(decoded, type=_Cursor).after
    except (ValueError, msgspec.MsgspecError, UnicodeDecodeError):
        raise InvalidRequest("the cursor does not parse", fix="use next_cursor as given") from None
