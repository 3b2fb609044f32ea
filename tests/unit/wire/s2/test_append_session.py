"""Append sessions: order, pipelining, bounds, and every way to end (s2 §7, §10)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.wire.s2 import append_session, frames
from headrace.wire.s2.frames import frame
from tests.support.s2_servers import S2Server, Session


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(value)) + value


def given(*bodies: bytes, match: int | None = None, token: str | None = None) -> bytes:
    """An AppendInput message."""
    message = b"".join(field(1, field(3, body)) for body in bodies)
    if match is not None:
        message += b"\x10" + varint(match)
    return message if token is None else message + field(3, token.encode())


def command(value: bytes, body: bytes) -> bytes:
    header = field(2, field(1, b"") + field(2, value))
    return field(1, header + field(3, body))


@pytest.fixture
def session(s2: S2Server) -> Session:
    return s2.session("POST")


def tail(s2: S2Server) -> int:
    return int(s2.ask("GET", "/v1/streams/s/records/tail").json["tail"]["seq_num"])


def ends_of(session: Session) -> list[int]:
    """The seq_nums behind the inputs that were acknowledged since the last time."""
    found = []
    for sent in session.frames():
        assert not sent.is_terminal, sent.error
        # AppendAck: its second field is the end, whose first field is the seq_num.
        at = 2 + sent.payload[1]
        assert sent.payload[at] == 0x12 and sent.payload[at + 2] == 0x08
        found.append(sent.payload[at + 3])
    return found


def test_the_head_is_answered_before_any_input(session: Session) -> None:
    assert session.exchange.status == 200
    assert session.exchange.content_type == b"s2s/proto"
    assert session.exchange.reply_headers[b"cache-control"] == b"no-cache, no-transform"
    assert session.frames() == []


def test_inputs_are_acknowledged_in_order_however_they_are_cut(session: Session) -> None:
    """§7e, §10b."""
    sent = b"".join(frame(given(b"%d" % n, b"x")) for n in range(5))
    session.send(*(sent[at : at + 7] for at in range(0, len(sent), 7)))
    assert ends_of(session) == [2, 4, 6, 8, 10]
    session.send(b"")
    assert session.frames() == []
    assert session.outlet.closed


def test_inputs_are_put_to_the_engine_without_waiting_for_those_before(session: Session) -> None:
    """§7c, §7e."""
    session.send(frame(given(b"a")), frame(given(b"b")))
    topic = session.server.engine.find("s2:test-basin/s")
    assert topic is not None
    assert (topic.head, topic.staged) == (0, 2)
    assert session.outlet.written == []  # nothing is acknowledged that is not stored
    assert ends_of(session) == [1, 2]


def test_the_first_refusal_ends_the_session_behind_the_acks_before_it(
    s2: S2Server, session: Session
) -> None:
    """§7e, §10c."""
    session.send(
        frame(given(b"a")) + frame(given(b"b", match=7)) + frame(given(b"c")), frame(given(b"d"))
    )
    *acks, last = session.frames()
    assert len(acks) == 1
    assert last.error == (412, {"seq_num_mismatch": 1})
    assert session.outlet.closed
    assert tail(s2) == 1  # what came behind it is not stored


def test_a_fence_of_the_same_session_is_in_force_at_once(s2: S2Server, session: Session) -> None:
    session.send(frame(command(b"fence", b"mine")), frame(given(b"a", token="mine")))
    session.send(frame(given(b"b", token="other")))
    *acks, last = session.frames()
    assert len(acks) == 2
    assert last.error == (412, {"fencing_token_mismatch": "mine"})
    assert tail(s2) == 2


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (frame(b"\xff"), 400, "bad_proto"),
        (frame(given()), 422, "invalid"),
        (b"\0\0\0", 400, "bad_frame"),
        (b"\0\0\1\x80", 400, "bad_frame"),
    ],
)
def test_what_cannot_be_read_is_told_behind_the_acks(
    session: Session, sent: bytes, status: int, code: str
) -> None:
    """§10a, §10c."""
    session.send(frame(given(b"a")) + sent)
    *acks, last = session.frames()
    assert len(acks) == 1
    assert (last.error[0], last.error[1]["code"]) == (status, code)
    assert session.outlet.closed


def test_a_body_that_ends_inside_of_a_frame_is_refused(session: Session) -> None:
    session.send(frame(given(b"a"))[:-1], b"")
    assert session.frames()[-1].error[1]["code"] == "bad_frame"


def test_a_client_that_leaves_has_its_inputs_stored(s2: S2Server, session: Session) -> None:
    session.send(frame(given(b"a")))
    session.outlet.hang_up()
    s2.run()
    assert tail(s2) == 1
    assert s2.context.open_streams.of_kind["session"] == 0


def test_a_session_holds_no_more_than_it_may(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§7f."""
    monkeypatch.setattr(append_session, "SESSION_BYTES_MAX", 30)
    session.send(b"".join(frame(given(b"ten bytes.")) for _ in range(5)))
    topic = session.server.engine.find("s2:test-basin/s")
    assert topic is not None
    assert topic.staged == 2  # the second one reaches the bound
    assert session.exchange.paused
    assert ends_of(session) == [1, 2, 3, 4, 5]
    assert not session.exchange.paused


