"""What queues are doing, as metrics: how many there are, jobs that are leased, each queue's counts.

Only this file reads queues for a scrape.  `Metrics.jobs` counts what was done to jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from headrace.core.telemetry import Described, Registry, escape
from headrace.engine.engine import Engine
from headrace.engine.topics.topic import Topic

PER_QUEUE: Final = [
    Described(name, "gauge", ("topic",), help_text)
    for name, help_text in (
        ("headrace_topic_queue_ready", "Jobs of a queue that can be claimed."),
        ("headrace_topic_queue_in_flight", "Jobs of a queue that are leased."),
        ("headrace_topic_queue_delayed", "Jobs that were given back, and wait for their time."),
        ("headrace_topic_queue_dead_lettered", "Jobs moved to the dead letter topic so far."),
        ("headrace_topic_queue_unreadable", "Jobs passed over because their record is damaged."),
    )
]


def watch_queues(registry: Registry, engine: Engine, shown: Callable[[], Sequence[Topic]]) -> None:
    """Add the series of queues; `shown` are the topics that have series of their own."""
    registry.block(PER_QUEUE, lambda: _queue_lines(engine, shown()))
    figures = engine.figures
    registry.gauge(
        "headrace_queue_topics",
        "Topics that are queues.",
        lambda: figures.queue_topics,
    )
    registry.gauge(
        "headrace_queue_leases_in_flight", "Jobs that are leased.", lambda: figures.leases
    )


def _queue_lines(engine: Engine, topics: Sequence[Topic]) -> Iterator[str]:
    queues = [topic for topic in topics if topic.config.type == "queue"]
    labels = [f'{{topic="{escape(topic.name)}"}}' for topic in queues]
    counts = [engine.queues.counts_of(topic) for topic in queues]
    columns = (
        [each.ready for each in counts],
        [each.in_flight for each in counts],
        [each.delayed for each in counts],
        [each.dead_lettered for each in counts],
        [each.unreadable for each in counts],
    )
    for described, column in zip(PER_QUEUE, columns, strict=True):
        yield described.head
        for label, value in zip(labels, column, strict=True):
            yield f"{described.name}{label} {value}\n"
