# Written by tools/unasync.py from _async/queues.py: change that, then run it.
"""The calls of queues: claim jobs, acknowledge them, give them back, hold them longer.

They are calls of `Client`; its sender sends them.  A claim is not repeated when its outcome is
unknown: what it leased comes back when the lease has run out.  Acks and extends are, and so are
nacks of `Job`s: what the first attempt did is then among the `skipped`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace.api.queues import Acked, Claimed, Extended, Job, Nacked, Redriven
from headrace.client import calls
from headrace.client._sync.sender import Sender
from headrace.client.answers import value
from headrace.client.calls import Match


class QueueCalls(Sender):
    """What a client does with queues.  `node` says who works; only it can end its leases.

    >>> from headrace.client import Client
    >>> def main(url):
    ...     with Client(url) as client:
    ...         client.put_topic("jobs", {"type": "queue"})
    ...         client.append("jobs", ["easy", "broken", "long"])
    ...         claimed = client.claim("jobs", "worker-1", 3, lease_ms=10_000)
    ...         easy, broken, long = claimed.jobs
    ...         client.nack("jobs", "worker-1", [broken], delay_ms=5_000)
    ...         client.extend("jobs", "worker-1", [long], 60_000)
    ...         return client.ack("jobs", "worker-1", [easy])
    >>> import tempfile
    >>> from headrace.testing.process import ServerProcess
    >>> with tempfile.TemporaryDirectory() as directory, ServerProcess(directory) as server:
    ...     main(server.url)
    Acked(topic='jobs', acked=1, skipped=[], ready=0, in_flight=1)
    """

    def claim(
        self, topic: str, node: str, count: int = 1, *, lease_ms: int | None = None
    ) -> Claimed:
        """Lease up to `count` jobs to a node; none is an answer too."""
        return value(self._send(calls.claim(topic, node, count, lease_ms)), Claimed)

    def ack(self, topic: str, node: str, jobs: Iterable[Job | int]) -> Acked:
        """These jobs, or the jobs of these seqs, are done: they are deleted.

        A `Job` counts under the very lease it came with, a seq under any lease of the node.
        """
        return value(self._send(calls.ack(topic, node, jobs)), Acked)

    def nack(
        self, topic: str, node: str, jobs: Iterable[Job | int], *, delay_ms: int = 0
    ) -> Nacked:
        """Give jobs back, to be claimed at once or after a delay."""
        return value(self._send(calls.nack(topic, node, jobs, delay_ms)), Nacked)

    def extend(self, topic: str, node: str, jobs: Iterable[Job | int], lease_ms: int) -> Extended:
        """Hold jobs for `lease_ms` from now, under the leases they have."""
        return value(self._send(calls.extend(topic, node, jobs, lease_ms)), Extended)

    def redrive(
        self,
        topic: str,
        *,
        match: Match | None = None,
        meta: Mapping[str, Any] | None = None,
        to: str | None = None,
        from_seq: int = 0,
        limit: int | None = None,
    ) -> Redriven:
        """Move dead letters back to the queues they came from: a step of at most `limit` of them.

        Only those with the tag `match`, with these values in their meta, or of the queue `to`.  Go
        on with `from_seq=next_from_seq` until it is `done`.
        """
        call = calls.redrive(topic, match, meta, to, from_seq, limit)
        return value(self._send(call), Redriven)
