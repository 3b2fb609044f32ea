"""How far archives are behind, as metrics, and what retention took before they were there.

Only this file reads watermarks for a scrape.  A topic has a series once it has a watermark, or
waits for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from headrace.core.telemetry import Described, Registry, escape
from headrace.engine.engine import Engine
from headrace.engine.topic import Topic

LAG: Final = Described(
    "headrace_topic_archive_lag_records",
    "gauge",
    ("topic",),
    "Seqs of a topic that are not archived yet: its head less its watermark.",
)


def watch_archives(
    registry: Registry, engine: Engine, shown: Callable[[], Sequence[Topic]]
) -> None:
    """Add the series of archives; `shown` are the topics that have series of their own."""
    core = engine.core
    registry.block([LAG], lambda: _lines(shown()))
    registry.gauge(
        "headrace_topics_overtaken",
        "Topics that lost records before these were archived, and whose archive is not past them.",
        lambda: len(core.overtaken) if core.ready else 0,
    )
    registry.read_counter(
        "headrace_topics_overtaken_records_total",
        "Records that went unarchived because more than retain_bytes_max was held back.",
        lambda: core.overtaken_records_total,
    )


def _lines(topics: Sequence[Topic]) -> Iterator[str]:
    yield LAG.head
    for topic in topics:
        if topic.archived_seq or topic.config.retain_until_archived:
            lag = topic.head - topic.archived_seq
            yield f'{LAG.name}{{topic="{escape(topic.name)}"}} {lag}\n'
