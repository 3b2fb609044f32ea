"""Appends to topics of the native API, and deletes: by key, by producer, plain, and as Arrow.

A topic has one writer, whose record number n then has seq n, or several that share it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import ClassVar

import msgspec
import pyarrow as pa

from tests.campaigns.soaking.content import payload
from tests.campaigns.soaking.ledger import Ledger, Writers
from tests.campaigns.soaking.site import Client, Site
from tests.campaigns.soaking.wire import Answer, Cut

ARROW = "application/vnd.apache.arrow.stream"
JSON = "application/json"
KEY_REPEATS = 23  # one append in so many is sent again, and has to change nothing
GROUP = 100  # seqs that are deleted by one tag


class Acked(msgspec.Struct):
    """What an append was told."""

    first_seq: int
    last_seq: int
    count: int
    deduped: bool


class Line:
    """How far a topic with one writer is."""

    def __init__(self) -> None:
        self.head = 0


def no_tag(seq: int) -> str | None:
    return None


class Appends:
    """Appends of one writer to one topic, so many records every so often, each exactly once."""

    how: ClassVar[str]

    def __init__(
        self, site: Site, topic: str, of: str, tag: Callable[[int], str | None] = no_tag
    ) -> None:
        self._site, self._topic, self._of, self._tag = site, topic, of, tag
        self._client = site.client()
        self.done = 0  # numbers that are acknowledged

    async def append(self, many: int) -> Acked:
        """Append the next records, until that is acknowledged."""
        while True:
            begun = time.monotonic()
            try:
                answer = await self._send(many)
            except Cut:
                found = await self._resolve(many)
                if found is None:
                    continue
                acked = found
            else:
                if answer.status not in (200, 201):
                    raise AssertionError(f"append to {self._topic}: {answer}")
                self._site.latencies.add(time.monotonic() - begun)
                acked = msgspec.json.decode(answer.body, type=Acked)
            self._site.ledger.expect(
                acked.count == many and acked.last_seq - acked.first_seq + 1 == many,
                f"{self._topic}: an append of {many} was told {acked}",
            )
            self._site.counts[f"records appended: {self.how}"] += many
            self.done += many
            return acked

    async def _send(self, many: int) -> Answer:
        raise NotImplementedError

    async def _resolve(self, many: int) -> Acked | None:
        """What came of an append without an answer; None: it can be sent again."""
        return None

    def _numbers(self, many: int) -> range:
        return range(self.done + 1, self.done + many + 1)

    def _body(self, many: int) -> bytes:
        rows = []
        for n in self._numbers(many):
            tag = self._tag(n)
            named = b"" if tag is None else b',"tag":"%b"' % tag.encode()
            rows.append(b'{"data":%b%b}' % (payload(self._of, n), named))
        return b'{"records":[%b]}' % b",".join(rows)

    async def _post(self, body: bytes, headers: Mapping[str, str], type: str = JSON) -> Answer:
        return await self._client.once(
            "POST", f"/v0/topics/{self._topic}", body, {"Content-Type": type, **headers}
        )


class Plain(Appends):
    """Without anything that would make a repeat known; the topic's head tells what was done."""

    how = "native, plain"

    async def _send(self, many: int) -> Answer:
        return await self._post(self._body(many), {})

    async def _resolve(self, many: int) -> Acked | None:
        state = await self._client.json("GET", f"/v0/topics/{self._topic}")
        if state["head_seq"] == self.done:
            return None
        return Acked(self.done + 1, state["head_seq"], state["head_seq"] - self.done, False)


class Keyed(Appends):
    """With idempotency keys, some of which are sent again although they were acknowledged."""

    how = "native, with keys"

    async def _send(self, many: int) -> Answer:
        body = self._body(many)
        headers = {"Idempotency-Key": f"{self._of}-{self.done}"}
        answer = await self._post(body, headers)
        if self.done % KEY_REPEATS == 0 and answer.status == 200:
            again = await self._post(body, headers)
            first, second = (msgspec.json.decode(a.body, type=Acked) for a in (answer, again))
            self._site.counts["repeats"] += 1
            self._site.ledger.expect(
                second.deduped and second.first_seq == first.first_seq,
                f"{self._topic}: a repeat was told {second}, the first {first}",
            )
        return answer


