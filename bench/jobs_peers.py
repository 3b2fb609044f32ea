"""Redis streams and NATS JetStream as queues: the same work, by the same loop, in their protocols.

Redis: XADD, XREADGROUP of up to 8, and XACK with XDEL of all of them in one go, so that a job that
is done is gone.  NATS: a work-queue stream and a pull consumer with explicit acks; each message is
acknowledged by itself, since its protocol has no other way, all of a batch in one write.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from bench.jobs_wires import JobWire, ProducerWire, Work, WorkerWire
from bench.wires import BadAnswer, document
from bench.wires_peers import Nats, command

GROUP = b"workers"
CONSUMER = "workers"
# A claim of an empty queue waits for so long, in both.
BLOCK_MS = 1_000
REDIS_ID = re.compile(rb"\r\n(\d+-\d+)\r\n")
# An array of one pair: the stream's name, and an array of jobs whose length is counted.
REDIS_COUNT = re.compile(rb"\*1\r\n\*2\r\n\$\d+\r\n[^\r]+\r\n\*(\d+)\r\n")
NOTHING = b"*-1\r\n"
LEASE_NS = 60_000_000_000
ACKED_SECONDS = 10.0
POLL_SECONDS = 0.002


class RedisWire(JobWire):
    """Answers as a whole, however they arrive."""

    def heard(self, buffer: bytearray, size: int) -> None:
        if size == 0:
            raise BadAnswer("the connection was closed")
        data = self.rest + bytes(buffer[:size])
        if data.startswith(b"-"):
            raise BadAnswer(data[:500].decode("latin-1"))
        self.rest = b"" if self.answered(data) else data

    def answered(self, data: bytes) -> bool:
        """Whether all of an answer is there; if so, the next request is sent."""
        raise NotImplementedError


class RedisProduce(ProducerWire, RedisWire):
    """A batch of XADD in one pipeline."""

    def __init__(self, port: int, work: Work, topic: str) -> None:
        request = b"".join(
            command(b"XADD", topic.encode(), b"*", b"data", document(number=n))
            for n in range(work.batch)
        )
        super().__init__(port, work, request)

    def answered(self, data: bytes) -> bool:
        if data.count(b"\r\n") < 2 * self.work.batch or not data.endswith(b"\r\n"):
            return False
        if data.count(b"$") != self.work.batch:
            raise BadAnswer(data[:500].decode("latin-1"))
        self.begin()
        return True


class RedisClaim(WorkerWire, RedisWire):
    """A consumer of a group."""

    def __init__(self, port: int, work: Work, topic: str, number: int) -> None:
        self.topic = topic.encode()
        request = command(
            b"XREADGROUP", b"GROUP", GROUP, b"worker-%d" % number, b"COUNT", b"%d" % work.claim,
            b"BLOCK", b"%d" % BLOCK_MS, b"STREAMS", self.topic, b">",
        )  # fmt: skip
        super().__init__(port, work, request)

    def answered(self, data: bytes) -> bool:
        if self.holding:
            return self._acknowledged(data)
        if data == NOTHING:
            self.work.empty += 1
            self._go_on()
            return True
        ids = REDIS_ID.findall(data)
        head = REDIS_COUNT.match(data)
        # Each job ends as its payload does.
        if head is None or len(ids) < int(head[1]) or not data.endswith(b'"}\r\n'):
            return False
        now = time.perf_counter()
        self.work.claims.append(now - self.at)
        self.work.claimed += ids
        self.holding, self.at = len(ids), now
        self.socket.sendall(
            command(b"XACK", self.topic, GROUP, *ids) + command(b"XDEL", self.topic, *ids)
        )
        return True

    def _acknowledged(self, data: bytes) -> bool:
        if data.count(b"\r\n") < 2 or not data.endswith(b"\r\n"):
            return False
        if data != b":%d\r\n" % self.holding * 2:
            raise BadAnswer(data.decode("latin-1"))
        self.work.acks.append(time.perf_counter() - self.at)
        self.work.done += self.holding
        self.holding = 0
        self._go_on()
        return True

    def _go_on(self) -> None:
        if not self.work.all_claimed:
            self.begin()


class NatsWire(Nats, JobWire):
    """Messages and statuses, one by one."""

    OPTIONS: Mapping[str, object] = MappingProxyType({"headers": True, "no_responders": True})

    def heard(self, buffer: bytearray, size: int) -> None:
        if size == 0:
            raise BadAnswer("the connection was closed")
        data = self.rest + bytes(buffer[:size])
        at = 0
        while (line_end := data.find(b"\r\n", at)) >= 0:
            end = line_end + 2
            if data.startswith((b"MSG ", b"HMSG "), at):
                words = data[at:line_end].split(b" ")
                end += int(words[-1]) + 2
                if end > len(data):
                    break
                self.message(words, data[line_end + 2 : end - 2])
            elif data.startswith(b"PING", at):
                self.socket.sendall(b"PONG\r\n")
            else:
                raise BadAnswer(data[at:line_end].decode("latin-1"))
            at = end
        self.rest = data[at:]
        self.pause()

    def message(self, words: list[bytes], payload: bytes) -> None:
        raise NotImplementedError

    def pause(self) -> None:
        """All that came in was told."""


class NatsProduce(NatsWire):
    """A batch of publishes, each acknowledged by JetStream."""

    def __init__(self, port: int, work: Work, topic: str, confirmed: bool) -> None:
        self.topic = topic.encode()
        self.work = work
        self.missing = 0
        super().__init__(port)

    def open(self) -> None:
        super().open()
        self.request = b"".join(
            self.publish(self.topic, document(number=n)) for n in range(self.work.batch)
        )

    def begin(self) -> None:
        if self.work.next_batch():
            self.missing = self.work.batch
            self.socket.sendall(self.request)

    def message(self, words: list[bytes], payload: bytes) -> None:
        if b'"seq"' not in payload:
            raise BadAnswer(payload.decode("latin-1"))
        self.missing -= 1
        if not self.missing:
            self.begin()


class NatsClaim(NatsWire):
    """Pulls up to 8 at a time; with `confirmed` it waits for an answer to every ack."""

    def __init__(self, port: int, work: Work, topic: str, confirmed: bool, number: int) -> None:
        self.topic = topic.encode()
        self.work = work
        self.confirmed = confirmed
        self.left = 0  # of the batch that was asked for
        self.acks: list[bytes] = []
        self.holding = 0
        self.at = 0.0
        super().__init__(port)

    def open(self) -> None:
        super().open()
        pull = {"batch": self.work.claim, "expires": BLOCK_MS * 1_000_000}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream_of(self.topic.decode())}.{CONSUMER}"
        self.request = self.publish(subject.encode(), json.dumps(pull).encode())

    def begin(self) -> None:
        self.left = self.work.claim
        self.at = time.perf_counter()
        self.socket.sendall(self.request)

    def message(self, words: list[bytes], payload: bytes) -> None:
        if words[0] == b"HMSG":
            if b" 404" not in payload[:13] and b" 408" not in payload[:13]:
                raise BadAnswer(payload.decode("latin-1"))
            # Nothing more for this request.
            self.work.empty += self.left == self.work.claim
            self.left = 0
        elif words[1] == self.topic:
            if self.left == self.work.claim:
                self.work.claims.append(time.perf_counter() - self.at)
            self.left -= 1
            self.acks.append(words[3])
            # $JS.ACK.stream.consumer.delivered.stream_seq...
            self.work.claimed.append(words[3].split(b".")[5])
        else:  # the answer to an ack
            self.holding -= 1
            self.work.done += 1

    def pause(self) -> None:
        if self.acks:
            to = b" " + self.inbox if self.confirmed else b""
            self.socket.sendall(b"".join([b"PUB %b%b 0\r\n\r\n" % (ack, to) for ack in self.acks]))
            if self.confirmed:
                self.holding += len(self.acks)
            else:
                self.work.done += len(self.acks)
            self.acks.clear()
        if not self.left and not self.holding and not self.work.all_claimed:
            self.begin()


def stream_of(topic: str) -> str:
    return topic.upper()


def put_redis_group(port: int, topic: str) -> None:
    with contextlib.closing(RedisClaim(port, Work(0, 1, 1), topic, 0)) as wire:
        request = command(b"XGROUP", b"CREATE", topic.encode(), GROUP, b"$", b"MKSTREAM")
        wire.socket.sendall(request)
        answer = wire.socket.recv(1_000)
    if answer != b"+OK\r\n":
        raise BadAnswer(answer.decode("latin-1"))


def put_nats_queue(port: int, topic: str) -> None:
    """A stream that drops what is acknowledged, and its consumer."""
    stream = stream_of(topic)
    config = {"name": stream, "subjects": [topic], "storage": "file", "retention": "workqueue"}
    consumer = {
        "durable_name": CONSUMER,
        "ack_policy": "explicit",
        "ack_wait": LEASE_NS,
        "max_ack_pending": -1,
    }
    with contextlib.closing(Nats(port)) as wire:
        wire.ask(f"$JS.API.STREAM.CREATE.{stream}", config)
        subject = f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.{CONSUMER}"
        wire.ask(subject, {"stream_name": stream, "config": consumer})


def until_acked(port: int, topic: str, confirmed: bool) -> None:
    """Acks that nobody answers have arrived: nothing of the consumer is pending."""
    if confirmed:
        return
    subject = f"$JS.API.CONSUMER.INFO.{stream_of(topic)}.{CONSUMER}"
    end = time.monotonic() + ACKED_SECONDS
    with contextlib.closing(Nats(port)) as wire:
        while wire.ask(subject, {})["num_ack_pending"]:
            if time.monotonic() > end:
                raise TimeoutError("acks are missing")
            time.sleep(POLL_SECONDS)


PRODUCERS: dict[str, Callable[..., JobWire]] = {"redis": RedisProduce, "nats": NatsProduce}
WORKERS: dict[str, Callable[..., JobWire]] = {"redis": RedisClaim, "nats": NatsClaim}
# What a round waits for after its last job.
ENDINGS: dict[str, Callable[..., None]] = {"nats": until_acked}
