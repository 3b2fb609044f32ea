"""What settings have to be to each other: which must not be above which, and what goes together."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Mapping

from headrace.core.errors import ConfigError

Value = str | int  # a flag is a bool, which is an int

COLD_SCHEMES = ("s3", "gs", "file")

# Each pair: the first must not be above the second.
_ORDERED = (
    ("wal_batch_bytes_max", "wal_file_bytes"),
    ("wal_batch_bytes_max", "wal_pending_bytes_max"),
    ("record_bytes_max", "body_bytes_max"),
    ("meta_bytes_max", "record_bytes_max"),
    ("read_limit_default", "read_limit_max"),
    ("read_bytes_default", "read_bytes_max"),
    ("read_bytes_max", "arrow_bytes_max"),
    ("page_size_default", "page_size_max"),
    ("body_bytes_max", "request_memory_bytes_max"),
    ("read_cache_bytes", "memory_budget_bytes"),
    ("tag_index_bytes_max", "memory_budget_bytes"),
    ("watch_session_bytes_max", "watch_sessions_bytes_max"),
    ("router_bytes_max", "routers_bytes_max"),
    ("pipeline_bytes_max", "pipelines_bytes_max"),
    ("subscription_bytes_max", "subscriptions_bytes_max"),
    ("topic_config_bytes_max", "topic_configs_bytes_max"),
    ("api_key_bytes_max", "api_keys_bytes_max"),
)


def check_relations(values: Mapping[str, Value], label: Callable[[str], str]) -> None:
    for small, large in _ORDERED:
        below, above = values[small], values[large]
        assert isinstance(below, int)
        assert isinstance(above, int)
        if below > above:
            raise ConfigError(
                f"{label(small)} ({below}) is above {label(large)} ({above})",
                fix=f"lower {small} or raise {large}",
                detail={"settings": [small, large]},
            )
    if not values["data_dir"]:
        raise ConfigError(f"{label('data_dir')} is empty", fix="name a directory")
    if bool(values["tls_cert"]) != bool(values["tls_key"]):
        raise ConfigError(
            f"{label('tls_cert')} and {label('tls_key')}: only one of them is set",
            fix="set both, or neither",
            detail={"settings": ["tls_cert", "tls_key"]},
        )
    _check_cold(str(values["cold_url"]), str(values["data_dir"]), label)


def _check_cold(cold_url: str, data_dir: str, label: Callable[[str], str]) -> None:
    scheme, separator, _ = cold_url.partition("://")
    if separator and scheme not in COLD_SCHEMES:
        raise ConfigError(
            f"{label('cold_url')} has the scheme {scheme!r}",
            fix=f"use a directory or one of {', '.join(s + '://' for s in COLD_SCHEMES)}",
        )
    local = cold_url.removeprefix("file://")
    if cold_url and os.path.abspath(local) == os.path.abspath(data_dir):
        raise ConfigError(
            f"{label('cold_url')} is the data directory",
            fix="name another directory; the cold copy must not replace the hot one",
            detail={"settings": ["cold_url", "data_dir"]},
        )
