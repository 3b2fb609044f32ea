"""The engine: one data directory, opened, and everything that can be done with it in-process.

This file only names what callers can do, and they need nothing else of the engine: its shared state
is for its own packages.  Every call is made on the loop thread and answers with a `Ticket`:
`.result()` in a synchronous program, `await` in an asyncio one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from headrace.api.records import DeleteResult
from headrace.core.errors import HeadraceError
from headrace.core.runtime import Ticket
from headrace.engine.appending.admission import PLAIN, Append, Records
from headrace.engine.appending.payloads import Payload, make_batch
from headrace.engine.appending.pending_append import Answered, Appended, PendingAppend
from headrace.engine.appending.producers import ProducerClaim
from headrace.engine.lifetime import EngineLifetime
from headrace.engine.reading.durable_wait import synced
from headrace.engine.reading.page import Page
from headrace.engine.reading.page_rows import ReadRequest
from headrace.engine.reading.payload_ranges import PayloadRanges
from headrace.engine.removal.deleting import TagMatch
from headrace.engine.state import failed
from headrace.engine.topics.config import TopicConfig, make_config
from headrace.engine.topics.lifecycle import Deleted, Put
from headrace.engine.topics.listing import TopicInfo, TopicPage, info_of, page_of
from headrace.engine.topics.topic import Topic
from headrace.storage.archive import Archive
from headrace.storage.block import AnyBatch

if TYPE_CHECKING:
    from headrace.storage.tools.backup import BackupReport

T = TypeVar("T")
ConfigLike = TopicConfig | Mapping[str, object] | None
_NO_CONDITIONS = (None,) * 5


class Engine(EngineLifetime):
    """A durable event log in one directory.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with Engine.open(directory) as engine:
    ...         appended = engine.append("orders", [{"id": 1}, {"id": 2}]).result()
    ...         page = engine.read("orders").result()
    >>> appended.last_seq, [record.data for record in page.records]
    (2, [b'{"id":1}', b'{"id":2}'])
    """

    # Topics

    def put_topic(self, name: str, config: ConfigLike = None) -> Ticket[Put]:
        """Create a topic, or replace the whole config of the one that is there."""
        return self._attempt(lambda: self._lifecycle.put(name, make_config(config)))

    def delete_topic(
        self, name: str, *, if_empty: bool = False, allowed: Callable[[str], bool] | None = None
    ) -> Ticket[Deleted]:
        """Delete a topic and everything in it, once routers have copied what they have left of it.

        `allowed`: the names that the caller may use; a topic of routers with others is not deleted.
        """
        return self._attempt(
            lambda: self._lifecycle.delete(name, if_empty=if_empty, allowed=allowed)
        )

    def topic(self, name: str, *, touch: bool = False) -> TopicInfo:
        """The state of a topic, now; `TopicNotFound` if there is none.

        `touch`: the caller consumes the topic, which counts for its priority.
        """
        topic = self._state.topic(name)
        self.routers.drain_into(name)  # of class fsync, and where files are read: wait for it first
        return info_of(self._state, topic, touch=touch)

    def topics(self, prefix: str = "") -> list[TopicInfo]:
        """The state of all topics whose name starts with `prefix`, by name."""
        return self.list_topics(prefix, limit=len(self._state.by_name)).topics

    def list_topics(
        self,
        prefix: str = "",
        after: str = "",
        limit: int = 100,
        *,
        allowed: Callable[[str], bool] | None = None,
        touch: bool = False,
    ) -> TopicPage:
        """A page of topics in the byte order of their names, from beyond the name `after` on.

        What it costs follows `limit`, not the number of topics.
        """
        self._state.refuse_unready()
        self._state.loading.refuse(None)
        return page_of(self._state, prefix, after, limit, allowed, touch)

    def find(self, name: str) -> Topic | None:
        """The topic of this name, live or being created, or None."""
        return self._state.find(name)

    def topic_names(self, prefix: str = "", after: str = "") -> Iterator[str]:
        """The names that start with `prefix`, in order, from beyond the name `after` on.

        Nothing may be created or deleted while it is iterated.
        """
        return self._state.topics.names_after(after, prefix)

    def touch(self, topic: str | Topic) -> None:
        """Note that a topic is consumed now, by a read, a look at its state or a delivery."""
        if isinstance(topic, str):
            topic = self._state.topic(topic)
        topic.touch(self._state.clock.now_ms())

    # Records

    def append(
        self,
        name: str,
        records: AnyBatch | Sequence[Payload],
        *,
        config: ConfigLike = None,
        create: bool | None = None,
        idempotency_key: str | None = None,
        producer: ProducerClaim | None = None,
        expected_head_seq: int | None = None,
        state: bytes | None = None,
        disable_backpressure: bool = False,
    ) -> Ticket[Appended]:
        """Append records, all or none, creating the topic on the way.

        `records` is a `Batch` of columns, or a list whose items are bytes (stored as they are)
        or values (stored as JSON).  With `disable_backpressure` it is not refused because the
        server is overloaded.
        """
        how = PLAIN
        try:
            given = (create, idempotency_key, producer, expected_head_seq, state)
            if config is not None or disable_backpressure or given != _NO_CONDITIONS:
                made = None if config is None else make_config(config)
                how = Append(made, *given, disable_backpressure)
            batch = records if isinstance(records, AnyBatch) else make_batch(records)
            return self._appender.append(name, batch, how)
        except HeadraceError as error:
            return failed(self.runtime, error)

    def append_batch(self, name: str, batch: Records, how: Append = PLAIN) -> Ticket[Appended]:
        """`append` for callers that have columns and conditions already: the wire layer."""
        pending = PendingAppend(self.runtime, name, batch, how)
        self._appender.append_all([pending])
        return pending

    def append_all(
        self, asked: Sequence[PendingAppend], answered: Answered, *, ends_turn: bool = False
    ) -> None:
        """Append all of these, in their order; `answered` hears of each that is done.

        It hears of those together that are done together.  `ends_turn`: the log is written now,
        for nothing else comes in this turn.
        """
        self._appender.append_all(asked, answered, ends_turn=ends_turn)

    def read(
        self,
        name: str,
        from_seq: int = 0,
        *,
        limit: int | None = None,
        bytes_max: int | None = None,
        nodes: str | Sequence[str] = (),
        epoch: int | None = None,
        from_ts: int | None = None,
        last: int | None = None,
        columns: bool = False,
    ) -> Ticket[Page]:
        """Read records after `from_seq`, from a time on, or the last ones.

        Records whose node is in `nodes` are left out.  With `columns` the page has Arrow batches.
        """
        settings = self.settings
        request = ReadRequest(
            from_seq,
            settings.read_limit_default if limit is None else limit,
            settings.read_bytes_default if bytes_max is None else bytes_max,
            (nodes,) if isinstance(nodes, str) else nodes,
            epoch,
            from_ts,
            last,
            columns,
        )
        return self._attempt(lambda: self._reader.read(name, request))

    def consume(self, name: str, request: ReadRequest) -> Page | Ticket[Page]:
        """`read` for callers that have checked the request already: the wire layer.

        Returns the page itself where nothing has to be waited for, and raises what is refused at
        once.  It counts for the priority of the topic, as `touch` does.
        """
        return self._reader.consume(name, request)

    def payload_ranges(
        self, name: str, request: ReadRequest, sealed_bytes_max: int
    ) -> PayloadRanges | Ticket[PayloadRanges | None] | None:
        """The payloads behind a seq as ranges of sealed files, for answers that are sent as bytes.

        None: `consume` a page instead.  As there, the request is checked already.
        """
        return self._reader.payload_ranges(name, request, sealed_bytes_max)

    def wait(self, name: str, after_seq: int) -> Ticket[None]:
        """Done when there is a record beyond `after_seq`, or the topic is gone."""
        return self._attempt(lambda: self._reader.wait(name, after_seq))

    def delete(
        self, name: str, *, before_seq: int | None = None, match: str | TagMatch | None = None
    ) -> Ticket[DeleteResult]:
        """Delete records below a seq, by tag (`"tag"` or `"prefix*"`), or both at once."""

        def run() -> Ticket[DeleteResult]:
            parsed = match if isinstance(match, TagMatch | None) else TagMatch.parse(match)
            return self._deleter.delete(name, before_seq, parsed)

        return self._attempt(run)

    def synced(self, name: str) -> Ticket[None]:
        """Done when everything of a topic that is visible now is on disk, power loss or not."""
        return self._attempt(lambda: synced(self._state, name))

    # Upkeep

    def checkpoint(self) -> Ticket[None]:
        """Seal what the log holds, merge files, write a snapshot."""

        def run() -> Ticket[None]:
            self._state.refuse_unready()
            return self._checkpointer.run()

        return self._attempt(run)

    def backup(self, target: str, *, replace: bool = False) -> Ticket[BackupReport]:
        """Bring a backup in a directory or object store up to date; serving goes on meanwhile.

        Only what changed since the last backup there is copied.  `replace` allows a target that
        holds the backup of another directory.
        """
        from headrace.engine.sealing.backup import backup

        def run() -> Ticket[BackupReport]:
            self._state.refuse_unready()
            return backup(self, target, replace=replace)

        return self._attempt(run)

    def read_archive_from(self, archive: Archive | None) -> None:
        """Serve from `archive` what topics with `cold_reads` no longer hold."""
        self._state.set_archive(archive)

    def _attempt(self, call: Callable[[], Ticket[T]]) -> Ticket[T]:
        """Run a call; what it refuses is the ticket's error, so that callers have one way."""
        try:
            return call()
        except HeadraceError as error:
            return failed(self.runtime, error)