def test_all_sessions_together_hold_no_more_than_they_may(
    s2: S2Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§7f."""
    monkeypatch.setattr("headrace.wire.s2.sessions.SESSIONS_BYTES_MAX", 10)
    first, second = s2.session("POST"), s2.session("POST")
    first.send(frame(given(b"ten bytes.")))
    second.send(frame(given(b"ten bytes.")))
    assert second.exchange.paused
    assert ends_of(first) == [1]
    assert ends_of(second) == [2]
    assert not second.exchange.paused


def test_a_client_that_takes_no_acks_is_not_read_from(session: Session) -> None:
    session.outlet.fill()
    session.send(frame(given(b"a")))
    assert session.exchange.paused
    session.outlet.drain()
    assert not session.exchange.paused
    assert ends_of(session) == [1]


def test_frames_that_arrive_are_bounded_in_all(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.wire.s2.sessions.FRAMES_BYTES_MAX", 10)
    monkeypatch.setattr("headrace.wire.s2.sessions.FRAME_FREE_BYTES", 10)
    session.send(frame(given(bytes(100)))[:20])
    assert session.frames() == []
    session.send(bytes(30))
    assert session.frames()[-1].error[1]["code"] == "rate_limited"


def test_a_refused_frame_gives_back_only_what_was_counted(
    s2: S2Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.wire.s2.sessions.FRAMES_BYTES_MAX", 100)
    monkeypatch.setattr("headrace.wire.s2.sessions.FRAME_FREE_BYTES", 10)
    begun = frame(given(bytes(100)))[:70]
    held = s2.session("POST")
    held.send(begun)
    for _ in range(3):  # there is never room for a second one, however often it is tried
        refused = s2.session("POST")
        refused.send(begun)
        assert refused.frames()[-1].error[1]["code"] == "rate_limited"
    assert held.frames() == []


def test_a_frame_is_decompressed_only_when_there_is_room(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_session, "SESSION_BYTES_MAX", 1)
    unpacked: list[int] = []
    payload = frames._payload

    def counted(flag: int, packed: bytes) -> bytes:
        unpacked.append(flag)
        return payload(flag, packed)

    monkeypatch.setattr(frames, "_payload", counted)
    session.send(b"".join(frame(given(bytes(5_000)), "zstd") for _ in range(3)))
    assert unpacked == [0x20]
    assert ends_of(session) == [1, 2, 3]


def test_a_server_that_stops_acknowledges_what_it_took(s2: S2Server, session: Session) -> None:
    """§10d."""
    session.send(frame(given(b"a")))
    s2.context.drain()
    session.send(frame(given(b"b")))
    *acks, last = session.frames()
    assert [ack.flag for ack in acks] == [0x10]  # connect again, elsewhere
    assert (last.error[0], last.error[1]["code"]) == (503, "server_draining")
    assert tail(s2) == 1


def test_a_stream_that_is_deleted_ends_the_session(s2: S2Server, session: Session) -> None:
    assert s2.ask("DELETE", "/v1/streams/s").status == 202
    session.send(frame(given(b"a")))
    assert session.frames()[-1].error[1]["code"] == "stream_not_found"


def test_a_stream_of_the_same_name_is_another(s2: S2Server, session: Session) -> None:
    assert s2.ask("DELETE", "/v1/streams/s").status == 202
    s2.create()
    session.send(frame(given(b"a")))
    assert session.frames()[-1].error[1]["code"] == "unavailable"
    assert tail(s2) == 0


def test_a_changed_config_counts_at_once(s2: S2Server, session: Session) -> None:
    config = {"timestamping": {"mode": "client-require"}}
    assert s2.ask("PATCH", "/v1/streams/s", config).status == 200
    session.send(frame(given(b"a")))
    assert session.frames()[-1].error[1]["code"] == "invalid"


def test_a_revoked_token_ends_its_session(s2: S2Server) -> None:
    scope = {
        "basins": {"prefix": ""},
        "streams": {"prefix": ""},
        "op_groups": {"stream": {"write": True}},
    }
    issued = s2.ask("POST", "/v1/access-tokens", {"id": "writer", "scope": scope})
    token = issued.json["access_token"]
    session = s2.session("POST", authorization=f"Bearer {token}")
    session.send(frame(given(b"a")))
    assert ends_of(session) == [1]
    assert s2.ask("DELETE", "/v1/access-tokens/writer").status == 204
    session.send(frame(given(b"b")))
    assert session.frames()[-1].error[0] == 401


def test_a_session_creates_its_stream_where_the_basin_says_so(
    serve_s2: Callable[..., S2Server],
) -> None:
    s2 = serve_s2(create_stream_on_append=True)
    session = s2.session("POST", stream="new")
    session.send(frame(given(b"a")), b"")
    assert len(session.frames()) == 1
    assert s2.read(stream="new").json["records"][0]["body"] == "a"


def test_a_session_of_an_unknown_stream_is_refused_as_a_call_is(s2: S2Server) -> None:
    refused = s2.ask("POST", "/v1/streams/none/records", headers={"content-type": "s2s/proto"})
    assert (refused.status, refused.json["code"]) == (404, "stream_not_found")


def test_a_frame_that_does_not_go_on_ends_the_session(session: Session) -> None:
    """§1e: behind the acks of the inputs before it; a session without inputs lasts."""
    dialect, allowed_ms = session.server.dialect, session.server.engine.settings.body_timeout_ms
    dialect.tick(1_000)
    dialect.tick(1_000_000)
    assert not session.outlet.closed
    least = allowed_ms * session.server.engine.settings.body_bytes_per_second_min // 1_000
    sent = frame(given(b"a" * 4 * least))
    session.send(frame(given(b"a")), sent[:3])
    dialect.tick(1_001_000)
    dialect.tick(1_001_000 + allowed_ms)
    session.send(sent[3 : 3 + least])  # as much of it came as has to
    dialect.tick(1_002_000 + allowed_ms)
    dialect.tick(1_002_000 + 2 * allowed_ms)
    assert ends_of(session) == [1]
    for at in range(least - 1):  # too little
        if at % (least // 4) == 0:
            session.send(sent[3 + least + at : 4 + least + at])
    dialect.tick(1_003_000 + 2 * allowed_ms)
    (last,) = session.frames()
    status, body = last.error
    assert (status, body["code"]) == (408, "request_timeout")
    assert session.outlet.closed


def test_frames_that_are_cut_at_every_look_are_not_one_that_does_not_end(session: Session) -> None:
    """A client may send small inputs one after the other, each look in the middle of one."""
    dialect, sent = session.server.dialect, frame(given(b"a"))
    session.send(sent[:5])
    for second in range(100):
        dialect.tick(1_000 * second)
        session.send(sent[5:] + sent[:5])
        assert ends_of(session) == [second + 1]
    assert not session.outlet.closed


def test_acks_that_are_not_taken_end_the_session(session: Session) -> None:
    dialect, server = session.server.dialect, session.server
    sent = frame(given(b"a"))
    session.send(sent)
    session.outlet.fill()
    server.wait(server.engine.settings.slow_consumer_timeout_ms - 1_000)
    dialect.tick(server.engine.runtime.clock.monotonic_ns() // 1_000_000)
    assert not session.outlet.closed
    server.wait(1_000)
    dialect.tick(server.engine.runtime.clock.monotonic_ns() // 1_000_000)
    assert session.outlet.closed
    ack, last = session.frames()
    assert not ack.is_terminal and last.is_terminal
    assert last.error[0] == 429


def test_a_frame_that_the_server_does_not_take_is_not_late(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the client is not read from."""
    monkeypatch.setattr(append_session, "SESSION_INPUTS_MAX", 1)
    dialect, allowed_ms = session.server.dialect, session.server.engine.settings.body_timeout_ms
    sent = frame(given(b"a"))
    session.send(sent[:2])
    session.send(sent[2:] + sent + sent[:2])
    assert session.exchange.paused
    dialect.tick(1_000)
    dialect.tick(2_000 + allowed_ms)
    assert not session.outlet.closed
    assert ends_of(session) == [1, 2]
