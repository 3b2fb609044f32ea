"""What the scheduler and the governor know about themselves, as metrics.

Only this file reads them for a scrape: the pressure and what it is made of, how many wait in which
band, and for each rung of the ladder whether it is in use and what it has done.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.core.telemetry import Labels, Number
from headrace.engine.engine import Engine
from headrace.engine.scheduling.governor import RUNGS
from headrace.metrics.requests import Metrics

MS_PER_SECOND = 1_000


def watch_scheduler(metrics: Metrics, engine: Engine) -> None:
    """Register everything that is read from the scheduler of an engine."""
    _pressure(metrics, engine)
    _bands(metrics, engine)
    _ladder(metrics, engine)


def _pressure(metrics: Metrics, engine: Engine) -> None:
    registry, governor = metrics.registry, engine.throttle.governor
    registry.gauge(
        "headrace_pressure",
        "How overloaded the server is, from 0 to 1.",
        lambda: governor.pressure,
    )
    registry.read_gauges(
        "headrace_pressure_signal",
        "What the pressure is made of, each from 0 to 1.",
        ("signal",),
        lambda: (
            (("depth",), governor.depth),
            (("latency",), governor.latency),
            (("busy",), governor.busy),
        ),
    )
    registry.gauge(
        "headrace_scheduler_latency_seconds",
        "From being ready to being served, smoothed.",
        lambda: governor.latency_ms / MS_PER_SECOND,
    )


def _bands(metrics: Metrics, engine: Engine) -> None:
    registry, turns = metrics.registry, engine.turns

    def by_band(figures: Iterable[int]) -> Iterable[tuple[Labels, Number]]:
        return [((f"b{band}",), figure) for band, figure in enumerate(figures)]

    registry.read_gauges(
        "headrace_scheduler_ready",
        "Jobs that wait for their turn, by band; b4 is served first.",
        ("band",),
        lambda: by_band(turns.bands.depths),
    )
    registry.read_counters(
        "headrace_scheduler_served_total",
        "Turns that jobs were given by rank, by band.",
        ("band",),
        lambda: by_band(turns.bands.served_total),
    )
    registry.read_counter(
        "headrace_scheduler_unranked_total",
        "Turns that jobs were given at once, because there were few.",
        lambda: turns.unranked_total,
    )


def _ladder(metrics: Metrics, engine: Engine) -> None:
    registry, figures = metrics.registry, engine.figures
    throttle, turns = engine.throttle, engine.turns
    governor = throttle.governor
    registry.read_gauges(
        "headrace_throttle_rung",
        "1 while a rung of the ladder is in use.",
        ("rung",),
        lambda: [((rung,), int(stands)) for rung, stands in governor.rungs().items()],
    )
    registry.read_counters(
        "headrace_throttle_entered_total",
        "Times that a rung came into use.",
        ("rung",),
        lambda: [((rung,), governor.entered_total[rung]) for rung in RUNGS],
    )
    registry.gauge(
        "headrace_throttle_coalesce_seconds",
        "How long deliveries of a topic are put together.",
        lambda: turns.coalesce_ms / MS_PER_SECOND,
    )
    registry.read_counter(
        "headrace_throttle_coalesced_total",
        "Wakes of a topic's readers that were put together with later ones.",
        lambda: turns.coalesced_total,
    )
    registry.gauge(
        "headrace_throttle_window_seconds",
        "How long a sync that somebody waits for waits for more to join it.",
        lambda: figures.log_window_ms / MS_PER_SECOND,
    )
    registry.read_counter(
        "headrace_throttle_windows_total",
        "Syncs that waited so.",
        lambda: figures.of_log("windows_total"),
    )
    registry.gauge(
        "headrace_throttle_held",
        "Topics of negative priority whose delivery is held back.",
        lambda: sum(1 for _ in turns.bands.held()),
    )
    registry.read_counter(
        "headrace_throttle_refused_total",
        "Appends refused with 429 under full pressure.",
        lambda: throttle.refused_total,
    )
    registry.read_counter(
        "headrace_throttle_bypassed_total",
        "Appends that would have been, and had asked not to be.",
        lambda: throttle.bypassed_total,
    )
