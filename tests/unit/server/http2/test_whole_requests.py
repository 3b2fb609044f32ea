"""Requests that come whole over HTTP/2, with a head that is known, take a shorter way: nobody can
tell it from the other.

On the server's own engine and routes, without sockets: a test says what each read brings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from h2.errors import ErrorCodes

from headrace.server.http2 import limits
from headrace.server.http2.receiving import Receiver
from headrace.wire.exchange import Exchange
from tests.support.http2_client import frame
from tests.support.http2_memory_client import WINDOW, Answer, Http2Client
from tests.support.memory_transport import MemoryTransport
from tests.support.wire_fuzz import World


@pytest.fixture(autouse=True)
def no_lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no loop to wait in until the client has read the last frames."""

    def linger(transport: MemoryTransport, data: bytes) -> None:
        transport.write(data)
        transport.close()

    monkeypatch.setattr("headrace.server.http2.connection.linger", linger)


@pytest.fixture
def world() -> Iterator[World]:
    with World() as made:
        yield made


@pytest.fixture
def client(world: World) -> Http2Client:
    made = Http2Client(world)
    for number in range(2):  # from the second on it is known
        made.send(made.append(b"t", number))
    assert [answer.status for answer in made.take().values()] == [200, 200]
    return made


def taken_whole(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each head of a request that came in one frame, whether its request was taken whole."""
    found: list[bool] = []
    take = Receiver._take_head

    def noted(self: Receiver, *arguments: Any) -> int:
        seen = len(begun)
        after = take(self, *arguments)
        if after:
            found.append(len(begun) == seen)
        return after

    begun: list[object] = []
    begin = Receiver._begin
    monkeypatch.setattr(Receiver, "_take_head", noted)
    monkeypatch.setattr(Receiver, "_begin", lambda *a: (begun.append(a), begin(*a)))
    return found


def data_of(world: World, topic: str) -> list[int]:
    return [json.loads(record.data) for record in world.engine.read(topic).result().records]


# A turn


def test_appends_of_a_read_are_stored_together_and_answered_in_one_write(
    world: World, client: Http2Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = taken_whole(monkeypatch)
    handed_over: list[int] = []
    append_all = world.engine.append_all

    def noted(asked: Any, *answered: Any, **how: Any) -> None:
        handed_over.append(len(asked))
        append_all(asked, *answered, **how)

    monkeypatch.setattr(world.engine, "append_all", noted)
    other = Http2Client(world)
    writes = client.transport.writes
    client.send(b"".join(client.append(b"t", number) for number in range(20)))
    other.send(other.append(b"t", 20))
    assert handed_over == []
    answers = list(client.take().values())
    assert found == [True] * 20 + [False]
    assert handed_over == [21]
    assert client.transport.writes == writes + 1
    assert [answer.json["last_seq"] for answer in answers[2:]] == list(range(5, 25))
    assert all(answer.ended and answer.status == 200 for answer in answers)
    assert other.take()[1].json["last_seq"] == 25
    assert not client.connection.streams


def test_one_that_is_refused_leaves_the_others(world: World, client: Http2Client) -> None:
    path, wrong = b"/v0/topics/t", b'{"records":1}'
    client.send(
        client.append(b"t", 1)
        + b"".join(client.request(path, wrong))
        + client.append(b"_own", 2)
        + client.append(b"t", 3)
    )
    assert [answer.status for answer in list(client.take().values())[2:]] == [200, 400, 400, 200]
    assert data_of(world, "t")[-2:] == [1, 3]


def test_a_client_that_gives_one_up_gets_the_others(world: World, client: Http2Client) -> None:
    """What it sent is stored all the same: it was there before the reset."""
    given_up = client.append(b"t", 1)
    reset = frame(limits.RST_STREAM, 0, client.stream_id, bytes(4))
    client.send(given_up + client.append(b"t", 2) + reset + client.append(b"t", 3))
    answers = client.take()
    assert sorted(answers) == [1, 3, 7, 9]
    assert all(answers[stream_id].status == 200 for stream_id in (7, 9))
    assert data_of(world, "t")[-3:] == [1, 2, 3]


def test_a_client_that_leaves_takes_nothing_from_others(world: World, client: Http2Client) -> None:
    """What it asked for and nobody has looked at yet is not done, as over HTTP/1.1."""
    other = Http2Client(world)
    before = data_of(world, "t")
    client.send(client.append(b"t", 10) + client.append(b"t", 11))
    other.send(other.append(b"t", 12))
    client.connection.connection_lost(None)
    assert [answer.status for answer in other.take().values()] == [200]
    assert data_of(world, "t") == [*before, 12]
    text = world.server.app.metrics.registry.text()
    assert re.search(r'requests_total\{.*route="/v0/topics/\{topic\}",status="0"\} 2', text)


def test_a_drain_lets_the_turn_be_answered(world: World, client: Http2Client) -> None:
    client.send(client.append(b"t", 1))
    client.connection.drain()
    client.send(client.append(b"t", 2))
    answers = list(client.take().values())
    assert [(a.status, a.reset) for a in answers[2:]] == [(200, None), (0, 7)]
    assert client.goaway() == "NO_ERROR"
    assert data_of(world, "t")[-1] == 1


def test_a_connection_does_not_answer_more_than_its_client_takes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that has to wait for room is not handed over, even if it is whole and known."""
    client = Http2Client(world)
    for number in range(2):
        client.send(client.append(b"t", number))
    client.take()
    monkeypatch.setattr(client.connection, "may_answer", lambda: False)
    client.send(client.append(b"t", 3))
    assert len(client.take()) == 2
    assert data_of(world, "t")[-1] == 1
    monkeypatch.undo()
    client.connection.ask_flush()
    assert client.take()[5].status == 200
    assert data_of(world, "t")[-1] == 3


# What is known of a head


def test_a_head_that_means_something_else_now_is_read_again(
    world: World, client: Http2Client
) -> None:
    """The same bytes after an entry was added to the table: each index means its neighbour."""
    for topic in (b"a", b"b"):
        for _ in range(2):
            client.send(client.append(topic, 1))
    before = client.append(b"a", 2)
    client.send(before)
    client.take()
    # One more entry, and every index means its neighbour.
    client.send(client.append(b"a", 3, (b"x-new", b"1")))
    old = client.stream_id - 2
    client.stream_id += 2
    replaced = before.replace(old.to_bytes(4, "big"), client.stream_id.to_bytes(4, "big"))
    client.send(replaced)
    answers = client.take()
    assert data_of(world, "a") == [1, 1, 2, 3], "nothing went where the old table led"
    assert answers[client.stream_id].reset == ErrorCodes.PROTOCOL_ERROR
    client.send(client.append(b"a", 4))
    client.take()
    assert data_of(world, "a") == [1, 1, 2, 3, 4]


def test_handlers_keep_what_they_know_with_the_head(
    world: World, client: Http2Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    memos: list[dict[object, object] | None] = []
    handle = world.server.app.handle

    def noted(exchange: Exchange) -> None:
        memos.append(exchange.memo)
        handle(exchange)

    monkeypatch.setattr(world.server.app, "handle", noted)
    client.send(client.append(b"t", 1))
    client.send(client.append(b"t", 2))
    client.take()
    assert memos[0] is memos[1] and memos[0]
    key = (b"idempotency-key", b"k")
    client.send(client.append(b"t", 3, key))
    client.take()
    assert memos[2] is not memos[0]
    answers = client.take()
    client.send(client.append(b"t", 4, key))
    assert client.take()[client.stream_id].json["deduped"], "its key is looked at"
    assert answers


def test_a_known_form_with_a_value_that_is_too_large_is_refused(
    world: World, client: Http2Client
) -> None:
    for state in (b"a", b"b", b"c" * world.settings.header_bytes_max):
        client.send(client.append(b"t", 7, (b"tracestate", state)))
    assert [answer.status for answer in client.take().values()] == [200, 200, 200, 200, 431]
    assert data_of(world, "t").count(7) == 2


def test_a_known_form_of_another_length_is_held_against_its_body(
    world: World, client: Http2Client
) -> None:
    body = b'{"records":[{"data":8}]}'
    for length in (len(body), len(body), len(body) - 1):
        head, data = client.request(
            b"/v0/topics/t",
            body,
            (b"content-length", b"%d" % length),
            (b"traceparent", b"%d" % length),
        )
        client.send(head + data)
    assert [answer.reset for answer in client.take().values()][-3:] == [None, None, 1]
    assert data_of(world, "t").count(8) == 2


def test_the_heads_of_a_connection_are_bounded(world: World, client: Http2Client) -> None:
    """Those that came last are known; a path that is never put into the table makes many."""
    known = client.connection._state.reader._known
    prefix = client.append(b"t", 0)[9:]
    fixed = prefix[: prefix.index(b"\x00\x00")]
    assert len(known) == 1
    for number in range(limits.CACHED_HEADS_MAX + 10):
        client.stream_id += 2
        block = b"\x83\x86\x04\x0d/v0/topics/%02x" % (number % 256) + fixed[3:]
        client.send(frame(1, 4, client.stream_id, block) + frame(0, 1, client.stream_id, b"{}"))
    client.take()
    assert len(known) == limits.CACHED_HEADS_MAX


# Windows


def test_the_connection_window_is_given_back_in_large_steps(
    world: World, client: Http2Client
) -> None:
    body = b'{"records":[{"data":"%b"}]}' % (b"x" * 50_000)
    sent = 0
    for _ in range(100):
        client.send(b"".join(client.request(b"/v0/topics/t", body)))
        sent += len(body)
        client.take()
    updates = [f for f in client.other if f.kind == limits.WINDOW_UPDATE]
    given = sum(int.from_bytes(update.body, "big") for update in updates)
    assert all(update.stream_id == 0 for update in updates)
    assert sent - limits.CONNECTION_WINDOW_BYTES // 2 <= given <= sent + 200
    assert len(updates) <= 4


def test_more_data_than_the_window_ends_the_connection(client: Http2Client) -> None:
    body = b'{"records":[{"data":"%b"}]}' % (b"x" * 60_000)
    count = limits.CONNECTION_WINDOW_BYTES // len(body) + 1
    client.send(b"".join(b"".join(client.request(b"/v0/topics/t", body)) for _ in range(count)))
    assert client.goaway() == "FLOW_CONTROL_ERROR"


def test_answers_wait_for_the_windows_of_the_client(world: World) -> None:
    client = Http2Client(world, window=100)
    for number in range(3):
        client.send(client.append(b"t", number))
    answers = client.take()
    assert [(len(a.body), a.ended) for a in answers.values()] == [(100, False)] * 3
    for stream_id in (5, 3, 1):
        client.send(frame(limits.WINDOW_UPDATE, 0, stream_id, (1_000).to_bytes(4, "big")))
        assert client.take()[stream_id].json["count"] == 1
    # Those that open after the client has said that it takes more need not wait.
    client.send(frame(limits.SETTINGS, 0, 0, b"\x00\x04" + WINDOW.to_bytes(4, "big")))
    client.send(client.append(b"t", 4))
    assert client.take()[7].json["count"] == 1


def test_answers_wait_for_the_window_of_the_connection(world: World) -> None:
    client = Http2Client(world)  # whose window for all streams is still the first
    value = b'{"records":[{"data":"%b"}]}' % (b"x" * 40_000)
    for _ in range(2):
        client.send(b"".join(client.request(b"/v0/topics/t", value)))
    reads = [client.request(b"/v0/topics/t/diff", b'{"from_seq":0}') for _ in range(2)]
    client.take()
    client.send(b"".join(map(b"".join, reads)))
    client.take()
    client.send(client.append(b"t", 1))
    answers = client.take()
    assert sum(len(answer.body) for answer in answers.values()) == 65_535
    assert not answers[client.stream_id].body
    client.send(frame(limits.WINDOW_UPDATE, 0, 0, (1 << 20).to_bytes(4, "big")))
    assert all(answer.ended for answer in client.take().values())


# Streams that have ended


def test_data_for_an_answered_stream_is_refused(client: Http2Client) -> None:
    client.send(frame(limits.DATA, 0, 3, b"more"))
    assert client.take()[3].reset == ErrorCodes.STREAM_CLOSED
    client.send(client.append(b"t", 5))
    assert client.take()[client.stream_id].status == 200


@pytest.mark.parametrize(("stream_id", "code"), [(3, "STREAM_CLOSED"), (5, "PROTOCOL_ERROR")])
def test_a_head_for_a_stream_that_has_been_ends_the_connection(
    client: Http2Client, stream_id: int, code: str
) -> None:
    """The one was answered; the other never began, and those above it did."""
    client.stream_id = 5
    client.send(client.append(b"t", 5))
    client.take()
    known = client.append(b"t", 6).replace(b"\x00\x00\x00\x09", bytes([0, 0, 0, stream_id]))
    client.send(known)
    assert client.goaway() == code


# Against frame by frame

PATHS = (b"/v0/topics/t", b"/v0/topics/new", b"/v0/topics/t?return_seqs=false", b"/nope")


def frames_of(client: Http2Client, dice: Random, number: int) -> list[bytes]:
    """The frames of a request of some kind, right or wrong."""
    path, kind = dice.choice(PATHS), dice.randrange(24)
    body = b'{"records":[{"data":%d}]}' % (100_000 + number)  # all of one length
    if kind == 0:
        return [client.request(b"/v0/health")[0]]
    if kind == 1:
        return [*client.request(path, body, (b"content-length", b"%d" % dice.randrange(99)))]
    if kind == 2:
        return [*client.request(path, body, (b"idempotency-key", b"k%d" % dice.randrange(3)))]
    if kind == 3:
        return [*client.request(path, body, (b"expect", b"100-continue"))]
    if kind == 4:
        return [*client.request(path, body, (b"origin", b"https://evil.example"))]
    head, data = client.request(path, body, (b"content-length", b"%d" % len(body)))
    stream_id = client.stream_id
    if kind == 5:  # the body in two frames
        return [head, frame(0, 0, stream_id, body[:9]), frame(0, 1, stream_id, body[9:])]
    if kind == 6:  # padded
        return [head, frame(0, 9, stream_id, b"\x03" + body + b"pad")]
    if kind == 7:  # another request between head and body
        return [head, *frames_of(client, dice, number + 10_000), data]
    if kind == 8:
        return [head, frame(limits.RST_STREAM, 0, stream_id, bytes(4))]
    if kind == 9:  # a head with a priority
        return [frame(1, 0x24, stream_id, bytes(5) + head[9:]), data]
    if kind == 10:  # a head in two frames
        return [frame(1, 0, stream_id, head[9:12]), frame(9, 4, stream_id, head[12:]), data]
    if kind == 11:  # trailers
        trailers = frame(1, 5, stream_id, client.encoder.encode([(b"x-end", b"1")]))
        return [head, frame(0, 0, stream_id, body), trailers]
    return [head, data]


def said(answer: Answer) -> object:
    text = re.sub(rb'"(epoch|performance|\$ts)":(\d+|\{[^}]*\})', b"", answer.body)
    steady = [(n, v) for n, v in answer.headers if n not in (b"server-timing", b"content-length")]
    # One that is refused by its head is reset after its answer, unless its body is there by then.
    reset = None if answer.ended else answer.reset
    return answer._replace(body=text, headers=tuple(steady), reset=reset)


COUNTED = ("headrace_http_requests_total", "headrace_append_records_total")
# Where reads end, and how many requests a turn may have.
MODES = (("none", 1_000), ("frames", 1_000), ("any", 1_000), ("none", 1))


@pytest.mark.parametrize("seed", range(12))
def test_a_read_is_answered_as_its_frames_one_by_one(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The same answers, records and counts, wherever the reads end and however large turns are."""
    whole = taken_whole(monkeypatch)
    first, *others = (outcome(seed, *mode) for mode in MODES)
    for other in others:
        assert other == first
    assert whole.count(True) > 100


def outcome(seed: int, cuts: str, turn_requests_max: int) -> tuple[object, ...]:
    """What clients are told, what is stored and what is counted."""
    dice, cut = Random(seed), Random(seed + 100)
    with World(turn_requests_max=turn_requests_max) as world:
        clients = [Http2Client(world) for _ in range(2)]
        for client in clients:
            client.send(client.append(b"t", 0))
            client.take()
        for turn in range(20):
            for client in clients:
                made: list[bytes] = []
                for number in range(dice.randrange(1, 8)):
                    made += frames_of(client, dice, 100 * turn + number)
                for piece in pieces_of(made, cuts, cut):
                    client.send(piece)
            for client in clients:
                client.take()
        told = [{k: said(a) for k, a in c.answers.items()} for c in clients]
        assert world.server.app.budget.used == 0
        assert not any(client.connection.streams for client in clients)
        text = world.server.app.metrics.registry.text()
        counted = sorted(line for line in text.splitlines() if line.startswith(COUNTED))
        return told, data_of(world, "t"), data_of(world, "new"), counted


def pieces_of(made: list[bytes], cuts: str, dice: Random) -> list[bytes]:
    """What each read brings of these frames."""
    data = b"".join(made)
    if cuts == "frames":
        return made
    if cuts == "none":
        return [data]
    at = sorted(dice.sample(range(1, len(data)), 9))
    return [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True)]