class Produced(Appends):
    """By an idempotent producer."""

    how = "native, by producers"

    def __init__(
        self, site: Site, topic: str, of: str, tag: Callable[[int], str | None] = no_tag
    ) -> None:
        super().__init__(site, topic, of, tag)
        self._sent = 0

    async def append(self, many: int) -> Acked:
        acked = await super().append(many)
        self._sent += 1
        return acked

    def _headers(self) -> dict[str, str]:
        return {
            "Producer-Id": self._of,
            "Producer-Epoch": "0",
            "Producer-Seq": str(self._sent),
        }

    async def _send(self, many: int) -> Answer:
        return await self._post(self._body(many), self._headers())


class Columns(Produced):
    """As Arrow, by a producer."""

    how = "native, as Arrow"

    async def _send(self, many: int) -> Answer:
        texts = [payload(self._of, n).decode() for n in self._numbers(many)]
        batch = pa.record_batch([pa.array(texts)], names=["data"])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        return await self._post(sink.getvalue().to_pybytes(), self._headers(), ARROW)


async def write_alone(site: Site, appends: Appends, line: Line, many: int, every: float) -> None:
    """Append to a topic that nobody else appends to."""
    for turn in count():
        if site.stopping.is_set():
            return
        acked = await appends.append(1 + turn % many if many < 100 else many)
        site.ledger.expect(
            acked.first_seq == line.head + 1,
            f"an append was told seq {acked.first_seq}, after {line.head}",
        )
        line.head = acked.last_seq
        await site.pause(every)


async def write_together(
    site: Site, appends: Appends, of: str, writers: Writers, many: int, every: float
) -> None:
    """Append to a topic that others append to as well."""
    while not site.stopping.is_set():
        acked = await appends.append(many)
        for place in range(many):
            writers.acked(of, appends.done - many + 1 + place, acked.first_seq + place)
        await site.pause(every)


class Deletes:
    """Which seqs of a topic somebody deleted, or is about to: by tag, by prefix, by seq.

    Groups of seqs are deleted one after the other, so three numbers say it all.
    """

    BEFORE_GROUPS = 100  # so many groups are kept

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.begun = -1  # the last group for which a delete was sent
        self.done = -1  # and was acknowledged
        self.before_begun = 0
        self.before_done = 0

    @staticmethod
    def tag(seq: int) -> str | None:
        group = seq // GROUP
        if seq % 10 == 1:
            return f"one-{group}"
        return f"some-{group}:{seq}" if seq % 10 in (2, 3) else None

    def may_miss(self, seq: int) -> bool:
        return seq < self.before_begun or (seq % 10 in (1, 2, 3) and seq // GROUP <= self.begun)

    def seen(self) -> Callable[[int], bool]:
        """Which seqs a read that begins now cannot show."""
        done, before = self.done, self.before_done

        def must_miss(seq: int) -> bool:
            return seq < before or (seq % 10 in (1, 2, 3) and seq // GROUP <= done)

        return must_miss

    async def run(self, site: Site, topic: str, line: Line) -> None:
        client = site.client()
        while not site.stopping.is_set():
            group = self.done + 1
            if line.head < (group + 2) * GROUP:
                await site.pause(1.0)
                continue
            self.begun = group
            await self._delete(client, site, topic, {"match": ["tag", "Eq", f"one-{group}"]}, 10)
            prefix = {"match": ["tag", "Glob", f"some-{group}:*"]}
            await self._delete(client, site, topic, prefix, 20)
            self.done = group
            before = (group - self.BEFORE_GROUPS) * GROUP
            if before > 0 and group % 10 == 0:
                # Of each hundred 30 were deleted by tag; there is no seq 0.
                gone = (before - max(self.before_done, 0)) * 7 // 10 - (not self.before_done)
                self.before_begun = before
                await self._delete(client, site, topic, {"before_seq": before}, gone)
                self.before_done = before

    async def _delete(
        self, client: Client, site: Site, topic: str, body: object, expected: int
    ) -> None:
        cuts = site.counts["requests without an answer"]
        found = await client.json("POST", f"/v0/topics/{topic}/delete", body)
        site.counts["deletes"] += 1
        site.counts["records deleted"] += found["deleted"]
        if site.counts["requests without an answer"] == cuts:
            self._ledger.expect(
                found["deleted"] == expected,
                f"{topic}: {body} deleted {found['deleted']}, not {expected}",
            )
