"""The figures of queues, routers and the ladder, with their goals; `figures.py` adds them."""

from __future__ import annotations

from bench.goals import Figure, Goal, at_least, at_most
from bench.goals import figures_of as _case

CLASSES = ("disk", "fsync")
# A pressure on each rung, the one before it included; "healthy" is none.
HELD = {"healthy": 0.0, "coalesce": 0.4, "widen": 0.6, "defer": 0.9, "shed": 1.0}
# Connections that append as fast as they can.
CROWDS = (0, 16, 64, 512)
# From append to delivery: what the documents promise of the first two conditions.
_HEALTHY, _MILD = at_most(5), at_most(15)
_GOALS = {"healthy": _HEALTHY, "coalesce": _MILD}
_LOAD_GOALS = {0: _HEALTHY, 64: _MILD}
# Two rows of the same thing differ by as much.
_NOISE = 1.25


def _queue(durability: str, goal: Goal) -> list[Figure]:
    name = f"http_queue_{durability}"
    about = f"20,000 jobs, class {durability}"
    return _case(
        "http_queue",
        (name, "jobs/s", f"{about}: produced, claimed, acknowledged, one core", goal),
        (f"{name}_cpu", "µs", "the same: server CPU a job", None),
        (f"{name}_busy", "%", "the same: how busy the server's core was with it", None),
        (f"{name}_generator_cpu", "µs", "the same: the generator's CPU a job", None),
        (f"{name}_generator_busy", "%", "the same: how busy the generator's core was", None),
        (f"{name}_claim_p50", "ms", "a claim of 8, 50 workers at once: p50", None),
        (f"{name}_claim_p99", "ms", "the same, p99", None),
        (f"{name}_ack_p50", "ms", "an ack of 8, 50 workers at once: p50", None),
        (f"{name}_ack_p99", "ms", "the same, p99", None),
    )


def _held(rung: str, pressure: float) -> list[Figure]:
    rows: list[Figure] = []
    for durability in CLASSES:
        name = f"http_rungs_{rung}_{durability}"
        about = f"{rung}, pressure held at {pressure:g}, class {durability}: delivery"
        goal = _GOALS.get(rung) if durability == "disk" else None
        rows += _case(
            "http_rungs",
            (f"{name}_p50", "ms", f"{about} p50", goal),
            (f"{name}_p99", "ms", f"{about} p99", None),
        )
    return rows


def _loaded(crowd: int) -> list[Figure]:
    name = f"http_rungs_load_{crowd}"
    about = f"beside {crowd} connections that append" if crowd else "beside nobody"
    return _case(
        "http_rungs",
        (f"{name}_p50", "ms", f"{about}: delivery p50", _LOAD_GOALS.get(crowd)),
        (f"{name}_p99", "ms", f"{about}: delivery p99", None),
        (f"{name}_pressure", "of 1", f"{about}: the mean pressure", None),
    )


QUEUE_FIGURES: tuple[Figure, ...] = (
    *_queue("disk", at_least(20_000)),
    *_queue("fsync", at_least(8_000)),
    *_case(
        "http_fanout",
        ("http_fanout_plain_p50", "ms", "an append to a topic with no routers: p50", None),
        ("http_fanout_plain_p99", "ms", "the same, p99", None),
        (
            "http_fanout_source_p50", "ms", "an append to one with 1,000 routers: p50",
            Goal(True, lambda v: _NOISE * v["http_fanout_plain_p50"], f"<= {_NOISE} x without"),
        ),
        ("http_fanout_source_p99", "ms", "the same, p99", None),
        ("http_fanout_plain_cpu", "ms", "server CPU of an append without routers", None),
        ("http_fanout_copies_cpu", "ms", "the same until 1,000 copies are there", at_most(50)),
        ("http_fanout_frames", "frames", "log frames an append with 1,000 routers", at_most(1)),
        ("http_fanout_read_p50", "ms", "a read of a copy right after the append: p50", None),
        ("http_fanout_read_p99", "ms", "the same, p99", None),
        ("http_fanout_plain_loop_p50", "ms", "a writer that never rests, no routers: p50", None),
        ("http_fanout_plain_loop_p99", "ms", "the same, p99", None),
        ("http_fanout_source_loop_p50", "ms", "the same with 1,000 routers: p50", None),
        ("http_fanout_source_loop_p99", "ms", "the same, p99", None),
    ),
    *(figure for rung, pressure in HELD.items() for figure in _held(rung, pressure)),
    *(figure for crowd in CROWDS for figure in _loaded(crowd)),
)  # fmt: skip
