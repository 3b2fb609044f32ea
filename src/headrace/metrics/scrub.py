"""What the scrub has verified, how old the oldest verification is, and what is damaged."""

from __future__ import annotations

from headrace.core.telemetry import Registry
from headrace.engine.scrubbing.scrub import Scrub


def watch_scrub(registry: Registry, scrub: Scrub) -> None:
    """Add the series of the scrub."""
    registry.read_counter(
        "headrace_scrub_verified_bytes_total",
        "Bytes that the scrub has read and found right.",
        lambda: scrub.verified_bytes_total,
    )
    registry.read_counter(
        "headrace_scrub_verified_files_total",
        "Files that the scrub has found whole.",
        lambda: scrub.verified_files_total,
    )
    registry.gauge(
        "headrace_scrub_oldest_verification_seconds",
        "Age of the oldest verification of a live file; before the first, since it is known.",
        lambda: scrub.oldest_verification_ms / 1_000,
    )
    registry.gauge(
        "headrace_scrub_damaged_files",
        "Live files that are damaged; /v0/ready names them.",
        lambda: scrub.damaged_files,
    )
    registry.read_counter(
        "headrace_scrub_damage_found_total",
        "Files that the scrub has found damaged.",
        lambda: scrub.damaged_files_total,
    )
    registry.read_counter(
        "headrace_scrub_repaired_files_total",
        "Damaged segments that were fetched again from where they are whole.",
        lambda: scrub.repaired_files_total,
    )
