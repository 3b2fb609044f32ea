"""Reads that go on: limits, the tail, time, slow readers, ends, resumes (s2 §8, §9)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from headrace.wire.s2.read_session import HEARTBEAT_MS_MAX, HEARTBEAT_MS_MIN
from tests.support.exchanges import ListOutlet
from tests.support.s2_servers import EVENTS, S2Server, SentFrame, Session


def fields_of(message: bytes) -> list[tuple[int, Any]]:
    """The fields of a protobuf message: numbers of varints, bytes of the rest."""
    found: list[tuple[int, Any]] = []
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        tag = varint()
        if tag & 7 == 0:
            found.append((tag >> 3, varint()))
        else:
            assert tag & 7 == 2
            size = varint()
            found.append((tag >> 3, message[at : at + size]))
            at += size
    return found


def batch_of(sent: SentFrame) -> tuple[list[int], int | None]:
    """The seq_nums of a batch, and that of its tail."""
    assert sent.flag == 0, sent
    seq_nums, tail = [], None
    for number, value in fields_of(sent.payload):
        seq_num = dict(fields_of(value)).get(1, 0)
        if number == 1:
            seq_nums.append(seq_num)
        else:
            tail = seq_num
    return seq_nums, tail


def batches(session: Session) -> list[tuple[list[int], int | None]]:
    return [batch_of(sent) for sent in session.frames()]


@pytest.fixture
def filled(s2: S2Server) -> S2Server:
    """The stream has three records."""
    s2.append("a", "b", "c")
    return s2


# Limits and the tail


def test_a_follower_gets_what_is_there_the_tail_and_what_comes(filled: S2Server) -> None:
    """§8f, §8g."""
    session = filled.session("GET", "seq_num=1")
    assert session.exchange.content_type == b"s2s/proto"
    assert batches(session) == [([1, 2], 3), ([], 3)]
    filled.append("d")
    assert batches(session) == [([3], 4)]
    filled.append("e", "f")
    assert batches(session) == [([4, 5], 6)]
    assert not session.outlet.closed


def test_a_follower_may_begin_at_the_tail_of_an_empty_stream(s2: S2Server) -> None:
    session = s2.session("GET", "seq_num=0")
    assert batches(session) == [([], 0)]
    s2.append("a")
    assert batches(session) == [([0], 1)]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("seq_num=0&count=2", [([0, 1], None)]),
        ("seq_num=0&count=3", [([0, 1, 2], 3)]),
        ("seq_num=0&count=9", [([0, 1, 2], 3)]),
        ("seq_num=0&bytes=18", [([0, 1], None)]),
        ("seq_num=0&bytes=5", []),
        ("seq_num=0&until=1", []),
        ("seq_num=0&wait=0", [([0, 1, 2], 3)]),
        ("wait=0", []),
        ("count=0&seq_num=99", []),
    ],
)
def test_a_read_ends_by_itself(
    filled: S2Server, query: str, expected: list[tuple[list[int], int | None]]
) -> None:
    """§8a, §8b, §8g."""
    session = filled.session("GET", query)
    assert batches(session) == expected
    assert session.outlet.closed
    assert filled.context.open_streams.of_kind["session"] == 0


def test_a_bounded_read_that_waits_ends_at_its_limit(filled: S2Server) -> None:
    session = filled.session("GET", "seq_num=2&count=2&wait=5")
    assert batches(session) == [([2], 3), ([], 3)]
    filled.append("d", "e")
    assert batches(session) == [([3], None)]
    assert session.outlet.closed


@pytest.mark.parametrize("query", ["seq_num=4", "seq_num=3&count=1", "timestamp=9999999999999"])
def test_a_start_behind_the_tail_is_refused_before_the_session(
    filled: S2Server, query: str
) -> None:
    """§8c."""
    target = f"/v1/streams/s/records?{query}"
    refused = filled.ask("GET", target, headers={"content-type": "s2s/proto"})
    assert refused.status == 416
    assert refused.json["tail"]["seq_num"] == 3


def test_a_read_of_more_than_a_page_gets_it_in_batches(s2: S2Server) -> None:
    for _ in range(3):
        s2.append(*["x" * 1_000] * 1_000)
    session = s2.session("GET", "seq_num=0&wait=0")
    found = batches(session)
    seq_nums = [seq_num for some, _ in found for seq_num in some]
    assert seq_nums == list(range(3_000))
    assert [tail for _, tail in found] == [None] * (len(found) - 1) + [3_000]
    assert all(len(some) <= 1_000 for some, _ in found)


def test_headers_count_for_the_size_of_a_batch(s2: S2Server) -> None:
    header = ["h", "v" * 400_000]
    for _ in range(4):
        done = s2.ask("POST", "/v1/streams/s/records", {"records": [{"headers": [header]}]})
        assert done.status == 200
    session = s2.session("GET", "seq_num=0&wait=0")
    assert batches(session) == [([0, 1], None), ([2, 3], 4)]


# Time


def test_an_idle_follower_hears_of_the_tail_again_and_again(filled: S2Server) -> None:
    """§8f."""
    session = filled.session("GET", "seq_num=3")
    assert batches(session) == [([], 3)]
    filled.wait(HEARTBEAT_MS_MIN - 100)
    assert batches(session) == []
    filled.wait(HEARTBEAT_MS_MAX - HEARTBEAT_MS_MIN + 100)
    assert batches(session)[:1] == [([], 3)]
    filled.wait(600_000)  # an idle session lives
    beats = batches(session)
    assert 600_000 // HEARTBEAT_MS_MAX <= len(beats) <= 600_000 // HEARTBEAT_MS_MIN
    assert set(map(repr, beats)) == {repr(([], 3))}
    assert not session.outlet.closed


def test_a_wait_is_between_records_and_heartbeats_do_not_prolong_it(filled: S2Server) -> None:
    """§8f."""
    session = filled.session("GET", "seq_num=0&wait=20")
    assert batches(session) == [([0, 1, 2], 3), ([], 3)]
    filled.wait(15_000)
    filled.append("d")
    filled.wait(19_900)
    assert ([3], 4) in batches(session)
    assert not session.outlet.closed
    filled.wait(200)
    assert session.outlet.closed
    assert batches(session) == []


# Slow readers


def test_a_slow_reader_holds_its_place_and_catches_up(filled: S2Server) -> None:
    """§8h."""
    session = filled.session("GET", "seq_num=0")
    session.frames()
    session.outlet.fill()
    for number in range(30):
        filled.append(f"{number}")
    assert session.outlet.written == []
    session.outlet.drain()
    found = batches(session)
    assert [seq_num for some, _ in found for seq_num in some] == list(range(3, 33))
    assert found[-1][1] == 33


def test_a_reader_that_takes_nothing_for_long_is_told_and_closed(filled: S2Server) -> None:
    session = filled.session("GET", "seq_num=0")
    session.frames()
    session.outlet.fill()
    filled.wait(filled.engine.settings.slow_consumer_timeout_ms + 1_000)
    assert session.frames()[-1].error[1]["code"] == "rate_limited"
    assert session.outlet.closed


# The end


def test_a_deleted_stream_ends_its_followers(filled: S2Server) -> None:
    """§14c."""
    session = filled.session("GET", "seq_num=3")
    session.frames()
    filled.ask("DELETE", "/v1/streams/s")
    status, body = session.frames()[-1].error
    assert (status, body["code"]) in ((404, "stream_not_found"), (409, "stream_deletion_pending"))
    assert session.outlet.closed


def test_a_server_that_stops_says_so(filled: S2Server) -> None:
    session = filled.session("GET", "seq_num=3")
    session.frames()
    filled.context.drain()
    status, body = session.frames()[-1].error
    assert (status, body["code"]) == (503, "server_draining")
    assert session.outlet.closed


def test_followers_at_one_place_share_what_is_encoded(filled: S2Server) -> None:
    sessions = [filled.session("GET", "seq_num=3") for _ in range(3)]
    for session in sessions:
        session.frames()
    filled.append("d")
    written = [session.outlet.written for session in sessions]
    assert [len(pieces) for pieces in written] == [1, 1, 1]
    assert written[0][0] is written[1][0] is written[2][0]


# Events


def events(outlet: ListOutlet) -> list[dict[str, str]]:
    blocks = outlet.take().decode().split("\n\n")
    assert blocks.pop() == ""
    found = []
    for block in blocks:
        lines = [line.partition(": ") for line in block.split("\n")]
        found.append({name: value for name, _, value in lines})
    return found


def open_events(s2: S2Server, query: str, **headers: str) -> ListOutlet:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    exchange = s2.ask("GET", f"/v1/streams/s/records?{query}", headers={**EVENTS, **given})
    assert exchange.outlet is not None, exchange.reply
    assert exchange.content_type == b"text/event-stream"
    assert exchange.reply_headers == {
        b"cache-control": b"no-cache, no-transform",
        b"x-accel-buffering": b"no",
    }
    return exchange.outlet


def test_events_have_ids_that_count_and_end_with_done(filled: S2Server) -> None:
    """§9a, §9b."""
    outlet = open_events(filled, "seq_num=0&count=3")
    batch, done = events(outlet)
    assert (batch["event"], batch["id"]) == ("batch", "2,3,27")
    assert [record["body"] for record in json.loads(batch["data"])["records"]] == ["a", "b", "c"]
    assert done == {"data": "[DONE]"}
    assert outlet.closed


def test_events_resume_behind_their_id_with_counters_that_go_on(filled: S2Server) -> None:
    """§9b."""
    outlet = open_events(filled, "seq_num=0&count=4&wait=1", last_event_id="1,2,18")
    batch, ping = events(outlet)
    assert batch["id"] == "2,3,27"
    assert ping["event"] == "ping"
    filled.append("d", "e")
    batch, done = events(outlet)
    assert batch["id"] == "3,4,36"
    assert done == {"data": "[DONE]"}


def test_a_spent_budget_is_done_at_once_wherever_it_begins(filled: S2Server) -> None:
    outlet = open_events(filled, "seq_num=0&count=3", last_event_id="99,3,27")
    assert events(outlet) == [{"data": "[DONE]"}]


def test_events_tell_of_errors_without_done(filled: S2Server) -> None:
    """§9a."""
    outlet = open_events(filled, "seq_num=0")
    events(outlet)
    filled.context.drain()
    (error,) = events(outlet)
    assert error["event"] == "error"
    assert json.loads(error["data"])["code"] == "server_draining"
    assert outlet.closed


def test_a_bad_id_is_refused(filled: S2Server) -> None:
    headers = {**EVENTS, "last-event-id": "nonsense"}
    refused = filled.ask("GET", "/v1/streams/s/records", headers=headers)
    assert (refused.status, refused.json["code"]) == (400, "bad_header")


# Encryption


@pytest.mark.parametrize("how", ["session", "events", "call"])
def test_a_wrong_key_is_told(serve_s2: Callable[..., S2Server], how: str) -> None:
    """§15a."""
    s2 = serve_s2(stream_cipher="aes-256-gcm")
    s2.create()
    right, wrong = "A" * 43 + "=", "B" * 42 + "A="
    body = {"records": [{"body": "secret", "headers": [["n", "v"]]}]}
    path = "/v1/streams/s/records"
    assert s2.ask("POST", path, body, {"s2-encryption-key": right}).status == 200
    read = s2.read(s2_encryption_key=right)
    assert read.json["records"][0]["body"] == "secret"
    assert read.json["records"][0]["headers"] == [["n", "v"]]
    if how == "session":
        session = s2.session("GET", "seq_num=0", s2_encryption_key=wrong)
        status, error = session.frames()[-1].error
    elif how == "events":
        outlet = open_events(s2, "seq_num=0", s2_encryption_key=wrong)
        (event,) = events(outlet)
        assert event["event"] == "error"
        status, error = 400, json.loads(event["data"])
    else:
        refused = s2.read(s2_encryption_key=wrong)
        status, error = refused.status, refused.json
    assert (status, error["code"]) == (400, "decryption_failed")


def test_a_key_is_needed_but_not_for_the_tail(serve_s2: Callable[..., S2Server]) -> None:
    """§15a, §15b."""
    s2 = serve_s2(stream_cipher="aes-256-gcm")
    s2.create()
    for refused in (s2.read(), s2.ask("POST", "/v1/streams/s/records", {"records": [{}]})):
        assert (refused.status, refused.json["code"]) == (400, "bad_header")
        assert "aes-256-gcm" in refused.json["message"]
    assert s2.ask("GET", "/v1/streams/s/records/tail").status == 200


def test_what_is_stored_of_a_sealed_record_is_ciphertext(
    serve_s2: Callable[..., S2Server],
) -> None:
    """§15b, §15c."""
    s2 = serve_s2(stream_cipher="aes-256-gcm")
    s2.create()
    key = {"s2-encryption-key": "A" * 43 + "="}
    fence = {"headers": [["", "fence"]], "body": "token"}
    body = {"records": [{"body": "secret", "headers": [["n", "v"]]}, fence]}
    assert s2.ask("POST", "/v1/streams/s/records", body, key).status == 200
    sealed, command = s2.engine.read("s2:test-basin/s").result().records
    assert sealed.headers is not None
    assert [name for name, _ in sealed.headers] == [b"s2-cipher", b"s2-sealed"]
    assert len(sealed.data) == len(b"secret") and sealed.data != b"secret"
    assert (command.headers, command.data) == ([(b"", b"fence")], b"token")
    read = s2.read(s2_encryption_key=key["s2-encryption-key"]).json["records"]
    assert [record["body"] for record in read] == ["secret", "token"]
