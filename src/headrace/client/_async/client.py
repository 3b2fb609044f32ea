"""The client for asyncio: every call of the native API that a program makes.

The rule it owns: each call is tried until it is answered, is refused for good, or its deadline is
over (`retry.py` decides).  `_sync/client.py` is generated from this file by tools/unasync.py.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from headrace.client import calls
from headrace.client._async.net import pause
from headrace.client._async.pipelines import AsyncPipelineCalls
from headrace.client._async.pool import AsyncPool
from headrace.client._async.queues import AsyncQueueCalls
from headrace.client.answers import failure, value
from headrace.client.calls import Call, Config, Match, Nodes
from headrace.client.message import Address, Heads, Response
from headrace.client.models import (
    Appended,
    ArchivedTo,
    ArrowPage,
    Health,
    Manifest,
    Page,
    Pin,
    PinReleased,
    Producer,
    Put,
    Ready,
    Record,
    RecordsDeleted,
    RouterBody,
    RouterDeleted,
    RouterPage,
    RouterPut,
    RouterState,
    RouterSummary,
    Tombstone,
    TopicDeleted,
    TopicPage,
    TopicState,
    TopicSummary,
)
from headrace.client.retry import left_ms, next_pause, retry_after_ms
from headrace.client.tls import context
from headrace.core.clock import NS_PER_MS, SystemClock, SystemRandom
from headrace.core.errors import HeadraceError, Unreachable

if TYPE_CHECKING:
    import pyarrow as pa

CONNECTIONS_MAX: Final = 100
TIMEOUT_MS: Final = 30_000
DEADLINE_MS: Final = 30_000
FOLLOW_WAIT_MS: Final = 25_000
FOLLOW_LIMIT: Final = 1_000


class AsyncClient(AsyncQueueCalls, AsyncPipelineCalls):
    """A client of one server, for asyncio.

    `token` is an API key.  `tls` replaces the default TLS context of an https address; the name of
    a PEM file, such as "ca.pem", stands for one that trusts those authorities.  An attempt may take
    `timeout_ms`; a call that failed and may be repeated is, while `deadline_ms` have not
    passed.  An append without a key or a producer gets a random key, so that a repeat is stored
    once; with `random_keys=False` it does not, and is not repeated when its outcome is unknown.

    >>> async def main(url):
    ...     async with AsyncClient(url) as client:
    ...         await client.append("orders", [{"id": 1}, {"id": 2}])
    ...         page = await client.diff("orders")
    ...         return [record.data for record in page.records]
    >>> import asyncio, tempfile
    >>> from headrace.testing.process import ServerProcess
    >>> with tempfile.TemporaryDirectory() as directory, ServerProcess(directory) as server:
    ...     asyncio.run(main(server.url))
    [{'id': 1}, {'id': 2}]
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        tls: ssl.SSLContext | str | None = None,
        timeout_ms: int = TIMEOUT_MS,
        deadline_ms: int = DEADLINE_MS,
        connections_max: int = CONNECTIONS_MAX,
        random_keys: bool = True,
    ) -> None:
        address = Address.of(url)
        self._prefix = address.prefix
        self._heads = Heads(address.authority, token)
        self._pool = AsyncPool(address, context(tls) if address.tls else None, connections_max)
        self._timeout_ms = timeout_ms
        self._deadline_ms = deadline_ms
        self._random_keys = random_keys
        self._random = SystemRandom()
        self._now_ns = SystemClock.monotonic_ns

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections that are kept."""
        self._pool.close()

    async def append(
        self,
        topic: str,
        records: Iterable[object],
        *,
        node: str | None = None,
        idempotency_key: str | None = None,
        producer: Producer | None = None,
        expected_head_seq: int | None = None,
        create: bool | None = None,
        config: Config | None = None,
        return_seqs: bool = False,
        disable_backpressure: bool = False,
    ) -> Appended:
        """Append records, all or none.

        Each is a payload (anything that JSON has), or a `Draft` with tag, node and meta too.  Bytes
        are for `append_arrow`.  With `config` a topic that is not there is created so.  With
        `disable_backpressure` it is not refused because the server is overloaded.
        """
        call = calls.append(
            topic,
            records,
            node=node,
            key=self._key(idempotency_key, producer),
            producer=producer,
            expected_head_seq=expected_head_seq,
            create=create,
            config=config,
            return_seqs=return_seqs,
            disable_backpressure=disable_backpressure,
        )
        return value(await self._send(call), Appended)

    async def append_arrow(
        self,
        topic: str,
        data: pa.Table | pa.RecordBatch,
        *,
        idempotency_key: str | None = None,
        producer: Producer | None = None,
        expected_head_seq: int | None = None,
        create: bool | None = None,
        deadline_ms: int | None = None,
        disable_backpressure: bool = False,
    ) -> Appended:
        """Append rows: a column `data`, and optionally `tag`, `node`, `meta`.

        A `binary` column of data is stored as bytes, a `string` column must be JSON.  With
        `create=False` a topic that is not there is an error.  `deadline_ms` shortens the client's
        own: a call under a key must not be repeated once the topic has forgotten the key.
        """
        call = calls.append_arrow(
            topic,
            data,
            key=self._key(idempotency_key, producer),
            producer=producer,
            expected_head_seq=expected_head_seq,
            create=create,
            disable_backpressure=disable_backpressure,
        )
        if deadline_ms is not None:
            deadline_ms = min(deadline_ms, self._deadline_ms)
        return value(await self._send(call, deadline_ms), Appended)

    async def diff(
        self,
        topic: str,
        from_seq: int | None = None,
        *,
        from_ts: int | None = None,
        last: int | None = None,
        limit: int | None = None,
        node: Nodes | None = None,
        wait_ms: int = 0,
        include_tags: bool = True,
        include_meta: bool = True,
        max_batch_bytes: int | None = None,
        epoch: int | None = None,
    ) -> Page:
        """Read what comes after `from_seq`, or from the time `from_ts` on, or the `last` so many.

        With `wait_ms` an empty answer waits that long for a record (a long poll).
        """
        call = calls.diff(
            topic,
            from_seq,
            from_ts=from_ts,
            last=last,
            limit=limit,
            node=node,
            wait_ms=wait_ms,
            include_tags=include_tags,
            include_meta=include_meta,
            max_batch_bytes=max_batch_bytes,
            epoch=epoch,
        )
        return value(await self._send(call), Page)

    async def diff_arrow(
        self,
        topic: str,
        from_seq: int | None = None,
        *,
        from_ts: int | None = None,
        last: int | None = None,
        limit: int | None = None,
        node: Nodes | None = None,
        wait_ms: int = 0,
        include_tags: bool = True,
        include_meta: bool = True,
        max_batch_bytes: int | None = None,
        epoch: int | None = None,
    ) -> ArrowPage:
        """`diff` as columns: `table` of the answer is a `pyarrow.Table`, else it is as a `Page`."""
        call = calls.diff(
            topic,
            from_seq,
            from_ts=from_ts,
            last=last,
            limit=limit,
            node=node,
            wait_ms=wait_ms,
            include_tags=include_tags,
            include_meta=include_meta,
            max_batch_bytes=max_batch_bytes,
            epoch=epoch,
            arrow=True,
        )
        return calls.arrow_page((await self._send(call)).body)

    async def follow(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        epoch: int | None = None,
        node: Nodes | None = None,
        to_head: bool = False,
        wait_ms: int = FOLLOW_WAIT_MS,
        limit: int = FOLLOW_LIMIT,
    ) -> AsyncIterator[Record | Tombstone]:
        """Every record after `from_seq`, as they come; a `Tombstone` where some are lost.

        It goes on for ever, or with `to_head` until there is nothing more to read.  Keep the seq of
        the last one, and start there next time.
        """
        while True:
            page = await self.diff(
                topic,
                from_seq,
                limit=limit,
                node=node,
                epoch=epoch,
                wait_ms=0 if to_head else wait_ms,
            )
            if page.tombstone is not None:
                yield page.tombstone
            for record in page.records:
                yield record
            from_seq, epoch = page.next_from_seq, page.epoch
            if to_head and page.caught_up:
                return

    async def delete_records(
        self, topic: str, *, before_seq: int | None = None, match: Match | None = None
    ) -> RecordsDeleted:
        """Delete what is older than `before_seq`, or what has the tag `match` ("x", "x*"), or both.

        It is not repeated when its outcome is unknown: a repeat could delete later records.
        """
        call = calls.delete_records(topic, before_seq, match)
        return value(await self._send(call), RecordsDeleted)

    async def put_topic(self, topic: str, config: Config | None = None) -> Put:
        """Create a topic, or replace its whole config: what is left out gets its default."""
        return value(await self._send(calls.put_topic(topic, config)), Put)

    async def topic(self, topic: str, *, touch: bool = True) -> TopicState:
        """The state of a topic; with `touch` this look counts as a read."""
        return value(await self._send(calls.topic(topic, touch)), TopicState)

    async def archived(self, topic: str, epoch: int, to_seq: int) -> ArchivedTo:
        """Say that records up to `to_seq` are safe elsewhere; answers with what holds then."""
        return value(await self._send(calls.archived(topic, epoch, to_seq)), ArchivedTo)

    async def topics(self, prefix: str = "") -> AsyncIterator[TopicSummary]:
        """All topics whose names begin with `prefix`, by name, a page at a time."""
        cursor = None
        while True:
            page = await self.topics_page(prefix, cursor=cursor)
            for summary in page.topics:
                yield summary
            cursor = page.next_cursor
            if cursor is None:
                return

    async def topics_page(
        self, prefix: str = "", *, page_size: int | None = None, cursor: str | None = None
    ) -> TopicPage:
        """One page of the list of topics."""
        return value(await self._send(calls.topics(prefix, page_size, cursor)), TopicPage)

    async def delete_topic(self, topic: str, *, if_empty: bool = False) -> TopicDeleted:
        """Delete a topic with all it holds; one that is not there is no error."""
        return value(await self._send(calls.delete_topic(topic, if_empty)), TopicDeleted)

    async def put_router(
        self,
        router: str,
        source: str,
        dest: str,
        *,
        filter: Match | None = None,
        preserve_node: bool = True,
        preserve_tag: bool = True,
        create_dest: bool = True,
        allow_cycle: bool = False,
        guarantee: str = "at_least_once",
        backfill: bool | int = False,
    ) -> RouterPut:
        """Copy what is appended to `source` into `dest` from now on, or change how that is done.

        `filter` is a tag ("x", "x*").  With `backfill` a new router begins with what the source
        holds, or after a seq.
        """
        body = RouterBody(
            source,
            dest,
            filter if filter is None or isinstance(filter, str) else list(filter),
            preserve_node,
            preserve_tag,
            create_dest,
            allow_cycle,
            guarantee,
            backfill,
        )
        return value(await self._send(calls.put_router(router, body)), RouterPut)

    async def router(self, router: str) -> RouterState:
        """A router, once it has caught up with its source."""
        return value(await self._send(calls.router(router)), RouterState)

    async def routers(
        self, prefix: str = "", *, source: str | None = None, dest: str | None = None
    ) -> AsyncIterator[RouterSummary]:
        """All routers whose names begin with `prefix`, or from or to a topic, by name."""
        cursor = None
        while True:
            page = await self.routers_page(prefix, source=source, dest=dest, cursor=cursor)
            for summary in page.routers:
                yield summary
            cursor = page.next_cursor
            if cursor is None:
                return

    async def routers_page(
        self,
        prefix: str = "",
        *,
        source: str | None = None,
        dest: str | None = None,
        page_size: int | None = None,
        cursor: str | None = None,
    ) -> RouterPage:
        """One page of the list of routers."""
        call = calls.routers(prefix, source, dest, page_size, cursor)
        return value(await self._send(call), RouterPage)

    async def delete_router(self, router: str) -> RouterDeleted:
        """Copy nothing more; copies stay.  One that is not there is no error."""
        return value(await self._send(calls.delete_router(router)), RouterDeleted)

    async def segments(self, topic: str) -> Manifest:
        """The manifest of a topic: its sealed files, and where the rest begins."""
        return value(await self._send(calls.segments(topic)), Manifest)

    async def renew_pin(self, topic: str, pin: str) -> Pin:
        """Keep the files of a manifest for another while.  Tried once: a reader can do without."""
        return value(await self._send(calls.pin("POST", topic, pin), deadline_ms=0), Pin)

    async def release_pin(self, topic: str, pin: str) -> PinReleased:
        """The files of a manifest may go.  Tried once: a pin that stays lapses by itself."""
        return value(await self._send(calls.pin("DELETE", topic, pin), deadline_ms=0), PinReleased)

    async def health(self) -> Health:
        """Whether the process answers."""
        return value(await self._send(calls.probe("/v0/health")), Health)

    async def ready(self) -> Ready:
        """Whether the server takes calls; `NotReady` or `ShuttingDown`, at once, if not."""
        return value(await self._send(calls.probe("/v0/ready"), deadline_ms=0), Ready)

    async def metrics(self) -> dict[str, Any]:
        """The server's figures."""
        return value(await self._send(calls.probe("/v0/metrics")), dict[str, Any])

    async def metrics_text(self) -> str:
        """The server's figures in the text format of Prometheus."""
        response = await self._send(calls.probe("/v0/metrics", accept="text/plain"))
        return response.body.decode()

    async def request(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Response:
        """One request, one attempt, and the answer whatever its status."""
        head = self._heads.head(method, self._prefix + target, headers or {}, len(body))
        return await self._pool.exchange(head, body, self._timeout_ms)

    def _key(self, key: str | None, producer: Producer | None) -> str | None:
        if key is None and producer is None and self._random_keys:
            return calls.new_key(self._random)
        return key

    async def _send(self, call: Call, deadline_ms: int | None = None) -> Response:
        """The answer to a call, however many attempts it takes, or the error that is final."""
        head = self._heads.head(
            call.method, self._prefix + call.target, call.headers, len(call.body)
        )
        limit_ms = self._deadline_ms if deadline_ms is None else deadline_ms
        deadline_ns = self._now_ns() + (limit_ms + call.wait_ms) * NS_PER_MS
        attempt = 0
        while True:
            attempt += 1
            after_ms = 0
            error: HeadraceError
            try:
                timeout_ms = self._timeout_ms + call.wait_ms
                response = await self._pool.exchange(head, call.body, timeout_ms)
                if response.status < 300:
                    return response
                error = failure(response)
                after_ms = retry_after_ms(response.headers, error.detail)
            except Unreachable as lost:
                error = lost
            until = next_pause(
                error,
                attempt=attempt,
                repeatable=call.repeatable,
                retry_after_ms=after_ms,
                left_ms=left_ms(deadline_ns, self._now_ns()),
                random=self._random,
            )
            if until is None:
                raise error
            await pause(until.ms)
