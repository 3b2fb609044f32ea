"""What goes wrong in the middle of a turn leaves each of its requests with the right answer."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from headrace.server import turn as turns
from headrace.testing.faultfs import Fault, FaultFilesystem, FaultPlan
from headrace.testing.simdisk import SimDisk
from tests.support.engine_reads import all_data
from tests.support.memory_transport import in_a_loop
from tests.support.turn_http2 import Http2TurnClient
from tests.support.turn_servers import TurnClient, TurnServer, append, http
from tests.support.wal_logs import Switch

KEY = {"authorization": "Bearer k1"}


class Failing:
    """A server whose disk fails when a test says so."""

    def __init__(self, operation: str, code: int) -> None:
        self.switch = Switch(code)
        plan = FaultPlan(Fault(operation, 1, "call", forever=True, path="wal/*", hook=self.switch))
        self.server = TurnServer(FaultFilesystem(SimDisk(), plan), disk_reserve_bytes=0)
        for name in ("disk", "fsync", "memory"):
            self.server.ask(http("PUT", f"/v0/topics/{name}", {"durability": name}))
            self.server.ask(append(name, 0))
        self.server.pass_ms(100)

    def kept(self, name: str) -> list[bytes]:
        return all_data(self.server.engine, name)


def codes(client: TurnClient) -> list[tuple[int, object]]:
    """Status and code of the answers that have come."""
    answers = client.hear()
    return [(answer.status, answer.json.get("error", {}).get("code")) for answer in answers]


# Disks


@pytest.fixture
def full() -> Iterator[Failing]:
    failing = Failing("pwritev", errno.ENOSPC)
    with failing.server:
        yield failing


def test_a_full_disk_refuses_every_append_of_the_turn_and_no_other_request(full: Failing) -> None:
    server, (first, second, third) = full.server, full.server.connect(3)
    full.switch.on = True
    first.send(append("disk", 1), append("fsync", 2))
    second.send(append("memory", 3), append("disk", 4, host="evil.example"), append("disk", 5))
    third.send(http("POST", "/v0/topics/disk/diff", {"from_seq": 0}))
    server.end_turn()
    refused = (503, "not_ready")
    assert codes(first) == [refused, refused]
    assert codes(second) == [refused, (403, "forbidden"), refused]
    (answer,) = third.hear()
    assert (answer.status, answer.json["head_seq"]) == (200, 1)
    for name in ("disk", "fsync", "memory"):
        assert full.kept(name) == [b"0"], "no part of it is visible"
    assert len(server.app.turn) == 0
    # When there is room again the seqs go on where they were, for each of the next turn.
    full.switch.on = False
    server.pass_ms(10_000)
    for client in (first, second, third):
        client.send(append("disk", 6))
    server.end_turn()
    said = [answer for client in (first, second, third) for answer in client.hear()]
    assert [(answer.status, answer.json["last_seq"]) for answer in said] == [
        (200, 2), (200, 3), (200, 4),
    ]  # fmt: skip


def test_a_full_disk_names_itself_to_each(full: Failing) -> None:
    full.switch.on = True
    clients = full.server.connect(4)
    for client in clients:
        client.send(append("disk", 1))
    full.server.end_turn()
    for client in clients:
        (answer,) = client.hear()
        assert answer.json["error"]["detail"]["reason"] == "disk_full"  # type: ignore[index]
        assert answer.headers[b"retry-after"] == b"5"


def test_a_failed_sync_is_told_to_those_who_wait_for_it() -> None:
    failing = Failing("sync_data", errno.EIO)
    with failing.server as server:
        first, second, third = server.connect(3)
        failing.switch.on = True
        first.send(append("fsync", 1), append("fsync", 2))
        second.send(append("disk", 3))
        third.send(append("fsync", 4), append("fsync", 5, content_type="text/plain"))
        server.end_turn()
        lost = (500, "internal")
        assert codes(first) == [lost, lost]
        assert codes(second) == [(200, None)], "it was to be written, and was"
        assert codes(third) == [lost, (415, "unsupported_media_type")]
        assert failing.kept("fsync") == [b"0"]
        assert failing.kept("disk") == [b"0", b"3"]
        # Nobody of a later turn is let in, and reads go on.
        for client in (first, second):
            client.send(append("disk", 6))
        third.send(http("POST", "/v0/topics/fsync/diff", {"from_seq": 0}))
        server.end_turn()
        assert [codes(client) for client in (first, second)] == [[(503, "not_ready")]] * 2
        assert third.hear()[0].json["head_seq"] == 1


def test_each_of_a_turn_whose_handler_failed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with TurnServer() as server:
        clients = server.connect(3)
        server.ask(append("t", 0))

        def fail(*_asked: object, **_more: object) -> None:
            raise ZeroDivisionError

        with monkeypatch.context() as patched:
            patched.setattr(server.engine, "append_all", fail)
            for client in clients:
                client.send(append("t", 1))
            server.end_turn()
        assert [codes(client) for client in clients] == [[(500, "internal")]] * 3
        clients[0].send(append("t", 2))
        server.end_turn()
        assert codes(clients[0]) == [(200, None)]
        assert all_data(server.engine, "t") == [b"0", b"2"]


# Clients that leave


@pytest.fixture
def keyed() -> Iterator[TurnServer]:
    with TurnServer(api_keys="k1:read+write+admin", max_inflight_per_key=4) as server:
        yield server


def in_flight(server: TurnServer) -> int:
    return len(server.app.access._holders)


@pytest.mark.parametrize("kind", [TurnClient, Http2TurnClient])
def test_a_client_that_leaves_during_its_turn_takes_nobody_along(
    keyed: TurnServer, kind: type[TurnClient], caplog: pytest.LogCaptureFixture
) -> None:
    first, second, third = keyed.connect(3, kind)
    first.send(append("t", 1, **KEY))
    second.send(append("t", 2, **KEY))
    third.send(append("t", 3, **KEY))
    assert (len(keyed.app.turn), in_flight(keyed)) == (3, 3)
    second.hang_up()
    assert in_flight(keyed) == 2, "who has left holds no slot"
    keyed.end_turn()
    assert [codes(client) for client in (first, third)] == [[(201, None)], [(200, None)]]
    assert not second.hear()
    assert all_data(keyed.engine, "t") == [b"1", b"3"], "nobody waited for it any more"
    assert not caplog.records, "clients come and go"
    assert (len(keyed.app.turn), in_flight(keyed)) == (0, 0)
    assert keyed.app.budget.used == 0


def test_a_stream_that_is_reset_during_its_turn_takes_no_other_along(keyed: TurnServer) -> None:
    first, second = keyed.connect(2, Http2TurnClient)
    first.send(append("t", 1, **KEY), append("t", 2, **KEY))
    second.send(append("t", 3, **KEY))
    first.cancel()
    assert in_flight(keyed) == 2, "what was reset holds no slot"
    keyed.end_turn()
    assert (codes(first), codes(second)) == ([(201, None)], [(200, None)])
    assert all_data(keyed.engine, "t") == [b"1", b"3"]
    assert (len(keyed.app.turn), in_flight(keyed)) == (0, 0)


@pytest.mark.parametrize("kind", [TurnClient, Http2TurnClient])
def test_clients_that_leave_during_a_sync_take_nobody_along(
    keyed: TurnServer, kind: type[TurnClient]
) -> None:
    keyed.ask(http("PUT", "/v0/topics/t", {"durability": "fsync"}, **KEY))
    first, second = keyed.connect(2, kind)
    first.send(append("t", 1, **KEY))
    second.send(append("t", 2, **KEY))
    keyed.runtime.step()  # the turn ends, its sync is asked for
    assert (len(keyed.app.turn), in_flight(keyed)) == (0, 2)
    first.hang_up()
    keyed.end_turn()
    assert codes(second) == [(200, None)]
    assert all_data(keyed.engine, "t") == [b"1", b"2"]
    assert in_flight(keyed) == 0


def test_all_of_a_turn_may_leave(keyed: TurnServer) -> None:
    clients = keyed.connect(4)
    for client in clients:
        client.send(append("t", 1, **KEY))
    for client in clients:
        client.hang_up(ConnectionResetError())
    keyed.end_turn()
    assert (len(keyed.app.turn), in_flight(keyed), len(keyed.app.connections)) == (0, 0, 0)
    assert keyed.ask(append("t", 2, **KEY)).json["last_seq"] == 1


# Stopping and starting


def test_a_turn_is_answered_when_the_server_stops(keyed: TurnServer) -> None:
    first, second, third = keyed.connect(3)
    first.send(append("t", 1, **KEY), append("t", 2, **KEY))
    second.send(append("t", 3, **KEY))
    keyed.parts.drain()
    assert not first.closed and not second.closed, "they wait for an answer"
    assert third.closed
    keyed.end_turn()
    assert codes(first) == [(201, None), (200, None)]
    assert codes(second) == [(200, None)]
    assert first.closed and second.closed
    assert all_data(keyed.engine, "t") == [b"1", b"2", b"3"]
    assert in_flight(keyed) == 0


def test_streams_of_a_turn_are_answered_when_the_server_stops(keyed: TurnServer) -> None:
    def stop() -> None:
        (client,) = keyed.connect(1, Http2TurnClient)
        client.send(append("t", 1, **KEY), append("t", 2, **KEY))
        keyed.parts.drain()
        keyed.end_turn()
        assert codes(client) == [(201, None), (200, None)]
        assert in_flight(keyed) == 0

    in_a_loop(stop)


def test_what_comes_after_the_stop_is_refused_beside_a_turn_that_waits(keyed: TurnServer) -> None:
    first, second = keyed.connect(2)
    first.send(append("t", 1, **KEY))
    second.send(append("t", 2, **KEY)[:-5])
    keyed.parts.drain()
    second.send(append("t", 2, **KEY)[-5:])
    keyed.end_turn()
    assert codes(first) == [(201, None)]
    assert codes(second) == [(503, "shutting_down")]
    assert all_data(keyed.engine, "t") == [b"1"]


def test_requests_that_waited_for_recovery_come_in_one_turn() -> None:
    with TurnServer(live=False) as server:
        clients = server.connect(3)
        for number, client in enumerate(clients):
            client.send(append("t", number), append("t", number + 10))
        clients[1].hang_up()
        server.end_turn()
        assert server.app.parked and len(server.app.turn) == 0
        server.app.go_live()
        assert server.app.parked == 0
        assert len(server.app.turn) == 4, "together, and without who has left"
        server.end_turn()
        assert codes(clients[0]) == [(201, None), (200, None)]
        assert codes(clients[2]) == [(200, None), (200, None)]
        assert all_data(server.engine, "t") == [b"0", b"10", b"2", b"12"]


# Bounds


def test_requests_of_a_turn_count_for_the_bound_of_their_key(keyed: TurnServer) -> None:
    clients = keyed.connect(6)
    for client in clients[:3]:
        client.send(append("t", 1, **KEY))
    clients[3].send(append("t", 1, **KEY), append("t", 2, **KEY), append("t", 3, **KEY))
    clients[4].send(append("t", 1, authorization="Bearer nobody"))
    clients[5].send(append("t", 4, **KEY))
    assert (len(keyed.app.turn), in_flight(keyed)) == (4, 4)
    keyed.end_turn()
    assert [codes(client) for client in clients[:3]] == [[(201, None)]] + [[(200, None)]] * 2
    throttled = (429, "throttled")
    assert codes(clients[3]) == [(200, None), throttled, throttled]
    assert codes(clients[4]) == [(401, "unauthorized")]
    assert codes(clients[5]) == [throttled]
    assert in_flight(keyed) == 0
    clients[5].send(*[append("t", 5, **KEY)] * 4)
    keyed.end_turn()
    assert codes(clients[5]) == [(200, None)] * 4, "every slot was given back"


def test_a_pipeline_brings_no_more_into_a_turn_than_may_run_beside_each_other() -> None:
    with TurnServer(pipeline_requests_max=2) as server:
        first, second = server.connect(2)
        first.send(*(append("t", number) for number in range(5)))
        second.send(append("t", 9))
        assert len(server.app.turn) == 3
        server.end_turn()
        assert [answer.json["last_seq"] for answer in first.hear()] == [1, 2, 4, 5, 6]
        assert [answer.json["last_seq"] for answer in second.hear()] == [3]


def test_bodies_that_wait_for_the_end_of_a_turn_are_bounded() -> None:
    size = 300_000
    with TurnServer(wal_file_bytes=1 << 24, wal_batch_bytes_max=1 << 23) as server:
        clients = server.connect(20)
        most = 0
        for client in clients:
            client.send(append("t", "x" * size))
            most = max(most, len(server.app.turn))
        assert most * size <= turns.TURN_BYTES_MAX
        server.end_turn()
        statuses = [status for client in clients for status, _ in codes(client)]
        assert statuses == [201, *[200] * 19]


def test_a_client_that_takes_no_answer_brings_nothing_into_a_turn() -> None:
    with TurnServer() as server:
        slow, other = server.connect(2)
        slow.protocol.pause_writing()
        slow.send(append("t", 1), append("t", 2))
        other.send(append("t", 3))
        assert len(server.app.turn) == 1
        server.end_turn()
        assert codes(other) == [(201, None)] and not slow.hear()
        slow.protocol.resume_writing()
        server.end_turn()
        assert codes(slow) == [(200, None)] * 2


# Time


def test_the_time_in_which_a_request_waits_for_its_turn_counts() -> None:
    with TurnServer() as server:
        (client,) = server.connect(1)
        client.send(append("t", 1))
        server.pass_ms(7)
        (answer,) = client.hear()
        assert answer.json["performance"]["server_total_ms"] == 7.0
        assert answer.headers[b"server-timing"].startswith(b"total;dur=7.000")


def test_who_waits_in_a_turn_is_not_idle_and_who_is_late_is_told_beside_it() -> None:
    limits = {"idle_timeout_ms": 1_000, "header_timeout_ms": 1_000}

    def look_twice() -> None:
        with TurnServer(**limits) as server:
            waits, late, idle = server.connect(3)
            waits.send(append("t", 1))
            late.send(append("t", 2)[:40])
            for now_ms in (1_000, 5_000):
                for client in (waits, late, idle):
                    client.protocol.tick(now_ms)
            assert not waits.closed and idle.closed
            server.end_turn()
            assert codes(waits) == [(201, None)]
            assert codes(late) == [(408, "request_timeout")]
            assert all_data(server.engine, "t") == [b"1"]

    in_a_loop(look_twice)
