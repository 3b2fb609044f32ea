"""Creating streams: a new one, a fork of another, or the one that is there already.

Only this file compares what is asked for with what there is.  A stream, its state and its first
records are one commit, so that no crash leaves a stream without what it was created with.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from headrace.core.errors import InvalidRequest, TopicNotFound
from headrace.core.runtime import Ticket
from headrace.core.steps import Steps
from headrace.engine.appending.admission import PLAIN, Records, check_batch, check_quota, rows_of
from headrace.engine.appending.append_block import encode_append
from headrace.engine.reading.page import Page
from headrace.engine.reading.page_rows import ReadRequest
from headrace.engine.reading.read import read_topic
from headrace.engine.removal import retention
from headrace.engine.state import EngineState
from headrace.engine.streams.positions import position_of, resolve
from headrace.engine.streams.refusals import conflict
from headrace.engine.streams.removal import StreamRemoval, settled
from headrace.engine.streams.rules import kinds_of
from headrace.engine.streams.spec import START, Position, StreamSpec
from headrace.engine.streams.state import StreamState, encode_stream, media_type
from headrace.engine.topics.config import EPHEMERAL
from headrace.engine.topics.lifecycle import Lifecycle, Put
from headrace.engine.topics.topic import Topic
from headrace.storage.block import KIND_BYTES, KIND_JSON, Batch, Block
from headrace.storage.block_encoding import BlockPlace
from headrace.storage.rows import Record


class _Origin(NamedTuple):
    """Where a fork begins."""

    source: Topic
    anchor: Position  # as the source names it
    parent_to: int  # records up to here are inherited
    prefix: bytes = b""  # of the next append of the source: what is copied


class StreamCreation:
    """Creates the streams of one engine."""

    def __init__(self, state: EngineState, lifecycle: Lifecycle, removal: StreamRemoval) -> None:
        self._state = state
        self._lifecycle = lifecycle
        self._removal = removal
        # Forks that are asked for and not made yet, by name: they wait for their sources.
        self._coming: dict[str, Ticket[None]] = {}

    def create(
        self, name: str, spec: StreamSpec, records: Records | None
    ) -> Steps[tuple[bool, Topic]]:
        """Whether the stream was created, and which it is."""
        size = self._check(spec, records)
        if spec.source is None:
            return (yield from self._create(name, spec, records, size))
        # Of what was asked for before alone, so that no two forks wait for each other.
        source = self._coming.get(spec.source)
        coming = self._coming[name] = Ticket[None](self._state.runtime)
        try:
            if source is not None:
                yield source
            return (yield from self._create(name, spec, records, size))
        finally:
            if self._coming.get(name) is coming:
                del self._coming[name]
            coming.resolve(None)

    def _create(
        self, name: str, spec: StreamSpec, records: Records | None, size: int
    ) -> Steps[tuple[bool, Topic]]:
        while True:
            topic = yield from self._existing(name, spec)
            if topic is not None:
                return False, topic
            origin: _Origin | None = None
            if spec.source is not None:
                origin = yield from self._origin(name, spec)
                if origin is None:
                    continue  # things have changed while the source was read
            topic = yield self._begin(name, spec, origin, records, size)
            return True, topic

    def _check(self, spec: StreamSpec, records: Records | None) -> int:
        """Refuse what could never be created; return the bytes of the records."""
        if spec.config.durability == EPHEMERAL:
            raise InvalidRequest(
                "a stream of class ephemeral would lose its state", fix="use another durability"
            )
        if spec.sub_offset and (spec.source is None or spec.fork_at is None):
            raise InvalidRequest(
                "a part of an append is asked for, but not of which",
                fix="name the source and the offset before that append",
            )
        if spec.source is None and (spec.kind is None or spec.content_type is None):
            raise InvalidRequest("a stream without a type", fix="give it a content type")
        return 0 if records is None else check_batch(self._state.settings, records, PLAIN)

    # What is there

    def _existing(self, name: str, spec: StreamSpec) -> Steps[Topic | None]:
        """The stream of this name, if it is what is asked for; None: the name is free."""
        state = self._state
        while True:
            state.refuse_unready()
            state.loading.refuse(name)
            topic = state.find(name)
            if topic is None:
                return None
            if topic.stream_changes:
                yield from settled(state, topic)
                continue
            stream = topic.stream
            if stream is None:
                raise conflict(
                    name, "dialect", f"{name!r} is a topic, and no stream", "use another name"
                )
            if not stream.deleted and state.expiry.is_over(topic, stream):
                yield from self._removal.expire(topic)
                continue
            if stream.deleted:
                raise conflict(
                    name,
                    "deleted",
                    f"{name!r} is deleted, and kept for its forks",
                    "use another name, or delete the forks first",
                )
            differs = _difference(topic, stream, spec)
            if differs is not None:
                raise conflict(
                    name,
                    differs,
                    f"{name!r} exists with another {differs}",
                    "ask for what it was created with, or use another name",
                )
            return topic

    # Where a fork begins

    def _source(self, spec: StreamSpec) -> Topic:
        state, name = self._state, spec.source
        assert name is not None
        state.loading.refuse(name)
        topic = state.find(name)
        stream = topic.stream if topic is not None else None
        if topic is None or not topic.live or topic.closed or stream is None:
            raise TopicNotFound.named(name)
        over = state.expiry.is_over(topic, stream)
        newest, _ = state.staged_streams.newest(topic)
        if stream.deleted or (newest is not None and newest.deleted) or (over and topic.forks):
            raise conflict(
                name, "source_deleted", f"{name!r} is deleted", "fork a stream that is there"
            )
        if over:
            raise TopicNotFound.named(name)
        if stream.dialect != spec.dialect:
            raise conflict(name, "dialect", f"{name!r} is of another dialect", "fork one of yours")
        asked = spec.content_type
        if asked is not None and media_type(asked) != media_type(stream.content_type):
            raise conflict(
                name,
                "content_type",
                f"{name!r} has the type {stream.content_type}, not {asked}",
                "ask for that type, or for none",
            )
        return topic

    def _origin(self, name: str, spec: StreamSpec) -> Steps[_Origin | None]:
        coming = self._state.find(spec.source or "")
        if coming is not None and not coming.live:
            yield from settled(self._state, coming)  # its creation is on its way to the log
            if self._state.find(name) is not None:
                return None
        source = self._source(spec)
        if source.bounded:
            retention.enforce(self._state, source)
        anchor = source.head if spec.fork_at is None else resolve(source, spec.fork_at)
        at, more = position_of(source, anchor), spec.sub_offset
        if spec.fork_at == START:
            at = START
        if not more:
            return _Origin(source, at, anchor)
        stream = source.stream
        assert stream is not None
        if stream.kind == KIND_JSON:
            last_seq = yield from self._message_of_append(source, anchor, more)
            if self._state.find(name) is not None or self._source(spec) is not source:
                return None
            return _Origin(source, at, last_seq)
        record = yield from self._record_behind(source, anchor)
        data = record.data if record is not None else b""
        if record is None or more > len(data):
            raise _beyond(source, more, str(len(data)))
        if self._state.find(name) is not None or self._source(spec) is not source:
            return None
        if more == len(data):
            return _Origin(source, at, record.seq)
        return _Origin(source, at, anchor, bytes(data[:more]))

    def _message_of_append(self, source: Topic, anchor: int, more: int) -> Steps[int]:
        """The seq of the message that is so far into the append behind a seq."""
        first = yield from self._record_behind(source, anchor)
        # Where retention took what was there, that is not the next seq.
        left = 0 if first is None else _messages_behind(source, first.seq - 1)
        if first is None or more > left:
            raise _beyond(source, more, str(left))
        last = yield from self._record_behind(source, first.seq + more - 2)
        if last is None or last.append_first_seq != first.append_first_seq:
            raise _beyond(source, more, "fewer")
        return last.seq

    def _record_behind(self, topic: Topic, seq: int) -> Steps[Record | None]:
        """The record behind a seq; None: there is none."""
        request = ReadRequest(seq, 1, self._state.settings.record_bytes_max)
        page: Page = yield read_topic(self._state, topic, request)
        return page.records[0] if page.count else None

    # Making it

    def _begin(
        self,
        name: str,
        spec: StreamSpec,
        origin: _Origin | None,
        records: Records | None,
        size: int,
    ) -> Ticket[Topic]:
        state, lifecycle = self._state, self._lifecycle
        stream = _new_state(spec, origin)
        if records is not None and not kinds_of(records) <= {stream.kind}:
            raise InvalidRequest("records of another kind than the stream's", fix="send its kind")
        if origin is not None and origin.prefix:
            size += len(origin.prefix)
            records = _behind(origin.prefix, records)
        check_quota(state, size)
        lifecycle.check_creatable(name, spec.config, create=True)
        shard = state.shard_of(state.topics.next_id)
        state.throttle.refuse_if_full(shard, disable_backpressure=False)
        if origin is None:
            topic = lifecycle.new_stream(name, spec.config, encode_stream(stream))
        else:
            topic = lifecycle.new_fork(
                name, spec.config, origin.source, origin.parent_to, encode_stream(stream)
            )
        block = self._block(topic, records)
        put: Ticket[Put] = Ticket(state.runtime)
        done: Ticket[Topic] = Ticket(state.runtime)
        state.staged_streams.begin(topic, stream, put)

        def created(answer: Ticket[Put]) -> None:
            state.staged_streams.end(topic, answer)
            if answer.error is not None:
                if origin is not None:
                    self._removal.collect(origin.source)  # it may have been deleted meanwhile
                done.fail(answer.error)
                return
            state.expiry.watch(topic)
            self._removal.look_later()
            if topic.bounded:
                retention.enforce(state, topic)
            done.resolve(topic)

        put.when_done(created)
        lifecycle.begin_stream(topic, block, put)
        return done

    def _block(self, topic: Topic, records: Records | None) -> Block | None:
        if records is None:
            return None
        now = self._state.clock.now_ms()
        ts = max(now, topic.last_ts)
        place = BlockPlace(topic.id, topic.staged + 1, ts, now, 0)
        assert rows_of(records) > 0
        return encode_append(records, b"", place, topic.last_ts)


def _new_state(spec: StreamSpec, origin: _Origin | None) -> StreamState:
    """What a stream that is asked for begins as."""
    kind, content_type = spec.kind, spec.content_type
    source = origin.source.stream if origin is not None else None
    if source is not None:
        kind, content_type = source.kind, content_type or source.content_type
    assert kind is not None and content_type is not None
    stream = StreamState(
        spec.dialect,
        content_type,
        kind,
        closed=spec.closed,
        ttl_s=spec.ttl_s,
        expires_ms=spec.expires_ms,
        expires_at=spec.expires_at,
        own=spec.own,
        sealed=spec.sealed,
    )
    if origin is None or source is None:
        return stream
    if spec.ttl_s is None and spec.expires_ms is None:
        stream = replace(
            stream,
            ttl_s=source.ttl_s,
            expires_ms=source.expires_ms,
            expires_at=source.expires_at,
        )
    return replace(
        stream,
        source=origin.source.name,
        fork_seq=origin.anchor.seq,
        fork_incarnation=origin.anchor.incarnation,
        sub_offset=spec.sub_offset,
    )


def _difference(topic: Topic, stream: StreamState, spec: StreamSpec) -> str | None:
    """In what a stream is another one than what is asked for."""
    asked, config = spec.content_type, topic.config
    if asked is not None and media_type(asked) != media_type(stream.content_type):
        return "content_type"
    given = (spec.ttl_s, spec.expires_ms)
    inherits = spec.source is not None and given == (None, None)
    if not inherits and given != (stream.ttl_s, stream.expires_ms):
        return "expiry"
    if spec.closed != stream.closed:
        return "closed"
    if stream.dialect != spec.dialect:
        return "dialect"
    if (spec.source or "") != stream.source:
        return "source"
    if spec.source is not None and spec.sub_offset != stream.sub_offset:
        return "sub_offset"
    if spec.fork_at is not None and spec.fork_at not in _anchors(topic, stream):
        return "fork_offset"
    if (spec.config.ttl_ms, spec.config.cap_bytes) != (config.ttl_ms, config.cap_bytes):
        return "retention"
    return None


def _anchors(topic: Topic, stream: StreamState) -> tuple[Position, ...]:
    """Where a fork begins, by each name that the place has."""
    seq = stream.fork_seq
    # A restored backup has new incarnations; clients may know the old one or the new one.
    anchors = Position(stream.fork_incarnation, seq), position_of(topic, seq)
    return anchors if seq else (*anchors, START)


def _messages_behind(topic: Topic, seq: int) -> int:
    """How many messages the append behind a seq has at most: files are not looked into."""
    owner, last = topic, topic.head
    while seq < owner.parent_to and owner.parent is not None:
        owner, last = owner.parent, min(last, owner.parent_to)
    block = next(owner.blocks.from_seq(seq + 1), None)
    if block is not None and block.first_seq <= seq + 1:
        last = min(last, block.last_seq)
    return max(last - seq, 0)


def _behind(prefix: bytes, records: Records | None) -> Records:
    """A copied part of an append, and the first records of a stream behind it."""
    if records is None:
        return prefix
    if type(records) is bytes:
        return Batch([prefix, records], KIND_BYTES)
    assert isinstance(records, Batch)
    return records._replace(data=[prefix, *records.data])


def _beyond(source: Topic, asked: int, left: str) -> InvalidRequest:
    return InvalidRequest(
        f"{asked} of the next append of {source.name!r} are asked for, it has {left}",
        fix="ask for at most that many, or fork at a later offset",
        detail={"topic": source.name},
    )
