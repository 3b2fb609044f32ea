"""Times as RFC 3339 text."""

from __future__ import annotations

import pytest

from headrace.wire.rfc3339 import MS_MAX, parse_rfc3339, rfc3339

NEW_YEAR_2030_MS = 1_893_456_000_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2030-01-01T00:00:00Z", NEW_YEAR_2030_MS),
        ("2030-01-01t00:00:00z", NEW_YEAR_2030_MS),
        ("2030-01-01T05:30:00+05:30", NEW_YEAR_2030_MS),
        ("2029-12-31T23:00:00.5-01:00", NEW_YEAR_2030_MS + 500),
        ("2030-01-01T00:00:00.0019999Z", NEW_YEAR_2030_MS + 1),
        ("2029-12-31T23:59:60Z", NEW_YEAR_2030_MS),
        ("1969-12-31T23:59:59.999Z", -1),
        ("9999-12-31T23:59:59.999Z", MS_MAX),
    ],
)
def test_a_time_is_read(text: str, ms: int) -> None:
    assert parse_rfc3339(text) == ms
    if ms >= 0:
        assert parse_rfc3339(rfc3339(ms)) == ms


@pytest.mark.parametrize(
    "text",
    [
        "", "tomorrow", "2030-W01-1T00:00Z", "20300101T000000Z", "2030-01-01T00:00:00,5Z",
        "2030-01-01T00:00:00+00:00:01", "2030-01-01T00Z", "2030-01-01T00:00Z",
        "2030-01-01 00:00:00Z", "2030-01-01T00:00:00", "2030-01-01T24:00:00Z",
        "2030-02-30T00:00:00Z", "2030-01-01T00:00:61Z", "2030-01-01T00:00:00+24:00",
        "2030-01-01T00:00:00+00:60", "2030-01-01T00:00:00.Z", "2030-01-01T00:00:00Z\n",
        "\uff12030-01-01T00:00:00Z", "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00", "9999-12-31T23:59:60Z",
    ],
)  # fmt: skip
def test_what_is_no_time_is_not_read(text: str) -> None:
    assert parse_rfc3339(text) is None


def test_any_number_has_a_text() -> None:
    assert rfc3339(0) == "1970-01-01T00:00:00.000Z"
    assert rfc3339(1 << 63) == rfc3339(MS_MAX) == "9999-12-31T23:59:59.999Z"
