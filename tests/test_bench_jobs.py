"""The load of a queue: answers count once however they arrive, and so does every job."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.checkout import ROOT

sys.path.insert(0, str(ROOT))
from bench import command, jobs_peers, peer_loads, peers, wires
from bench.jobs_wires import Claim, JobWire, Produce, Work

BUFFER = bytearray(1 << 16)


class Sent:
    """In the place of a socket: what would have been sent."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []

    def sendall(self, data: bytes) -> None:
        self.requests.append(data)

    def setsockopt(self, *_: int) -> None:
        pass

    def getsockname(self) -> tuple[str, int]:
        return ("127.0.0.1", 7)

    def recv(self, _size: int) -> bytes:
        return b"INFO {}\r\nPONG\r\n"

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wires.socket, "create_connection", lambda *_: Sent())


def hear(wire: JobWire, data: bytes) -> None:
    BUFFER[: len(data)] = data
    wire.heard(BUFFER, len(data))


def sent(wire: JobWire) -> list[bytes]:
    assert isinstance(wire.socket, Sent)
    return wire.socket.requests


def http(document: object) -> bytes:
    body = json.dumps(document, separators=(",", ":")).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


CLAIMED = http(
    {
        "topic": "jobs",
        "claimed": [
            {"$seq": seq, "lease_id": f"lease_{seq:016x}", "deadline": 1, "data": {"n": seq}}
            for seq in (3, 4)
        ],
        "count": 2,
        "ready": 0,
    }
)
ACKED = http({"topic": "jobs", "acked": 2, "skipped": [], "ready": 0, "in_flight": 0})
REDIS_JOBS = b"*1\r\n*2\r\n$4\r\njobs\r\n*2\r\n" + b"".join(
    b'*2\r\n$3\r\n%d-0\r\n*2\r\n$4\r\ndata\r\n$8\r\n{"a":""}\r\n' % n for n in (3, 4)
)
NATS_JOBS = b"".join(
    b"MSG jobs 1 $JS.ACK.JOBS.workers.1.%d.%d.17.0 2\r\n{}\r\n" % (n, n) for n in (3, 4)
)
NATS_ACKED = b"MSG _INBOX.bench.7 1 0\r\n\r\n" * 2

