"""What a turn brings is handed over together: when, how much of it, and what if that fails."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.core.runtime import StepRuntime
from headrace.server import turn as turns
from headrace.server.turn import Turn
from headrace.wire.exchange import Exchange
from headrace.wire.routes import Route


class Handled:
    """A route that notes which requests came together."""

    def __init__(self, template: str = "/x") -> None:
        self.groups: list[list[str]] = []
        self.route = Route("POST", template, self.one, turn_handler=self.many)

    def one(self, exchange: Exchange) -> None:
        raise AssertionError("requests of this route come together")

    def many(self, exchanges: Sequence[Exchange]) -> None:
        self.groups.append([exchange.path for exchange in exchanges])


def request(path: str, size: int = 0) -> Exchange:
    exchange = Exchange("POST", path, "", {}, 0)
    exchange.body = b"x" * size
    return exchange


def add(turn: Turn, handled: Handled, exchange: Exchange) -> None:
    turn.add(turn.group_of(handled.route), exchange)


def test_requests_are_handed_over_by_route_when_the_turn_ends() -> None:
    runtime, first, second = StepRuntime(), Handled(), Handled()
    turn = Turn(runtime, 100)
    for number in range(6):
        add(turn, (first, second)[number % 2], request(str(number)))
    assert len(turn) == 6 and not first.groups
    runtime.run()
    assert len(turn) == 0
    assert (first.groups, second.groups) == ([["0", "2", "4"]], [["1", "3", "5"]])
    add(turn, first, request("6"))
    runtime.run()
    assert first.groups[1:] == [["6"]]


@pytest.mark.parametrize(("most", "groups"), [(1, 5), (2, 3), (5, 1)])
def test_no_more_are_handled_together_than_may(most: int, groups: int) -> None:
    runtime, handled = StepRuntime(), Handled()
    turn = Turn(runtime, most)
    for number in range(5):
        add(turn, handled, request(str(number)))
    runtime.run()
    assert [path for group in handled.groups for path in group] == list("01234")
    assert len(handled.groups) == groups


def test_large_bodies_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_BYTES_MAX", 100)
    handled = Handled()
    turn = Turn(StepRuntime(), 100)
    add(turn, handled, request("a", 60))
    assert not handled.groups
    add(turn, handled, request("b", 60))
    assert handled.groups == [["a", "b"]]


def test_a_turn_that_failed_does_not_hold_up_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, handled = StepRuntime(), Handled()
    turn = Turn(runtime, 100)
    add(turn, handled, request("a"))
    waiting = turn._waiting
    turn._waiting = None  # type: ignore[assignment]  # as if memory had run out in between
    with pytest.raises(TypeError):
        turn.run()
    turn._waiting, turn._count = waiting, 1
    add(turn, handled, request("b"))
    runtime.run()
    assert handled.groups == [["a", "b"]]
