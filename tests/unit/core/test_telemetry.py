"""Metrics: the numbers, and the text that a scraper reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core import telemetry
from headrace.core.telemetry import Histogram, Registry


def test_the_text_of_every_kind() -> None:
    registry = Registry()
    registry.counter("headrace_append_records_total", "Records appended.").add(2)
    depth = [7]
    registry.gauge("headrace_wal_pending_bytes", "Bytes waiting.", lambda: depth[0])
    registry.gauge("headrace_wal_read_only", "1 when poisoned.").set(0.5)
    by_tier = registry.histograms("headrace_read_duration_seconds", "Reads.", ("tier",), (0.001, 1))
    by_tier.of("hot").observe(0.001)
    by_tier.of("hot").observe(2)
    depth[0] = 9
    assert registry.text().splitlines() == [
        "# HELP headrace_append_records_total Records appended.",
        "# TYPE headrace_append_records_total counter",
        "headrace_append_records_total 2",
        "# HELP headrace_wal_pending_bytes Bytes waiting.",
        "# TYPE headrace_wal_pending_bytes gauge",
        "headrace_wal_pending_bytes 9",
        "# HELP headrace_wal_read_only 1 when poisoned.",
        "# TYPE headrace_wal_read_only gauge",
        "headrace_wal_read_only 0.5",
        "# HELP headrace_read_duration_seconds Reads.",
        "# TYPE headrace_read_duration_seconds histogram",
        'headrace_read_duration_seconds_bucket{tier="hot",le="0.001"} 1',
        'headrace_read_duration_seconds_bucket{tier="hot",le="1"} 1',
        'headrace_read_duration_seconds_bucket{tier="hot",le="+Inf"} 2',
        'headrace_read_duration_seconds_sum{tier="hot"} 2.001',
        'headrace_read_duration_seconds_count{tier="hot"} 2',
        "# HELP headrace_metric_series_dropped_total Uses of series beyond a metric's bound.",
        "# TYPE headrace_metric_series_dropped_total counter",
    ]


def test_a_label_value_cannot_break_the_text() -> None:
    registry = Registry()
    registry.counters("headrace_x_total", "X.", ("topic",)).of('a"b\\c\nd').add()
    assert 'headrace_x_total{topic="a\\"b\\\\c\\nd"} 1\n' in registry.text()


def test_the_number_of_series_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "SERIES_PER_METRIC_MAX", 2)
    registry = Registry()
    family = registry.counters("headrace_x_total", "X.", ("topic",))
    for topic in ("a", "b", "c", "d", "a"):
        family.of(topic).add()
    text = registry.text()
    assert 'headrace_x_total{topic="a"} 2\n' in text
    assert 'topic="c"' not in text
    assert 'headrace_metric_series_dropped_total{metric="headrace_x_total"} 2\n' in text


@given(st.lists(st.integers(0, 20)), st.sets(st.integers(0, 20), min_size=1))
def test_buckets_count_what_is_at_or_below_them(values: list[int], bounds: set[int]) -> None:
    histogram = Histogram(sorted(bounds))
    for value in values:
        histogram.observe(value)
    rows = [(extra, number) for suffix, extra, number in histogram.samples() if suffix == "_bucket"]
    expected = [(f'le="{b}"', sum(v <= b for v in values)) for b in sorted(bounds)]
    assert rows == [*expected, ('le="+Inf"', len(values))]
    assert histogram.sum == sum(values)


def test_names_follow_the_rules() -> None:
    registry = Registry()
    registry.counter("headrace_x_total", "X.")
    for wrong in ("headrace_x_total", "headrace_x", "x_total"):
        with pytest.raises(AssertionError):
            registry.counter(wrong, "X.")
    with pytest.raises(AssertionError):
        registry.gauge("headrace_y_total", "Y.")
    with pytest.raises(AssertionError):
        registry.histogram("headrace_z_seconds", "Z.", (2, 1))
