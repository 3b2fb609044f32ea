"""What an engine holds in memory for its callers: records, topics, keys, producers, jobs.

The bytes of one are estimates, rounded up; `tests/process/test_bounds.py` holds them against what
a process takes.
"""

from __future__ import annotations

from typing import Final

from headrace.core.limits import KIB, fork_depth_max, producer_id_bytes_max, topic_name_bytes_max
from headrace.core.settings import Settings
from headrace.engine.figures import Figures
from headrace.engine.reading.recent_pages import RECENT_BYTES_MAX
from headrace.metrics.holders import Holder, Holders

# A topic with all that belongs to it but its records; of a stream, with its state.
TOPIC_BYTES: Final = 3 * KIB
TOPICS_UNBOUNDED: Final = 1_000_000  # what is reckoned with where `max_topics` is 0
FORK_BYTES: Final = KIB
FENCE_BYTES: Final = 128
KEY_BYTES: Final = 256
PRODUCER_BYTES: Final = 384 + producer_id_bytes_max
PRODUCER_APPEND_BYTES: Final = 24
JOB_OUT_BYTES: Final = 320
PIN_BYTES: Final = 2 * KIB
ROUTER_BYTES: Final = 2 * KIB


def hold_engine(holders: Holders, figures: Figures, settings: Settings) -> None:
    """Add what an engine holds."""
    _hold_records(holders, figures, settings)
    _hold_topics(holders, figures, settings)
    _hold_writers(holders, figures, settings)


def _hold_records(holders: Holders, figures: Figures, settings: Settings) -> None:
    def memory(kind: str) -> int:
        return figures.memory()[kind]

    budget = settings.memory_budget_bytes
    for holder in (
        Holder(
            "record", "Records in memory, and the objects around them.", "`memory_budget_bytes`",
            settings.record_bytes_max, budget, None, lambda: memory("records"),
        ),
        Holder(
            "read_cache", "Verified blocks of sealed files.",
            "`read_cache_bytes`",
            0, settings.read_cache_bytes, None, lambda: memory("read_cache"),
        ),
        Holder(
            "tag_index", "Tags of unsealed records.",
            "`tag_index_bytes_max`",
            0, settings.tag_index_bytes_max, None, lambda: memory("tag_index"),
        ),
        Holder(
            "recent_page", "Pages that were read lately, and what readers made of them.",
            "`RECENT_BYTES_MAX`", 0, 2 * RECENT_BYTES_MAX, None, lambda: figures.recent_page_bytes,
        ),
        Holder(
            "log_entry", "Appends that wait for the log.",
            "`wal_pending_bytes_max` of each of `wal_shards`",
            settings.body_bytes_max, settings.wal_pending_bytes_max * settings.wal_shards,
            lambda: figures.of_log("depth"), lambda: figures.of_log("pending_bytes"),
        ),
        Holder(
            "manifest_pin", "Manifests whose files are kept.", "`manifest_pins_max`",
            PIN_BYTES, PIN_BYTES * settings.manifest_pins_max, lambda: figures.manifest_pins,
            lambda: PIN_BYTES * figures.manifest_pins,
        ),
    ):  # fmt: skip
        holders.add(holder)


def _hold_topics(holders: Holders, figures: Figures, settings: Settings) -> None:
    topic_bytes = TOPIC_BYTES + 2 * topic_name_bytes_max
    topics_max = settings.max_topics or TOPICS_UNBOUNDED
    for holder in (
        Holder(
            "topic", "Topics and streams, beside their records.", "`max_topics`",
            topic_bytes, topic_bytes * topics_max,
            lambda: figures.topics, lambda: TOPIC_BYTES * figures.topics,
        ),
        Holder(
            "fork", f"Streams that are forks, up to {fork_depth_max} deep.",
            "`max_topics`, `fork_depth_max`; they count as topics, too",
            FORK_BYTES, FORK_BYTES * topics_max,
            lambda: figures.stream_forks, lambda: FORK_BYTES * figures.stream_forks,
        ),
        Holder(
            "fence", "Streams with a fencing token.",
            "`max_topics`; they count as topics, too", FENCE_BYTES, FENCE_BYTES * topics_max,
            lambda: figures.fences, lambda: FENCE_BYTES * figures.fences,
        ),
        Holder(
            "topic_config", "Names in configs of topics.",
            "`topic_config_bytes_max`, `topic_configs_bytes_max`",
            settings.topic_config_bytes_max, settings.topic_configs_bytes_max,
            None, lambda: figures.topic_config_bytes,
        ),
        Holder(
            "router", "Routers: names, filters and where they are.",
            "`max_routers`, `router_bytes_max`, `routers_bytes_max`",
            ROUTER_BYTES + settings.router_bytes_max,
            settings.routers_bytes_max + ROUTER_BYTES * (settings.max_routers or topics_max),
            lambda: figures.routers, lambda: figures.router_bytes,
        ),
    ):  # fmt: skip
        holders.add(holder)


def _hold_writers(holders: Holders, figures: Figures, settings: Settings) -> None:
    for holder in (
        Holder(
            "idempotency_key", "Idempotency keys within their windows.",
            "`idempotency_entries_max`", KEY_BYTES, KEY_BYTES * settings.idempotency_entries_max,
            lambda: figures.idempotency_entries, lambda: KEY_BYTES * figures.idempotency_entries,
        ),
        Holder(
            "producer", "Producers that topics remember, with the newest append of each.",
            "`producers_per_topic_max`, `producers_max`",
            PRODUCER_BYTES, PRODUCER_BYTES * settings.producers_max,
            lambda: figures.producers, lambda: PRODUCER_BYTES * figures.producers,
        ),
        Holder(
            "producer_append", "Older appends of producers.",
            "`appends_per_producer_max`, `producer_appends_max`",
            PRODUCER_APPEND_BYTES, PRODUCER_APPEND_BYTES * settings.producer_appends_max,
            lambda: figures.producer_appends,
            lambda: PRODUCER_APPEND_BYTES * figures.producer_appends,
        ),
        Holder(
            "job_out", "Jobs that were delivered and are not done, with their leases.",
            "`jobs_out_max`, `all_jobs_out_max`",
            JOB_OUT_BYTES, JOB_OUT_BYTES * settings.all_jobs_out_max,
            lambda: figures.jobs_out, lambda: JOB_OUT_BYTES * figures.jobs_out,
        ),
    ):  # fmt: skip
        holders.add(holder)
