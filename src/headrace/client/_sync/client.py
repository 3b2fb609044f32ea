# Written by tools/unasync.py from _async/client.py: change that, then run it.
"""The client for programs without an event loop: every call of the native API that a program makes.

The calls of records and probes are here; those of topics, queues and pipelines are in the modules
beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Unpack

from headrace.api.probes import Health, Ready
from headrace.api.records import Appended, DeleteResult, Page, Producer, Record, Tombstone
from headrace.api.storage import ScrubPage
from headrace.client import calls
from headrace.client._sync.pipelines import PipelineCalls
from headrace.client._sync.queues import QueueCalls
from headrace.client._sync.topics import TopicCalls
from headrace.client.answers import value
from headrace.client.arrow_pages import ArrowPage, arrow_page
from headrace.client.calls import ArrowOptions, Config, Match, Nodes

if TYPE_CHECKING:
    import pyarrow as pa

FOLLOW_WAIT_MS: Final = 25_000
FOLLOW_LIMIT: Final = 1_000


class Client(TopicCalls, QueueCalls, PipelineCalls):
    """A client of one server; threads may share it.

    `token` is an API key.  `tls` replaces the default TLS context of an https address; the name of
    a PEM file, such as "ca.pem", stands for one that trusts those authorities.  An attempt may take
    `timeout_ms`; a call that failed and may be repeated is, while `deadline_ms` have not
    passed.  An append without a key or a producer gets a random key, so that a repeat is stored
    once; with `random_keys=False` it does not, and is not repeated when its outcome is unknown.

    >>> def main(url):
    ...     with Client(url) as client:
    ...         client.append("orders", [{"id": 1}, {"id": 2}])
    ...         page = client.diff("orders")
    ...         return [record.data for record in page.records]
    >>> import tempfile
    >>> from headrace.testing.process import ServerProcess
    >>> with tempfile.TemporaryDirectory() as directory, ServerProcess(directory) as server:
    ...     main(server.url)
    [{'id': 1}, {'id': 2}]
    """

    def append(
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
        return value(self._send(call), Appended)

    def append_arrow(
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
        return value(self._send(call, deadline_ms), Appended)

    def diff(
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
        """Read records after `from_seq`, or from the time `from_ts` on, or the `last` of them.

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
        return value(self._send(call), Page)

    def diff_arrow(
        self, topic: str, from_seq: int | None = None, **options: Unpack[ArrowOptions]
    ) -> ArrowPage:
        """`diff`, with all its options, as columns: `table` of the answer is a `pyarrow.Table`.

        Else the answer is as a `Page`.  `include_headers` adds the column `headers`.
        """
        call = calls.diff(topic, from_seq, arrow=True, **options)
        return arrow_page((self._send(call)).body)

    def follow(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        epoch: int | None = None,
        node: Nodes | None = None,
        to_head: bool = False,
        wait_ms: int = FOLLOW_WAIT_MS,
        limit: int = FOLLOW_LIMIT,
    ) -> Iterator[Record | Tombstone]:
        """Every record after `from_seq`, as they come; a `Tombstone` where some are lost.

        It goes on for ever, or with `to_head` until there is nothing more to read.  Keep the seq of
        the last one, and start there next time.
        """
        while True:
            page = self.diff(
                topic,
                from_seq,
                limit=limit,
                node=node,
                epoch=epoch,
                wait_ms=0 if to_head else wait_ms,
            )
            if page.tombstone is not None:
                yield page.tombstone
            yield from page.records
            from_seq, epoch = page.next_from_seq, page.epoch
            if to_head and page.caught_up:
                return

    def delete_records(
        self, topic: str, *, before_seq: int | None = None, match: Match | None = None
    ) -> DeleteResult:
        """Delete what is older than `before_seq`, or what has the tag `match` ("x", "x*"), or both.

        It is not repeated when its outcome is unknown: a repeat could delete later records.
        """
        call = calls.delete_records(topic, before_seq, match)
        return value(self._send(call), DeleteResult)

    def health(self) -> Health:
        """Whether the process answers."""
        return value(self._send(calls.probe("/v0/health")), Health)

    def ready(self) -> Ready:
        """Whether the server takes calls; `NotReady` or `ShuttingDown`, at once, if not."""
        return value(self._send(calls.probe("/v0/ready"), deadline_ms=0), Ready)

    def scrubbed_files(
        self, *, page_size: int | None = None, cursor: str | None = None
    ) -> ScrubPage:
        """When each file of the server was last verified, and which are damaged; a page of them."""
        return value(self._send(calls.scrubbed_files(page_size, cursor)), ScrubPage)

    def metrics(self) -> dict[str, Any]:
        """The server's figures."""
        return value(self._send(calls.probe("/v0/metrics")), dict[str, Any])

    def metrics_text(self) -> str:
        """The server's figures in the text format of Prometheus."""
        response = self._send(calls.probe("/v0/metrics", accept="text/plain"))
        return response.body.decode()

    def _key(self, key: str | None, producer: Producer | None) -> str | None:
        if key is None and producer is None and self._random_keys:
            return calls.new_key(self._random)
        return key
