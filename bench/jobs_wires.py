"""How producers and workers speak to each server: ready-made bytes, and what an answer must hold.

A producer sends a batch, waits until all of it is acknowledged, sends the next.  A worker claims,
acknowledges all it got at once, waits for that answer where there is one, claims again; a claim
that comes back empty is repeated at once.  Whatever is not a success raises `BadAnswer`.
"""

from __future__ import annotations

import re
import time
from array import array

from bench.wires import JSON_HEADERS, BadAnswer, Wire, document, http_request

JOB = re.compile(rb'"\$seq":(\d+),"lease_id":"(\w+)"')
LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")


class Work:
    """What all producers and workers of a round share."""

    def __init__(self, jobs: int, batch: int, claim: int) -> None:
        assert jobs % batch == 0, (jobs, batch)
        self.jobs = jobs
        self.batch = batch
        self.claim = claim
        self.to_send = jobs // batch  # batches
        self.claimed: list[bytes] = []  # what names each job that was claimed
        self.done = 0
        self.empty = 0  # claims that got nothing
        self.claims = array("d")  # seconds each took
        self.acks = array("d")

    def next_batch(self) -> bool:
        """Whether there is one more to send; if so, it is the caller's."""
        self.to_send -= 1
        return self.to_send >= 0

    @property
    def all_claimed(self) -> bool:
        return len(self.claimed) >= self.jobs

    def check(self) -> None:
        """Each job was claimed once and is done: otherwise no figure is made of it."""
        if not self.done == len(self.claimed) == len(set(self.claimed)) == self.jobs:
            raise BadAnswer(
                f"{self.jobs} jobs, {len(self.claimed)} claims of {len(set(self.claimed))} of them,"
                f" {self.done} done"
            )


class JobWire(Wire):
    """A producer or a worker."""

    def begin(self) -> None:
        """The first request."""
        raise NotImplementedError

    def heard(self, buffer: bytearray, size: int) -> None:
        """Take what came in, and send what follows from it."""
        raise NotImplementedError


class ProducerWire(JobWire):
    """Sends the same request for each batch."""

    def __init__(self, port: int, work: Work, request: bytes) -> None:
        self.work = work
        self.request = request
        super().__init__(port)

    def begin(self) -> None:
        if self.work.next_batch():
            self.socket.sendall(self.request)


class WorkerWire(JobWire):
    """Sends the same request for each claim, and counts what it holds."""

    def __init__(self, port: int, work: Work, request: bytes) -> None:
        self.work = work
        self.request = request
        self.holding = 0
        self.at = 0.0
        super().__init__(port)

    def begin(self) -> None:
        self.at = time.perf_counter()
        self.socket.sendall(self.request)


class HttpWire(JobWire):
    """HTTP/1.1 without pipelining, every answer as a whole."""

    def heard(self, buffer: bytearray, size: int) -> None:
        if size == 0:
            raise BadAnswer("the connection was closed")
        data = self.rest + bytes(buffer[:size])
        head_end = data.find(b"\r\n\r\n")
        length = LENGTH.search(data, 0, head_end + 2) if head_end > 0 else None
        if length is None or len(data) < head_end + 4 + int(length[1]):
            self.rest = data
            return
        self.rest = b""
        if not data.startswith(b"HTTP/1.1 20"):
            raise BadAnswer(data[:500].decode("latin-1"))
        self.answered(data[head_end + 4 :])

    def answered(self, body: bytes) -> None:
        raise NotImplementedError


class Produce(ProducerWire, HttpWire):
    """Appends of a batch."""

    def __init__(self, port: int, work: Work, topic: str) -> None:
        records = b",".join(b'{"data":%b}' % document(number=n) for n in range(work.batch))
        path = f"/v0/topics/{topic}?return_seqs=false"
        request = http_request("POST", path, b'{"records":[%b]}' % records, JSON_HEADERS)
        super().__init__(port, work, request)

    def answered(self, body: bytes) -> None:
        self.begin()


class Claim(WorkerWire, HttpWire):
    """Claims, and acknowledges by lease ids what it got."""

    def __init__(self, port: int, work: Work, topic: str, number: int) -> None:
        self.node = b'"node":"worker-%d"' % number
        body = b'{%b,"max":%d,"lease_ms":60000}' % (self.node, work.claim)
        request = http_request("POST", f"/v0/topics/{topic}/claim", body, JSON_HEADERS)
        head = http_request("POST", f"/v0/topics/{topic}/ack", b"", JSON_HEADERS)
        self.ack_head = head.replace(b"Content-Length: 0", b"Content-Length: %d")
        super().__init__(port, work, request)

    def answered(self, body: bytes) -> None:
        now = time.perf_counter()
        work = self.work
        if self.holding:
            if b'"acked":%d,' % self.holding not in body:
                raise BadAnswer(body[:500].decode())
            work.acks.append(now - self.at)
            work.done += self.holding
            self.holding = 0
            if not work.all_claimed:
                self.begin()
            return
        jobs = JOB.findall(body)
        if not jobs:
            work.empty += 1
            if not work.all_claimed:
                self.begin()
            return
        work.claims.append(now - self.at)
        seqs = [seq for seq, _ in jobs]
        work.claimed += seqs
        self.holding = len(jobs)
        ack = b'{%b,"seqs":[%b],"lease_ids":["%b"]}' % (
            self.node, b",".join(seqs), b'","'.join([lease for _, lease in jobs])
        )  # fmt: skip
        self.at = now
        self.socket.sendall(self.ack_head % len(ack) + ack)
