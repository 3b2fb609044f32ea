"""Beside the peers: what a plan runs, how goals are judged, what is said of who is missing.

No peer is needed for any of it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import ROOT

sys.path.insert(0, str(ROOT))
from bench import (
    command,
    peer_builds,
    peer_goals,
    peer_loads,
    peer_servers,
    peer_starts,
    peers,
    streams,
    wires,
)
from bench.case_http_appends import MANY_TOPICS, SIZES, TRAFFIC, prepared
from bench.peer_goals import PeerGoal

RUST = peer_builds.CRATES["durable-streams-rust"]


# The plan


def test_goals_are_about_rows_that_run_in_turns() -> None:
    cases = {load.name: load.case for load in peer_loads.LOADS}
    assert len(cases) == len(peer_loads.LOADS), "two rows of one name"
    for goal in peer_goals.GOALS:
        assert cases[goal.ours] in peer_goals.PLAN
        if goal.peer:
            assert cases[goal.peer] == cases[goal.ours], goal


def test_the_plan_is_what_runs_unless_cases_are_named() -> None:
    assert peers.chosen([]) == peers.chosen(["goals"]) == list(peer_goals.PLAN)
    assert peers.chosen(["http_sse", "http_append"]) == ["http_append", "http_sse"]
    assert set(peers.chosen(["goals", "http_append"])) == {*peer_goals.PLAN, "http_append"}
    assert command.trouble_of(["goals", "http_sse"], peers.CHOICES) == ""
    assert "http_sse" in command.trouble_of(["http_see"], peers.CHOICES)


def test_every_row_is_compared_with_one_of_ours_in_the_same_case() -> None:
    by_name = {load.name: load for load in peer_loads.LOADS}
    for load in peer_loads.LOADS:
        ours = by_name[load.versus]
        assert (ours.kind, ours.case) == ("headrace", load.case)


def test_all_servers_get_the_same_bytes_of_data_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = peer_starts.in_turns("/v1/stream/t{}", wires.document())
    requests = peers_requests(plan, monkeypatch)
    lines = [request.partition(b"\r\n")[0] for request in requests]
    assert len(set(lines)) == peer_loads.TOPICS
    assert lines[0].startswith(b"POST /v1/stream/t")
    assert all(request.endswith(b"\r\n\r\n" + wires.document()) for request in requests)


def peers_requests(
    plan: dict[str, Any], monkeypatch: pytest.MonkeyPatch, count: int = peer_loads.TOPICS
) -> list[bytes]:
    """What one connection sends, for as many requests as there are topics."""
    from bench import plans

    sent: list[bytes] = []

    class Sent:
        def setsockopt(self, *_: int) -> None:
            pass

        def sendall(self, data: bytes) -> None:
            sent.append(data)

    monkeypatch.setattr(wires.socket, "create_connection", lambda *_: Sent())
    wire = plans.wire_of(plan, 1)
    for _ in range(count):
        wire.send_next()
    return sent


def test_redis_gets_one_stream_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = {"wire": "redis_xadds", "topics": peer_loads.TOPICS}
    commands = peers_requests(plan, monkeypatch)
    assert len({part.split(b"\r\n")[4] for part in commands}) == peer_loads.TOPICS


class Asked:
    """A server that notes which topics it was asked for."""

    def __init__(self) -> None:
        self.topics: list[tuple[str, str]] = []

    def call(self, _method: str, path: str, _config: dict[str, str], key: str) -> None:
        self.topics.append((path, key))


def sent_by(name: str, monkeypatch: pytest.MonkeyPatch, count: int) -> list[bytes]:
    """The requests of one connection of a kind of traffic, to ten topics."""
    (traffic,) = [traffic for traffic in TRAFFIC if traffic.name == name]
    asked = Asked()
    plan = prepared(asked, traffic, 10)  # type: ignore[arg-type]
    assert asked.topics == [(f"/v0/topics/t{number}", traffic.key) for number in range(10)]
    return peers_requests(plan, monkeypatch, count)


def test_appends_of_every_kind_go_from_topic_to_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    for traffic in TRAFFIC:
        requests = sent_by(traffic.name, monkeypatch, 20)
        paths = [request.split(b" ")[1] for request in requests]
        assert sorted(set(paths)) == [b"/v0/topics/t%d" % number for number in range(10)]
        assert all(paths[n] != paths[n + 1] for n in range(19))
    assert {traffic.topics for traffic in TRAFFIC} >= {MANY_TOPICS}


def test_appends_have_their_lengths_keys_and_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [one.partition(b"\r\n\r\n")[2] for one in sent_by("mixed", monkeypatch, 60)]
    lengths = {len(json.dumps(json.loads(body)["records"][0]["data"])) for body in bodies}
    assert len(lengths) == len(set(SIZES)) and max(lengths) > 10 * min(lengths)
    assert all(b"Authorization: Bearer " in one for one in sent_by("key", monkeypatch, 5))
    sequences: dict[bytes, list[int]] = {}
    for request in sent_by("producer", monkeypatch, 30):
        lines = dict(line.split(b": ", 1) for line in request.split(b"\r\n")[1:] if b": " in line)
        sequences.setdefault(request.split(b" ")[1], []).append(int(lines[b"Producer-Seq"]))
    assert set(map(tuple, sequences.values())) == {(0, 1, 2)}, "each topic has a count of its own"


def test_the_plan_has_appends_of_every_kind_and_both_protocols() -> None:
    rows = [load for load in peer_loads.LOADS if load.case in peer_goals.PLAN]
    said = " ".join(load.what for load in rows)
    for kind in ("10,000 topics", "40 to 4,000 B", "with a key", "with Producer-Seq"):
        assert kind in said, kind
    by_name = {load.name: load for load in rows}
    assert by_name[peer_loads.HTTP2].versus == peer_loads.HTTP1


# Goals


def row(name: str, **best: float) -> dict[str, Any]:
    """As a run leaves it, its rounds all alike."""
    figures = {"rate": 1.0, "cpu": 1.0, "p50": 1.0, **best}
    rounds = {figure: [value, value] for figure, value in figures.items()}
    return {"name": name, "what": "append", "promise": "", **figures, "rounds": rounds}


def judge(goal: PeerGoal, *rows: dict[str, Any]) -> dict[str, Any]:
    by_name = {one["name"]: one for one in rows}
    return peer_goals._judged(goal, by_name)


@pytest.mark.parametrize(("ours", "met"), [(120.0, True), (119.0, False)])
def test_a_rate_is_ours_to_theirs(ours: float, met: bool) -> None:
    goal = PeerGoal("rate", "ours", "theirs", 1.2, at_most=False)
    found = judge(goal, row("ours", rate=ours), row("theirs", rate=100.0))
    assert (found["value"], found["peer_value"]) == (ours, 100.0)
    assert found["ratio"] == pytest.approx(ours / 100)
    assert (found["met"], found["goal"]) == (met, ">= 1.2 x")


@pytest.mark.parametrize(("ours", "met"), [(9.0, True), (9.1, False)])
def test_a_cost_may_be_at_most_so_many_times_theirs(ours: float, met: bool) -> None:
    found = judge(PeerGoal("cpu", "a", "b", 0.9), row("a", cpu=ours), row("b", cpu=10.0))
    assert (found["met"], found["goal"]) == (met, "<= 0.9 x")


@pytest.mark.parametrize(("p50", "met"), [(25_000.0, True), (25_001.0, False)])
def test_a_goal_without_a_peer_bounds_our_own_figure(p50: float, met: bool) -> None:
    found = judge(PeerGoal("p50", "a", "", 25_000.0), row("a", p50=p50))
    assert (found["met"], found["ratio"], found["goal"]) == (met, None, "<= 25.0 ms")


def test_the_ratio_is_of_the_best_rounds_and_the_median_of_those_side_by_side() -> None:
    ours, theirs = (peers.best(rounds_of(costs)) for costs in ([10.0, 30.0, 20.0], [5.0, 10, 20]))
    found = judge(
        PeerGoal("cpu", "a", "b", 1.5),
        {"name": "a", "what": "", **ours},
        {"name": "b", "what": "", **theirs},
    )
    assert (found["ratio"], found["median_ratio"]) == (2.0, 2.0)
    assert peer_goals.median_ratio(ours, theirs, "cpu") == 2.0
    assert ours["rate"] == 30.0, "the highest rate"


def rounds_of(values: list[float]) -> list[dict[str, float]]:
    names = ("rate", *peers.COSTS)
    return [dict.fromkeys(names, value) for value in values]


def test_a_goal_whose_peer_is_missing_is_neither_met_nor_not() -> None:
    absent = {"name": "b", "what": "append", "promise": "", "missing": "no cargo"}
    found = judge(PeerGoal("cpu", "a", "b", 1.2), row("a"), absent)
    assert (found["met"], found["missing"], found["value"]) == (None, "no cargo", 1.0)
    found = judge(PeerGoal("cpu", "a", "b", 1.2), row("a"), row("b", cpu=0.0))
    assert found["met"] is None


def test_the_table_of_goals_has_both_figures_the_ratio_and_the_verdict() -> None:
    ours, theirs = peer_goals.GOALS[0].ours, peer_goals.GOALS[0].peer
    rows = [row(ours, rate=30_000.0, cpu=20.0), row(theirs, rate=20_000.0, cpu=10.0)]
    absent = {"name": peer_loads.REDIS_EVERYSEC, "what": "", "promise": "", "missing": "no apt-get"}
    judgements = peer_goals.judged([*rows, absent])
    for markdown in (False, True):
        text = peers.goals_table(judgements, markdown)
        rate, cpu, redis = text.splitlines()[-3:]
        assert all(word in rate for word in ("30,000/s", theirs, "20,000/s", "1.50 x", ">= 1.2 x"))
        assert "NOT MET" not in rate
        assert all(word in cpu for word in ("20.0 µs", "10.0 µs", "2.00 x", "NOT MET"))
        assert "not measured: no apt-get" in redis


def test_rows_say_where_the_generator_had_no_time_left() -> None:
    rounds = [{**one, "rate": 90_000.0, "generator_cpu": 10.5} for one in rounds_of([1.0])]
    busy = {"name": "redis", **peers.best(rounds)}
    calm = {"name": "headrace", **peers.best(rounds_of([1.0]))}
    absent = {"name": "nats", "missing": "no apt-get"}
    assert busy["generator_busy"] == pytest.approx(0.945)
    assert peers.limited([busy, calm, absent]) == ["redis"]


def test_a_round_of_many_records_counts_them() -> None:
    found = peers.of_units({"rate": 10.0, "cpu": 200.0, "generator_cpu": 100.0, "p50": 7.0}, 100)
    assert found == {"rate": 1_000.0, "cpu": 2.0, "generator_cpu": 1.0, "p50": 7.0}


def test_one_writer_beside_a_bare_disk_as_json() -> None:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--peers", "--quick", "--json", "--no-install", "fsync"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["cases"] == ["fsync"]
    assert {one["name"] for one in report["peers"]} >= {peer_loads.WRITER, peer_loads.BARE}
    (goal,) = report["goals"]
    assert goal["ratio"] > 0
    assert goal["met"] in (True, False)


# Builds


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache in which nothing was built, and no programs at all."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def put_cargo(place: Path, script: str) -> None:
    program = place / "bin" / "cargo"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_without_cargo_rust_peers_are_skipped_with_a_word(empty: Path) -> None:
    said: list[str] = []
    missing = peer_servers.install(said.append, ["headrace", "durable-streams-rust", "s2-lite"])
    assert set(missing) == {"durable-streams-rust", "s2-lite"}
    assert all("cargo" in reason and "\n" not in reason for reason in missing.values())
    assert said == [f"{kind} is skipped: {reason}" for kind, reason in missing.items()]


def test_a_crate_is_built_once_at_its_version_and_outside_of_the_checkout(empty: Path) -> None:
    put_cargo(
        empty,
        f'echo "$@" >> {empty}/asked\n'
        'echo "   Compiling libc v1" >&2\n'
        '/bin/mkdir -p "$4/bin" "$6"; : > "$4/bin/durable-streams-server"',
    )
    said: list[str] = []
    assert peer_servers.install(said.append, ["durable-streams-rust"]) == {}
    assert peer_servers.install(said.append, ["durable-streams-rust"]) == {}
    (asked,) = (empty / "asked").read_text().splitlines()
    where = f"--root {RUST.root} --target-dir {RUST.work}"
    assert asked == f"install --locked {where} durable-streams@{RUST.version}"
    assert not RUST.work.exists(), "what was compiled on the way is not kept"
    assert not RUST.root.is_relative_to(ROOT)
    assert RUST.version in str(RUST.root)
    assert RUST.path.exists()
    assert said[0].startswith(f"building durable-streams@{RUST.version} with cargo")


def test_a_crate_that_cannot_be_had_is_told_by_its_first_error(empty: Path) -> None:
    put_cargo(
        empty,
        'echo "    Updating index" >&2; echo "error: no such crate" >&2; echo x >&2; exit 101',
    )
    said: list[str] = []
    missing = peer_servers.install(said.append, ["s2-lite"])
    assert missing["s2-lite"].startswith("error: no such crate (cargo install")
    assert peer_servers.is_installed("s2-lite") is False
    assert said[-1].startswith("s2-lite is skipped: error: no such crate")


def test_nothing_is_installed_where_that_is_not_wanted(empty: Path) -> None:
    put_cargo(empty, f": > {empty}/asked")
    missing = peer_servers.install(lambda _: None, ["headrace", "s2-lite"], allowed=False)
    assert missing == {"s2-lite": "it is not installed"}
    assert not (empty / "asked").exists()


def test_a_build_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_builds, "PROGRESS_SECONDS", -1.0)
    said: list[str] = []
    script = "import sys; sys.stderr.write('  Compiling a v1\\n  Compiling b v2\\n')"
    assert peer_builds.build([sys.executable, "-c", script], "it", said.append) is None
    assert said == ["  it: 1 crates so far, now a v1", "  it: 2 crates so far, now b v2"]


def test_a_build_that_does_not_end_is_given_up() -> None:
    script = "import time; time.sleep(60)"
    problem = peer_builds.build([sys.executable, "-c", script], "it", lambda _: None, seconds=0.1)
    assert problem is not None
    assert "not built within" in problem


# Watchers


def record(sent: int) -> bytes:
    return b'data:[{"t":"%020d","note":"xxx"}]\n\n' % sent


def test_watchers_that_are_not_timed_are_read_to_the_last_record() -> None:
    pairs = [socket.socketpair() for _ in range(10)]
    try:
        deliveries = streams.Deliveries([near for near, _ in pairs], expected=2, timed=2)
        for _, far in pairs:
            far.sendall(record(1) + record(2))
        deliveries.collect()
        assert deliveries.report()["count"] == 2 * 2
    finally:
        for pair in pairs:
            for end in pair:
                end.close()


def test_a_watcher_that_misses_the_last_record_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SILENCE_SECONDS", 0.05)
    pairs = [socket.socketpair() for _ in range(3)]
    try:
        deliveries = streams.Deliveries([near for near, _ in pairs], expected=2, timed=1)
        for number, (_, far) in enumerate(pairs):
            far.sendall(record(1) + (record(2) if number != 2 else b""))
        with pytest.raises(TimeoutError, match="1 watchers"):
            deliveries.collect()
    finally:
        for pair in pairs:
            for end in pair:
                end.close()
