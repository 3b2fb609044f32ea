"""The ways in which a run of tests has its servers handle the requests of a turn."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.server.turn import Turn
from headrace.wire.dialect import Dialect
from headrace.wire.exchange import Exchange
from headrace.wire.routes import Route
from tests.support import turn_modes
from tests.support.forced_turns import HOLD_MS, HeldTurn, StrictRoutes
from tests.support.turn_servers import TurnServer, append
from tests.support.warm_processes import WarmPopen

PROGRAM = """
from headrace.cli import compose
from headrace.core.config import load
from headrace.server import app
import os
settings = load({}, dict(os.environ)).settings
print(settings.turn_requests_max, app.Turn.__name__, compose.RouteTable.__name__)
"""


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, "512 Turn RouteTable"),
        ({turn_modes.VARIABLE: "split"}, "1 Turn RouteTable"),
        ({turn_modes.VARIABLE: "split", "HEADRACE_TURN_REQUESTS_MAX": "7"}, "7 Turn RouteTable"),
        ({turn_modes.VARIABLE: "forced"}, "512 HeldTurn StrictRoutes"),
    ],
)
def test_a_process_that_a_test_starts_obeys(
    variables: dict[str, str], said: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    others = {name: value for name, value in os.environ.items() if "HEADRACE" not in name}
    process = WarmPopen(
        [sys.executable, str(program)], env={**others, **variables}, stdout=subprocess.PIPE
    )
    assert process.communicate()[0].decode().strip() == said


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(AssertionError, match="neither split nor forced"):
        turn_modes.obey("some")


@pytest.mark.parametrize(("turn", "meet"), [(Turn, 1), (HeldTurn, 3)])
def test_requests_of_later_turns_of_the_loop_meet_where_they_are_forced_to(
    turn: type[Turn], meet: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.server.app.Turn", turn)
    with TurnServer() as server:
        clients, waiting = server.connect(3), []
        for client in clients:
            client.send(append("t"))
            waiting.append(len(server.app.turn))
            server.end_turn()
        assert max(waiting) == meet
        server.pass_ms(HOLD_MS)
        assert [len(client.hear()) for client in clients] == [1, 1, 1]


def test_a_request_that_goes_past_its_turn_fails() -> None:
    class OneRoute(Dialect):
        def routes(self) -> list[Route]:
            return [Route("POST", "/x", print, turn_handler=print), Route("GET", "/x", print)]

    together, alone = StrictRoutes([OneRoute()]).routes
    exchange = Exchange("POST", "/x", "", {}, 0)
    with pytest.raises(AssertionError, match="POST /x went past its turn"):
        together.handler(exchange)
    assert alone.handler is print
