"""What the client repeats, and what it must not: both clients against a server with a script."""

from __future__ import annotations

import json
import socket

import pyarrow as pa
import pytest

from headrace.client import Job, Producer
from headrace.core import errors
from headrace.core.errors import Internal, InvalidRequest, Throttled, Unreachable

HANG, CLOSE, REFUSE, TURN_DOWN = "hang", "close", "refuse", "turn down"
JOB = Job(seq=1, ts=0, lease_id="lease_1", deadline=0, deliveries=1)


def key_of(request: bytes) -> str | None:
    return json.loads(request.partition(b"\r\n\r\n")[2]).get("idempotency_key")


def test_an_append_gets_a_key_and_keeps_it(scripted, make_client) -> None:
    scripted.script = [
        CLOSE,
        scripted.error(503, "not_ready"),
        scripted.APPENDED,
        scripted.APPENDED,
    ]
    client = make_client(scripted.url)
    assert client.append("t", [1]).first_seq == 1
    client.append("t", [2])
    keys = [key_of(request) for request in scripted.requests]
    assert keys[0] == keys[1] == keys[2] != keys[3]
    assert keys[0] is not None and len(keys[0]) == 32


def test_a_key_of_its_own_is_left_alone(scripted, make_client) -> None:
    scripted.script = [CLOSE, scripted.APPENDED]
    make_client(scripted.url).append("t", [1], idempotency_key="mine")
    assert [key_of(request) for request in scripted.requests] == ["mine", "mine"]


def test_a_producer_needs_no_key(scripted, make_client) -> None:
    scripted.script = [CLOSE, scripted.APPENDED]
    make_client(scripted.url).append("t", [1], producer=Producer("p", 2, 3))
    assert len(scripted.requests) == 2
    assert key_of(scripted.requests[1]) is None
    head = scripted.requests[1].partition(b"\r\n\r\n")[0]
    assert b"producer-id: p\r\nproducer-epoch: 2\r\nproducer-seq: 3" in head


@pytest.mark.parametrize("end", [CLOSE, HANG])
def test_an_unkeyed_write_is_sent_once(scripted, make_client, end) -> None:
    """The outcome is unknown: a repeat could store it twice."""
    scripted.script = [end, scripted.APPENDED]
    client = make_client(scripted.url, random_keys=False, timeout_ms=100)
    with pytest.raises(Unreachable) as caught:
        client.append("t", [1])
    assert caught.value.detail["outcome"] == "unknown"
    assert len(scripted.requests) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.delete_records("t", match="x"),
        lambda client: client.put_topic("t"),
        lambda client: client.delete_topic("t"),
        lambda client: client.put_router("r", "a", "b"),
        lambda client: client.delete_router("r"),
        lambda client: client.claim("t", "w"),
        lambda client: client.nack("t", "w", [1]),
        lambda client: client.nack("t", "w", [JOB, 1]),
        lambda client: client.redrive("t"),
    ],
)
def test_other_writes_are_sent_once_too(scripted, make_client, call) -> None:
    scripted.script = [CLOSE]
    with pytest.raises(Unreachable):
        call(make_client(scripted.url))
    assert len(scripted.requests) == 1


def test_a_write_that_was_refused_is_repeated_without_a_key(scripted, make_client) -> None:
    """A refusal says that nothing was done."""
    scripted.script = [
        scripted.error(429, "throttled"),
        scripted.error(503, "shutting_down", "{}", "connection: close"),
        scripted.APPENDED,
    ]
    assert make_client(scripted.url, random_keys=False).append("t", [1]).first_seq == 1
    assert len(scripted.requests) == 3


def test_a_write_that_may_have_failed(scripted, make_client) -> None:
    """500 with `outcome: unknown`: repeated with a key, not without."""
    lost = scripted.error(500, "internal", '{"outcome":"unknown"}')
    scripted.script = [lost, scripted.APPENDED]
    make_client(scripted.url).append("t", [1])
    scripted.script = [lost]
    with pytest.raises(Internal):
        make_client(scripted.url, random_keys=False).append("t", [1])
    assert len(scripted.requests) == 3


