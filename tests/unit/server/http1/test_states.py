"""The tables of an HTTP/1.1 connection's states: complete, reachable, documented, and obeyed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from headrace.server.http1 import states
from headrace.server.http1.states import (
    ANSWERING_EVENTS,
    ANSWERING_STATES,
    LOST,
    NEW,
    OPEN,
    READING_EVENTS,
    READING_STATES,
    TAKEN_OVER,
    Event,
    IllegalTransition,
    State,
)

ROOT = Path(__file__).resolve().parents[4]
DOCUMENT = ROOT / "docs" / "internals" / "server.md"
DRIVERS = sorted((ROOT / "src" / "headrace" / "server" / "http1").glob("*.py"))

MACHINES = {
    "reading": (NEW, READING_STATES, READING_EVENTS),
    "answering": (OPEN, ANSWERING_STATES, ANSWERING_EVENTS),
}
machines = pytest.mark.parametrize("machine", MACHINES)


@machines
def test_every_state_can_be_reached(machine: str) -> None:
    first, all_states, events = MACHINES[machine]
    reached, frontier = {first}, [first]
    while frontier:
        state = frontier.pop()
        found = {event[state] for event in events if state in event} - reached
        reached |= found
        frontier.extend(found)
    assert reached == set(all_states)


@machines
def test_only_the_ends_have_no_way_out(machine: str) -> None:
    _, all_states, events = MACHINES[machine]
    ends = {state for state in all_states if not any(state in event for event in events)}
    assert ends == {LOST, TAKEN_OVER} & set(all_states)


@machines
def test_tables_stay_within_their_machine(machine: str) -> None:
    _, all_states, events = MACHINES[machine]
    for event in events:
        assert set(event) | set(event.values()) <= set(all_states), event


def test_every_state_and_event_belongs_to_a_machine() -> None:
    named = vars(states).items()
    events = {name for name, value in named if isinstance(value, Event)}
    assert events == {event.name for event in (*READING_EVENTS, *ANSWERING_EVENTS)}
    known = {name for name, value in named if isinstance(value, State)}
    assert known == {state.name for state in (*READING_STATES, *ANSWERING_STATES)}


@machines
def test_what_is_not_in_the_table_is_refused_loudly(machine: str) -> None:
    _, all_states, events = MACHINES[machine]
    for event in events:
        for state in all_states:
            if state not in event:
                with pytest.raises(IllegalTransition, match=f"{event.name} while {state.name}"):
                    event[state]


def drawn(machine: str) -> list[str]:
    """The rows of the documented table: what each state does, and what it refuses."""
    _, all_states, events = MACHINES[machine]
    rows = []
    for state in all_states:
        legal = [f"{event} → {event[state]}" for event in events if state in event]
        refused = [str(event) for event in events if state not in event]
        rows.append(f"| {state} | {', '.join(legal) or '-'} | {', '.join(refused) or '-'} |")
    return rows


@machines
def test_the_documented_picture_is_the_table(machine: str) -> None:
    """To mend it, replace the rows in the document by what this prints."""
    rows = drawn(machine)
    print("\n".join(rows))
    lines = DOCUMENT.read_text("utf-8").splitlines()
    start = lines.index(f"| {machine} | on | refuses |") + 2
    assert lines[start : start + len(rows) + 1] == [*rows, ""]


def test_states_change_by_the_tables_only() -> None:
    """Every assignment is the first state, or an event's entry for the present one."""
    events = {event.name for event in (*READING_EVENTS, *ANSWERING_EVENTS)}
    found = []
    for path in DRIVERS:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.AnnAssign):
                targets = [node.target]
            for target in targets:
                if isinstance(target, ast.Attribute) and target.attr in MACHINES:
                    found.append(ast.unparse(node).replace(": State", ""))
    used = set()
    for text in found:
        machine = "reading" if ".reading" in text else "answering"
        first, _, _ = MACHINES[machine]
        name = text.removeprefix(f"self.{machine} = ").removesuffix(f"[self.{machine}]")
        assert text in (f"self.{machine} = {first}", f"self.{machine} = {name}[self.{machine}]")
        used.add(name)
    assert used == events | {"NEW", "OPEN"}, "an event that nothing takes, or one of no table"
