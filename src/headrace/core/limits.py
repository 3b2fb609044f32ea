"""The bounds nobody can configure: one name for each, and how they relate.

A bound that an operator may change is a setting (`core/settings.py`); one that is part of a
protocol, of a file format or of what the engine can represent is here.  The asserts run at import,
so a change that breaks a relation stops the first test and not a server.  On-disk widths belong to
the file that writes them.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

# Names.  The engine's is the widest, because the other dialects map onto it with a prefix.
topic_name_bytes_max: Final = 600
native_topic_name_bytes_max: Final = 255
producer_id_bytes_max: Final = 256
reserved_topic_prefixes: Final = ("ds:", "s2:")
any_text_prefix: Final = "s2:"  # its names may have any character but NUL
# Topics that the server keeps for itself begin so: everybody reads them, nobody else writes them.
own_topic_prefix: Final = "_"

# Numbers.  A seq travels as a JSON number, which many readers hold in a double.
seq_max: Final = (1 << 53) - 1
# Timestamps that the writers of a stream give may be of any unit, and fill a signed word.
timestamp_max: Final = (1 << 63) - 1


def is_seq(value: object) -> bool:
    """Whether this is a whole number that can be a seq.

    >>> is_seq(0), is_seq(-1), is_seq(True), is_seq("1")
    (True, False, False, False)
    """
    if type(value) is int:  # of no subclass, as nearly all are
        return 0 <= value <= seq_max
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= seq_max


# Requests.
claims_per_request_max: Final = 1_000
heartbeat_ms_min: Final = 1_000
heartbeat_ms_max: Final = 60_000
lease_ms_min: Final = 100
lease_ms_max: Final = 86_400_000
claim_jitter_ms_max: Final = 5_000
nack_delay_ms_max: Final = 86_400_000
priority_max: Final = 1_000

# Routers.
router_hops_max: Final = 8
# Ranges that a topic announces because a router's source had lost them; routers wait beyond.
source_trims_max: Final = 10_000

# Forks of forks of a topic: each reads through all that it descends from.
fork_depth_max: Final = 256

# Pipelines.  A declaration is parsed when it comes, so that what it may cost is bounded.
pipeline_name_bytes_max: Final = 100
pipeline_sources_max: Final = 16
pipeline_keys_max: Final = 8
pipeline_sql_bytes_max: Final = 16 * KIB
pipeline_sql_depth_max: Final = 32
pipeline_schema_bytes_max: Final = 16 * KIB
pipeline_arguments_bytes_max: Final = 16 * KIB
# The sink makes a staging topic beside it, with a longer name.
pipeline_dest_bytes_max: Final = 200
pipelines_max: Final = 1_000
pipeline_error_bytes_max: Final = 4 * KIB

# Storage. What a topic may keep to know which records of its past were deleted; see
# engine/removal/deleted_seqs.py.
erased_bytes_max: Final = 1 * MIB
wal_shards_max: Final = 64
reader_threads_max: Final = 64
# A loop that waits longer than that for a disk is not one to wait itself.
inline_sync_us_max: Final = 100_000

assert native_topic_name_bytes_max < topic_name_bytes_max
assert pipeline_dest_bytes_max < native_topic_name_bytes_max
assert all(len(prefix) < topic_name_bytes_max for prefix in reserved_topic_prefixes)
assert heartbeat_ms_min < heartbeat_ms_max
assert lease_ms_min < lease_ms_max
assert claim_jitter_ms_max < lease_ms_max
assert nack_delay_ms_max <= lease_ms_max
assert wal_shards_max <= 100, "shard directories are named with two digits"
