"""How far archives are behind, as metrics, and what is read from them or was lost before.

Only this file reads watermarks for a scrape.  A topic has a series once it has a watermark, or
waits for one.  The watermark itself is shown of those that wait: one that does not move while they
are behind is an archive that has stopped, and they grow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from headrace.core.telemetry import Described, Registry, escape
from headrace.engine.figures import Figures
from headrace.engine.topics.topic import Topic

LAG: Final = Described(
    "headrace_topic_archive_lag_records",
    "gauge",
    ("topic",),
    "Seqs of a topic that are not archived yet: its head less its watermark.",
)
WATERMARK: Final = Described(
    "headrace_topic_archived_seq",
    "gauge",
    ("topic",),
    "The watermark of a topic that keeps its records until they are archived.",
)


def watch_archives(
    registry: Registry, figures: Figures, shown: Callable[[], Sequence[Topic]]
) -> None:
    """Add the series of archives; `shown` are the topics that have series of their own."""
    registry.block([LAG, WATERMARK], lambda: _lines(shown()))
    registry.gauge(
        "headrace_topics_overtaken",
        "Topics that lost records before these were archived, and whose archive is not past them.",
        lambda: figures.topics_overtaken,
    )
    registry.read_counter(
        "headrace_lake_reads_total",
        "Reads of what only the lake has.",
        lambda: figures.archive_reads_total,
    )
    registry.read_counter(
        "headrace_lake_read_records_total",
        "Records that reads took from the lake.",
        lambda: figures.archive_records_total,
    )
    registry.read_counter(
        "headrace_lake_read_errors_total",
        "Reads that failed because the lake could not be read.",
        lambda: figures.archive_read_errors_total,
    )
    registry.read_counter(
        "headrace_topics_overtaken_records_total",
        "Records that went unarchived because more than retain_bytes_max was held back.",
        lambda: figures.overtaken_records_total,
    )


def _lines(topics: Sequence[Topic]) -> Iterator[str]:
    yield LAG.head
    for topic in topics:
        if topic.archived_seq or topic.config.retain_until_archived:
            lag = topic.head - topic.archived_seq
            yield f'{LAG.name}{{topic="{escape(topic.name)}"}} {lag}\n'
    yield WATERMARK.head
    for topic in topics:
        if topic.config.retain_until_archived:
            yield f'{WATERMARK.name}{{topic="{escape(topic.name)}"}} {topic.archived_seq}\n'