def test_an_error_of_the_server_is_not_repeated(scripted, make_client) -> None:
    scripted.script = [scripted.error(500, "internal")]
    with pytest.raises(Internal):
        make_client(scripted.url).diff("t")
    assert len(scripted.requests) == 1


def test_a_refusal_is_not_repeated(scripted, make_client) -> None:
    scripted.script = [scripted.error(400, "invalid_request", '{"field":"x"}')]
    with pytest.raises(InvalidRequest) as caught:
        make_client(scripted.url).append("t", [1])
    assert caught.value.detail == {"field": "x"}
    assert len(scripted.requests) == 1


def test_reads_are_repeated(scripted, make_client) -> None:
    page = (
        '{"topic":"t","records":[],"next_from_seq":0,"head_seq":0,"earliest_seq":1,'
        '"caught_up":true,"tombstone":null,"lag":0}'
    )
    scripted.script = [CLOSE, CLOSE, scripted.answer(200, page)]
    assert make_client(scripted.url).diff("t").caught_up
    assert len(scripted.requests) == 3


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.ack("t", "w", [JOB]),
        lambda client: client.ack("t", "w", [1]),
        lambda client: client.nack("t", "w", [JOB]),
        lambda client: client.extend("t", "w", [JOB, 2], 100),
    ],
)
def test_what_holders_of_jobs_say_is_repeated(scripted, make_client, call) -> None:
    """A job that has been let go is skipped, so a repeat is no second time."""
    counts = ",".join(f'"{name}":0' for name in ("acked", "nacked", "extended", "ready"))
    said = f'{{"topic":"t",{counts},"in_flight":0,"skipped":[1],"deadlines":{{}}}}'
    scripted.script = [CLOSE, scripted.answer(200, said)]
    assert call(make_client(scripted.url)).skipped == [1]
    first, second = scripted.requests
    assert first == second


def test_the_deadline_ends_it(scripted, make_client) -> None:
    scripted.script = [scripted.error(429, "throttled", '{"limit":"max_topics"}')] * 1_000
    with pytest.raises(Throttled) as caught:
        make_client(scripted.url, deadline_ms=300).append("t", [1])
    assert caught.value.detail == {"limit": "max_topics"}
    assert 2 <= len(scripted.requests) < 900


def test_retry_after_is_waited_for(scripted, make_client) -> None:
    """A pause longer than what is left of the deadline is not begun."""
    scripted.script = [scripted.error(429, "throttled", "{}", "retry-after: 60")]
    with pytest.raises(Throttled):
        make_client(scripted.url, deadline_ms=10_000).append("t", [1])
    assert len(scripted.requests) == 1


def test_what_the_error_itself_says_is_more_exact(scripted, make_client) -> None:
    busy = scripted.error(429, "throttled", '{"retry_after_ms":20}', "retry-after: 60")
    scripted.script = [busy, scripted.APPENDED]
    make_client(scripted.url, deadline_ms=10_000).append("t", [1])
    assert len(scripted.requests) == 2


def test_an_append_can_ask_not_to_be_refused_under_pressure(scripted, make_client) -> None:
    scripted.script = [scripted.APPENDED] * 4
    client = make_client(scripted.url)
    table = pa.table({"data": ["1"]})
    for disable in (False, True):
        client.append("t", [1], disable_backpressure=disable)
        client.append_arrow("t", table, disable_backpressure=disable)
    plain, plain_arrow, sent, sent_arrow = scripted.requests
    assert b"backpressure" not in plain + plain_arrow
    assert json.loads(sent.partition(b"\r\n\r\n")[2])["disable_backpressure"] is True
    assert b"disable_backpressure=true" in sent_arrow.partition(b"\r\n")[0]