Make = Callable[[Work], JobWire]
WORKERS = [
    pytest.param(lambda work: Claim(1, work, "jobs", 7), CLAIMED, ACKED, id="headrace"),
    pytest.param(
        lambda work: jobs_peers.RedisClaim(1, work, "jobs", 7), REDIS_JOBS, b":2\r\n:2\r\n",
        id="redis",
    ),
    pytest.param(
        lambda work: jobs_peers.NatsClaim(1, work, "jobs", True, 7), NATS_JOBS, NATS_ACKED,
        id="nats",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("make", "claimed", "acked"), WORKERS)
def test_jobs_are_claimed_and_done_once_wherever_answers_are_cut(
    make: Make, claimed: bytes, acked: bytes
) -> None:
    for cut in range(1, len(claimed)):
        work = Work(jobs=10, batch=1, claim=2)
        wire = make(work)
        wire.begin()
        hear(wire, claimed[:cut])
        hear(wire, claimed[cut:])
        assert [int(name.partition(b"-")[0]) for name in work.claimed] == [3, 4], cut
        assert (work.done, len(work.claims)) == (0, 1), cut
        hear(wire, acked)
        assert work.done == 2, cut
    for cut in range(1, len(acked)):
        work = Work(jobs=10, batch=1, claim=2)
        wire = make(work)
        wire.begin()
        hear(wire, claimed)
        before = len(sent(wire))
        hear(wire, acked[:cut])
        hear(wire, acked[cut:])
        assert work.done == 2, cut
        assert len(sent(wire)) == before + 1, "and it claims again, once"


def test_a_worker_acknowledges_by_the_leases_it_got() -> None:
    wire = Claim(1, Work(jobs=10, batch=1, claim=2), "jobs", 7)
    hear(wire, CLAIMED)
    head, _, body = sent(wire)[-1].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v0/topics/jobs/ack ")
    assert b"Content-Length: %d\r\n" % len(body) in head
    assert json.loads(body) == {
        "node": "worker-7",
        "seqs": [3, 4],
        "lease_ids": ["lease_0000000000000003", "lease_0000000000000004"],
    }


def test_acks_of_nats_that_nobody_answers_count_when_they_are_sent() -> None:
    work = Work(jobs=10, batch=1, claim=2)
    wire = jobs_peers.NatsClaim(1, work, "jobs", False, 7)
    wire.begin()
    hear(wire, NATS_JOBS)
    assert work.done == 2
    acks, pull = sent(wire)[-2:]
    assert acks.count(b"PUB $JS.ACK.JOBS.workers.1.") == 2
    assert pull.startswith(b"PUB $JS.API.CONSUMER.MSG.NEXT.JOBS.workers ")


NATS_STATUS = b"HMSG _INBOX.bench.7 1 32 32\r\nNATS/1.0 408 Request Timeout\r\n\r\n\r\n"
EMPTY = [
    pytest.param(WORKERS[0].values[0], http({"claimed": [], "count": 0}), id="headrace"),
    pytest.param(WORKERS[1].values[0], jobs_peers.NOTHING, id="redis"),
    pytest.param(WORKERS[2].values[0], NATS_STATUS, id="nats"),
]


@pytest.mark.parametrize(("make", "nothing"), EMPTY)
def test_an_empty_claim_is_repeated_while_there_are_jobs(make: Make, nothing: bytes) -> None:
    work = Work(jobs=2, batch=1, claim=2)
    wire = make(work)
    wire.begin()
    before = len(sent(wire))
    hear(wire, nothing)
    assert (work.empty, len(sent(wire))) == (1, before + 1)
    work.claimed += [b"1", b"2"]
    hear(wire, nothing)
    assert (work.empty, len(sent(wire))) == (2, before + 1)


REFUSED = [
    pytest.param(WORKERS[0].values[0], CLAIMED.replace(b"200 OK", b"429 No"), id="headrace"),
    pytest.param(WORKERS[1].values[0], b"-NOGROUP no\r\n", id="redis"),
    pytest.param(WORKERS[2].values[0], b"-ERR 'no'\r\n", id="nats"),
    pytest.param(WORKERS[2].values[0], NATS_STATUS.replace(b"408", b"409"), id="nats-status"),
    pytest.param(WORKERS[0].values[0], b"", id="closed"),
]


@pytest.mark.parametrize(("make", "answer"), REFUSED)
def test_a_refusal_is_not_counted(make: Make, answer: bytes) -> None:
    wire = make(Work(jobs=2, batch=1, claim=2))
    wire.begin()
    with pytest.raises(wires.BadAnswer):
        hear(wire, answer)


def test_an_ack_of_fewer_jobs_is_a_refusal() -> None:
    wire = Claim(1, Work(jobs=10, batch=1, claim=2), "jobs", 7)
    hear(wire, CLAIMED)
    with pytest.raises(wires.BadAnswer):
        hear(wire, ACKED.replace(b'"acked":2', b'"acked":1'))


PRODUCERS = [
    pytest.param(lambda work: Produce(1, work, "jobs"), http({"count": 2}), id="headrace"),
    pytest.param(
        lambda work: jobs_peers.RedisProduce(1, work, "jobs"), b"$3\r\n1-0\r\n" * 2, id="redis"
    ),
    pytest.param(
        lambda work: jobs_peers.NatsProduce(1, work, "jobs", True),
        b'MSG _INBOX.bench.7 1 9\r\n{"seq":1}\r\n' * 2,
        id="nats",
    ),
]


@pytest.mark.parametrize(("make", "answer"), PRODUCERS)
def test_a_producer_sends_the_next_batch_when_all_of_one_is_there(
    make: Make, answer: bytes
) -> None:
    work = Work(jobs=4, batch=2, claim=2)
    wire = make(work)
    before = len(sent(wire))
    wire.begin()
    for cut in (1, len(answer) - 1):
        assert len(sent(wire)) == before + 1
        hear(wire, answer[:cut])
        assert len(sent(wire)) == before + 1, "not before its end"
        hear(wire, answer[cut:])
        before += 1
    assert work.to_send < 0
    assert len(sent(wire)) == before, "no third one"


@pytest.mark.parametrize(
    ("claimed", "done"),
    [([b"1"], 1), ([b"1", b"1"], 2), ([b"1", b"2"], 1), ([b"1", b"2", b"3"], 3)],
)
def test_only_jobs_that_were_all_done_once_make_a_figure(claimed: list[bytes], done: int) -> None:
    work = Work(jobs=2, batch=1, claim=1)
    work.claimed, work.done = claimed, done
    with pytest.raises(wires.BadAnswer):
        work.check()
    work.claimed, work.done = [b"1", b"2"], 2
    work.check()


def test_rows_of_peers_are_chosen_by_case() -> None:
    assert command.trouble_of(["http_queue"], peers.CHOICES) == ""
    assert "http_queue" in command.trouble_of(["append"], peers.CHOICES)
    chosen: list[Any] = [load for load in peer_loads.LOADS if load.case == "http_queue"]
    assert {load.versus for load in chosen} <= {load.name for load in chosen}
