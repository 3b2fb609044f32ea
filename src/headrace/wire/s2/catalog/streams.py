"""The streams of basins: found, created, changed and deleted, each stream by one call at a time.

The rules this file owns.  A stream is the topic `s2:<basin>/<stream>`, and keeps what it was
created with in the state of that topic.  Changes of one stream happen one after the other; a name
is free once its delete is on disk, and until then it is told to be pending.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, Literal, NamedTuple, TypeVar, cast

from msgspec.structs import replace

from headrace.core.errors import StreamDeleted, TopicNotFound
from headrace.core.runtime import Ticket
from headrace.core.steps import Line, Steps, follow, pause
from headrace.engine.engine import Engine
from headrace.engine.streams.operations import StreamCreated, StreamInfo
from headrace.engine.streams.spec import StreamSpec
from headrace.engine.topics.config import Durability, TopicConfig
from headrace.storage.block import KIND_BYTES
from headrace.wire.s2.catalog.entries import Basin
from headrace.wire.s2.configs import (
    OptionalStreamConfig,
    StreamConfig,
    decode_stream_config_header,
    resolve,
)
from headrace.wire.s2.empty_streams import EmptyStreams
from headrace.wire.s2.errors import (
    stream_already_exists,
    stream_deletion_pending,
    stream_not_found,
)
from headrace.wire.s2.names import TOPIC_PREFIX, split_topic, topic_name
from headrace.wire.s2.stream_own import (
    CONTENT_TYPE,
    DIALECT,
    StreamOwn,
    decode_own,
    topic_config,
)

T = TypeVar("T")

CREATED: Final = "created"
UPDATED: Final = "updated"
NOOP: Final = "noop"

# Changes of one stream that wait for the one in progress.
CHANGES_MAX: Final = 1_024
# Streams of a basin that are deleted at a time.
PORTION: Final = 256
# Streams that are looked at in one turn of the loop after a start.
START_PORTION: Final = 2_000
ENCRYPTION_ID_BYTES: Final = 16

DataOp = Literal["append", "read"]


class OpenStream(NamedTuple):
    """A stream that can be used."""

    topic: str
    info: StreamInfo
    own: StreamOwn


class ListedStream(NamedTuple):
    """A stream in a list."""

    name: str
    own: StreamOwn
    deleted_ms: int  # when its delete began; 0: it did not


class ProvisionedStream(NamedTuple):
    """A stream, and what a call has done to it."""

    name: str
    own: StreamOwn
    result: str


class BasinStreams:
    """The streams of all basins of one server."""

    def __init__(self, engine: Engine, basin: Callable[[str], Basin]) -> None:
        self._engine = engine
        self._basin = basin  # one that can be used, or a refusal
        self._lines: dict[str, Line] = {}  # of streams that are being changed
        self._deleting: dict[str, tuple[int, Ticket[None]]] = {}  # since when
        self._empty = EmptyStreams(engine, self._remove_empty)

    def start(self) -> Steps[None]:
        """Watch over the streams that a start brought back, a portion of them at a time."""
        last = ""
        while True:
            names = list(islice(self._engine.topic_names(TOPIC_PREFIX, last), START_PORTION))
            for name in names:
                topic = self._engine.find(name)
                if topic is not None and topic.stream is not None:
                    own = decode_own(topic.stream.own)
                    self._empty.watch(name, own.config.min_age_secs, topic.created_ms)
            if len(names) < START_PORTION:
                return
            last = names[-1]
            yield pause(self._engine.runtime, 0)

    def tick(self) -> None:
        """Delete streams that have been empty for as long as they may be."""
        self._empty.sweep()

    # Looking

    def find(self, basin: str, stream: str) -> OpenStream:
        """A stream of a basin that is there."""
        name = topic_name(basin, stream)
        if name in self._deleting:
            raise stream_deletion_pending(basin, stream)
        try:
            info = self._engine.streams.info(name)
        except TopicNotFound:
            raise stream_not_found(basin, stream) from None
        except StreamDeleted:
            raise stream_deletion_pending(basin, stream) from None
        return OpenStream(name, info, decode_own(info.state.own))

    def after(self, basin: str, stream: str, prefix: str) -> Iterator[ListedStream]:
        """The streams of a basin beyond a name that start with a prefix, in order.

        Nothing may be created or deleted while it is iterated.
        """
        start = len(topic_name(basin, ""))
        after = topic_name(basin, stream) if stream else ""
        for name in self._engine.topic_names(topic_name(basin, prefix), after):
            topic = self._engine.find(name)
            if topic is None or topic.stream is None or not topic.live:
                continue
            since_ms, _ = self._deleting.get(name, (0, None))
            yield ListedStream(name[start:], decode_own(topic.stream.own), since_ms)

    def open_for(
        self, op: DataOp, basin: str, stream: str, config_header: bytes | None
    ) -> OpenStream | Ticket[OpenStream]:
        """The stream that is to be appended to or read, created where its basin says so.

        `config_header` is the header `s2-stream-config`, which is read in any case.
        """
        given = None if config_header is None else decode_stream_config_header(config_header)
        owner = self._basin(basin)
        config = owner.config
        creates = config.create_stream_on_append if op == "append" else config.create_stream_on_read
        if not creates:
            return self.find(basin, stream)
        name = topic_name(basin, stream)
        topic = self._engine.find(name)
        if name in self._deleting or (topic is not None and topic.live):
            return self.find(basin, stream)
        return self._run(name, self._open(basin, stream, given))

    # Changing

    def create(
        self, basin: str, stream: str, given: OptionalStreamConfig | None, key: bytes
    ) -> Ticket[ProvisionedStream]:
        """Create a stream; the creation with this key (not b"") again is fine."""
        return self._provision(topic_name(basin, stream), self._create(basin, stream, given, key))

    def ensure(
        self,
        basin: str,
        stream: str,
        given: OptionalStreamConfig | None,
        replacing: Callable[[], None] = lambda: None,
    ) -> Ticket[ProvisionedStream]:
        """Create a stream, or give the one that is there this config and defaults.

        `replacing` is called in the second case, and may refuse it.
        """
        steps = self._ensure(basin, stream, given, replacing)
        return self._provision(topic_name(basin, stream), steps)

    def change(
        self, basin: str, stream: str, change: Callable[[StreamConfig, Basin], StreamConfig]
    ) -> Ticket[ProvisionedStream]:
        """Change the config of a stream."""
        return self._provision(topic_name(basin, stream), self._change(basin, stream, change))

    def delete(self, basin: str, stream: str) -> Ticket[None]:
        """Delete a stream; one that is being deleted is waited for."""
        name = topic_name(basin, stream)
        pending = self._deleting.get(name)
        return self._run(name, self._delete(name)) if pending is None else pending[1]

    def delete_all(self, basin: str) -> Steps[None]:
        """Delete the streams of a basin in which none can be created any more."""
        prefix = topic_name(basin, "")
        while True:
            names = list(islice(self._engine.topic_names(prefix), PORTION))
            if not names:
                return
            tickets = [self._run(name, self._delete(name, absent_is_fine=True)) for name in names]
            yield from tickets

    def _run(self, name: str, steps: Steps[T]) -> Ticket[T]:
        """Take steps that change a stream, after those that change it already."""
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = Line(
                self._engine.runtime, waiting_max=CHANGES_MAX, what="changes of this stream"
            )
        ticket = line.run(steps)

        def ended(_done: Ticket[T]) -> None:
            if not line.busy and self._lines.get(name) is line:
                del self._lines[name]

        ticket.when_done(ended)
        return ticket

    def _provision(self, name: str, steps: Steps[T]) -> Ticket[T]:
        """The same, of a call that is refused at once while the stream is being deleted."""
        if name in self._deleting:
            return follow(self._engine.runtime, steps)
        return self._run(name, steps)

    def _open(
        self, basin: str, stream: str, given: OptionalStreamConfig | None
    ) -> Steps[OpenStream]:
        if self._existing(basin, stream) is None:
            yield from self._make(basin, stream, given, b"")
        return self.find(basin, stream)

    def _create(
        self, basin: str, stream: str, given: OptionalStreamConfig | None, key: bytes
    ) -> Steps[ProvisionedStream]:
        self._basin(basin)
        known = self._existing(basin, stream)
        if known is None:
            return (yield from self._make(basin, stream, given, key))
        if not key or known.own.creation_key != key:
            raise stream_already_exists(basin, stream)
        return ProvisionedStream(stream, known.own, NOOP)

    def _ensure(
        self,
        basin: str,
        stream: str,
        given: OptionalStreamConfig | None,
        replacing: Callable[[], None],
    ) -> Steps[ProvisionedStream]:
        self._basin(basin)
        if self._existing(basin, stream) is None:
            return (yield from self._make(basin, stream, given, b""))
        replacing()

        def replaced(_config: StreamConfig, owner: Basin) -> StreamConfig:
            return resolve(given, owner.config.default_stream_config)

        return (yield from self._change(basin, stream, replaced))

    def _existing(self, basin: str, stream: str) -> OpenStream | None:
        """The stream if it is there; nothing of it is on its way to the log but records."""
        name = topic_name(basin, stream)
        if name not in self._deleting and self._engine.find(name) is None:
            return None
        return self.find(basin, stream)

    def _make(
        self, basin: str, stream: str, given: OptionalStreamConfig | None, key: bytes
    ) -> Steps[ProvisionedStream]:
        engine, name = self._engine, topic_name(basin, stream)
        owner = self._basin(basin)
        cipher = owner.config.stream_cipher
        own = StreamOwn(
            engine.clock.now_ms(),
            resolve(given, owner.config.default_stream_config),
            cipher,
            key,
            b"" if cipher is None else engine.random.bytes(ENCRYPTION_ID_BYTES),
        )
        spec = StreamSpec(
            dialect=DIALECT,
            content_type=CONTENT_TYPE,
            kind=KIND_BYTES,
            config=self._topic_config(own.config),
            own=own.encode(),
            sealed=cipher is not None,
        )
        created: StreamCreated = yield engine.streams.create(name, spec)
        assert created.created, name
        self._empty.watch(name, own.config.min_age_secs, own.created_ms)
        return ProvisionedStream(stream, own, CREATED)

    def _change(
        self, basin: str, stream: str, change: Callable[[StreamConfig, Basin], StreamConfig]
    ) -> Steps[ProvisionedStream]:
        owner = self._basin(basin)
        known = self.find(basin, stream)
        config = change(known.own.config, owner)
        if config == known.own.config:
            return ProvisionedStream(stream, known.own, NOOP)
        own = replace(known.own, config=config)
        yield self._engine.streams.update(
            known.topic, config=self._topic_config(config), own=own.encode()
        )
        self._empty.watch(known.topic, config.min_age_secs, self._engine.clock.now_ms())
        return ProvisionedStream(stream, own, UPDATED)

    def _delete(
        self, name: str, *, absent_is_fine: bool = False, if_empty: bool = False
    ) -> Steps[None]:
        engine = self._engine
        if engine.find(name) is None:
            if absent_is_fine:
                return
            raise stream_not_found(*split_topic(name))
        ended: Ticket[None] = Ticket(engine.runtime)
        self._deleting[name] = engine.clock.now_ms(), ended
        try:
            yield engine.streams.delete(name, if_empty=if_empty)
        except Exception as error:
            del self._deleting[name]
            ended.fail(error)
            if isinstance(error, TopicNotFound):
                raise stream_not_found(*split_topic(name)) from None
            raise
        del self._deleting[name]
        self._empty.forget(name)
        ended.resolve(None)

    def _remove_empty(self, name: str) -> Ticket[None]:
        return self._run(name, self._delete_empty(name))

    def _delete_empty(self, name: str) -> Steps[None]:
        # Looked at again: what has changed the stream meanwhile was told so.
        if self._empty.is_over(name):
            yield from self._delete(name, absent_is_fine=True, if_empty=True)

    def _topic_config(self, config: StreamConfig) -> TopicConfig:
        return topic_config(config, cast("Durability", self._engine.settings.s2_durability))