def test_nobody_is_there(make_client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(Unreachable) as caught:
        make_client(f"http://127.0.0.1:{port}", deadline_ms=100).append("t", [1])
    assert caught.value.detail["outcome"] == "nothing"


def test_a_server_without_tls_is_told_at_once(scripted, make_client) -> None:
    """No repeat can help, so the deadline of half a minute is not waited for."""
    scripted.script = [TURN_DOWN]
    url = scripted.url.replace("http:", "https:")
    with pytest.raises(Unreachable, match=r"no TLS with .*; use http://127") as caught:
        make_client(url).health()
    assert caught.value.detail == {"outcome": "nothing", "reason": "setup"}
    assert scripted.connections == 1


@pytest.mark.parametrize("answer", [b"\x15\x03\x01\x00\x02\x02\x46", b"SMTP ready\r\n"])
def test_what_speaks_no_http_is_told_at_once(scripted, make_client, answer) -> None:
    scripted.script = [answer] * 2
    with pytest.raises(Unreachable, match=r"does not speak HTTP.*https:// if it serves TLS"):
        make_client(scripted.url).diff("t")
    assert len(scripted.requests) == 1


def test_readiness_is_told_at_once(scripted, make_client) -> None:
    scripted.script = [
        scripted.error(503, "not_ready", '{"replay_progress":0.5}', "retry-after: 1")
    ]
    with pytest.raises(errors.NotReady) as caught:
        make_client(scripted.url).ready()
    assert caught.value.detail == {"replay_progress": 0.5}
    assert len(scripted.requests) == 1


def test_a_kept_connection_that_was_closed(scripted, make_client) -> None:
    """It is noticed before a request is sent on it, so an unkeyed write is safe too."""
    scripted.script = [
        scripted.APPENDED.replace(b"200 Whatever\r\n", b"200 OK\r\nconnection: close\r\n"),
        scripted.APPENDED,
        scripted.APPENDED,
    ]
    client = make_client(scripted.url, random_keys=False)
    for _ in range(3):
        client.append("t", [1])
    assert scripted.connections == 2


def test_connections_are_used_again(scripted, make_client) -> None:
    scripted.script = [scripted.APPENDED] * 20
    client = make_client(scripted.url)
    for _ in range(20):
        client.append("t", [1])
    assert scripted.connections == 1


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (b"SMTP ready\r\n\r\n", Unreachable),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nnot json!", Unreachable),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", Unreachable),
        (b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 4\r\n\r\noops", Unreachable),
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\noops", errors.ClientError),
        (b"HTTP/1.1 500 Error\r\ncontent-length: 4\r\n\r\noops", errors.ServerError),
        (b"HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n", errors.ClientError),
    ],
)
def test_answers_of_strangers(scripted, make_client, response, kind) -> None:
    scripted.script = [response]
    with pytest.raises(kind) as caught:
        make_client(scripted.url, random_keys=False).append("t", [1])
    assert type(caught.value) is kind
    assert len(scripted.requests) == 1


def test_a_code_of_a_newer_server(scripted, make_client) -> None:
    scripted.script = [scripted.error(409, "topic_is_purple", '{"a":1}')]
    with pytest.raises(errors.ClientError) as caught:
        make_client(scripted.url).append("t", [1])
    assert caught.value.detail == {"a": 1, "code": "topic_is_purple"}


def test_every_code_has_its_class(scripted, make_client) -> None:
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type)
        and issubclass(kind, errors.HeadraceError)
        and kind not in (errors.HeadraceError, errors.ClientError, errors.ServerError)
    ]
    client = make_client(scripted.url, deadline_ms=0)
    for kind in kinds:
        scripted.script = [scripted.error(kind.status, kind.code, '{"a":[1]}')]
        with pytest.raises(errors.HeadraceError) as caught:
            client.diff("t")
        assert (type(caught.value), caught.value.detail) == (kind, {"a": [1]})


def test_100_continue_is_not_the_answer(scripted, make_client) -> None:
    scripted.script = [b"HTTP/1.1 100 Continue\r\n\r\n" + scripted.APPENDED]
    assert make_client(scripted.url).append("t", [1]).first_seq == 1


def test_a_second_answer_closes_the_connection(scripted, make_client) -> None:
    scripted.script = [scripted.APPENDED + scripted.APPENDED, scripted.APPENDED]
    client = make_client(scripted.url)
    client.append("t", [1])  # repeated, because two answers are as bad as none
    assert scripted.connections == 2
