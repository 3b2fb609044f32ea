"""The goals beside the peers: ours to theirs in the same run, and which cases are needed for it.

A ratio is our figure to the peer's, each the best of its rounds.  Beside it stands the median of
the ratios of single rounds, which lay side by side: where the two differ much, the machine was busy
with something else, and the run says little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from bench import peer_loads as rows_of
from bench.peer_loads import WATCHERS, watch_names

NAME = "goals"
# Of most rows the first three; what some have beside these is the highest of the rounds.
MORE_FIGURES = {"resident": "resident", "live": "live read", "catch_up": "catch-up"}
FIGURES = {"rate": "rate", "cpu": "CPU", "p50": "p50", **MORE_FIGURES}
RATES = ("rate", "live", "catch_up")
UNITS = {**dict.fromkeys(RATES, "/s"), "cpu": "µs", "p50": "ms", "resident": "MB"}


class PeerGoal(NamedTuple):
    """A bound on a figure of ours: of its ratio to a peer's, or of itself where there is none."""

    figure: str  # one of FIGURES
    ours: str
    peer: str
    bound: float
    at_most: bool = True

    @property
    def text(self) -> str:
        sign = "<=" if self.at_most else ">="
        if self.peer:
            return f"{sign} {self.bound:g} x"
        return f"{sign} {shown(self.figure, self.bound)}"

    def met(self, value: float) -> bool:
        return value <= self.bound if self.at_most else value >= self.bound


def _append_goals() -> tuple[PeerGoal, ...]:
    disk, fsync = rows_of.TOPICS_DISK, rows_of.TOPICS_FSYNC
    return (
        PeerGoal("rate", disk, rows_of.RUST_MEMORY, 1.2, at_most=False),
        PeerGoal("cpu", disk, rows_of.RUST_MEMORY, 1.2),
        PeerGoal("rate", fsync, rows_of.RUST_WAL, 1.3, at_most=False),
        PeerGoal("cpu", fsync, rows_of.RUST_WAL, 0.9),
        PeerGoal("cpu", disk, rows_of.REDIS_EVERYSEC, 1.6),
        PeerGoal("cpu", fsync, rows_of.REDIS_ALWAYS, 1.5),
    )


GOALS = (
    *_append_goals(),
    PeerGoal("cpu", "headrace diff 10", "redis xread 10", 1.5),
    PeerGoal("cpu", "headrace diff 1,000", "redis xread 1,000", 1.2),
    PeerGoal("rate", rows_of.JOBS_DISK, rows_of.REDIS_JOBS, 0.8, at_most=False),
    # NATS twice: with acks that are answered, as ours are, and as its clients send them.
    PeerGoal("rate", rows_of.JOBS_DISK, rows_of.NATS_CONFIRMED, 1.3, at_most=False),
    PeerGoal("rate", rows_of.JOBS_DISK, rows_of.NATS_JOBS, 1.3, at_most=False),
    PeerGoal("p50", rows_of.WRITER, rows_of.BARE, 1.5),
    *(PeerGoal("p50", *watch_names(watchers), 1.0) for watchers in WATCHERS),
    PeerGoal("p50", watch_names(1_000)[0], "", 25_000.0),
    PeerGoal("rate", rows_of.JSON_BATCH, "", 1_000_000.0, at_most=False),
    PeerGoal("rate", rows_of.ARROW_BINARY, "", 4_000_000.0, at_most=False),
    PeerGoal("cpu", rows_of.HTTP2, rows_of.HTTP1, 1.8),
)
_NEEDED = {name for goal in GOALS for name in (goal.ours, goal.peer)}
# The plan: all cases that a goal needs, with all of their rows, and appends of other kinds.
PLAN = tuple(
    dict.fromkeys(
        load.case
        for load in rows_of.LOADS
        if load.name in _NEEDED or load.case == rows_of.TRAFFIC_CASE
    )
)


def judged(
    rows: Sequence[Mapping[str, Any]], goals: Sequence[PeerGoal] = GOALS
) -> list[dict[str, Any]]:
    """One line for each goal whose row of ours was asked for."""
    by_name = {row["name"]: row for row in rows}
    return [_judged(goal, by_name) for goal in goals if goal.ours in by_name]


def _judged(goal: PeerGoal, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    ours, peer = rows[goal.ours], rows.get(goal.peer)
    found: dict[str, Any] = {
        "what": ours["what"],
        "figure": goal.figure,
        "ours": goal.ours,
        "value": ours.get(goal.figure),
        "peer": goal.peer or None,
        "peer_value": peer.get(goal.figure) if peer else None,
        "ratio": None,
        "median_ratio": None,
        "goal": goal.text,
        "bound": goal.bound,
        "met": None,
    }
    reasons = [row["missing"] for row in (ours, peer) if row and "missing" in row]
    if reasons:
        found["missing"] = reasons[0]
    elif not goal.peer:
        found["met"] = goal.met(ours[goal.figure])
    elif peer and peer[goal.figure]:
        found["ratio"] = ours[goal.figure] / peer[goal.figure]
        found["median_ratio"] = median_ratio(ours, peer, goal.figure)
        found["met"] = goal.met(found["ratio"])
    else:
        found["missing"] = "too short a run: the peer's figure is zero"
    return found


def median_ratio(ours: Mapping[str, Any], peer: Mapping[str, Any], figure: str) -> float | None:
    """Of the rounds that were taken one after the other."""
    pairs = zip(ours["rounds"][figure], peer["rounds"][figure], strict=True)
    ratios = [mine / theirs for mine, theirs in pairs if theirs]
    return median(ratios) if ratios else None


def shown(figure: str, value: float) -> str:
    """A figure with its unit; latencies are kept in microseconds."""
    if figure == "p50":
        value /= 1e3
    digits = 0 if value >= 1_000 else 2 if value < 10 else 1
    return f"{value:,.{digits}f}{'' if figure in RATES else ' '}{UNITS[figure]}"


HEADINGS = ("row", "figure", "ours", "beside", "theirs", "ratio", "median", "goal", "")


def lines(judgements: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The cells of a table, its headings first."""
    found = [list(HEADINGS)]
    for one in judgements:
        values = [shown(one["figure"], one[name]) if one[name] is not None else ""
                  for name in ("value", "peer_value")]  # fmt: skip
        ratios = [f"{one[name]:.2f} x" if one[name] is not None else ""
                  for name in ("ratio", "median_ratio")]  # fmt: skip
        verdict = {True: "met", False: "NOT MET"}.get(one["met"], "")
        if "missing" in one:
            verdict = f"not measured: {one['missing']}"
        found.append(
            [one["ours"], FIGURES[one["figure"]], values[0], one["peer"] or "", values[1],
             *ratios, one["goal"], verdict]
        )  # fmt: skip
    return found
