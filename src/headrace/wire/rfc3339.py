"""Times as RFC 3339 text: the grammar that requests have to keep to, and milliseconds since 1970.

Only this file says which texts are such times.  What it takes, any instant up to the end of the
year 9999, it can also write: no later one has a text.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_MS: Final = timedelta(milliseconds=1)
# The last millisecond that has a text, in UTC.
MS_MAX: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MS

_parts = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
).fullmatch


def parse_rfc3339(text: str) -> int | None:
    """The time that a text says, rounded down to a millisecond; None: it does not say one.

    >>> parse_rfc3339("2023-11-14T23:13:20.1239+01:00"), parse_rfc3339("2023-11-14t22:13:20z")
    (1700000000123, 1700000000000)
    >>> parse_rfc3339("2023-11-14T22:13:20"), parse_rfc3339("9999-12-31T23:59:59-01:00")
    (None, None)
    """
    found = _parts(text)
    if found is None:
        return None
    *parts, fraction, sign, hours, minutes = found.groups()
    year, month, day, hour, minute, second = map(int, parts)
    leap = second == 60  # datetime knows none
    try:
        at = datetime(year, month, day, hour, minute, 59 if leap else second, tzinfo=UTC)
        if sign is not None:
            if int(hours) > 23 or int(minutes) > 59:
                return None
            ahead = timedelta(hours=int(hours), minutes=int(minutes))
            at = at - ahead if sign == "+" else at + ahead
    except (ValueError, OverflowError):
        return None
    thousandths = int(((fraction or "") + "000")[:3])
    ms = ((at - _EPOCH) // _SECOND + leap) * 1_000 + thousandths
    return ms if ms <= MS_MAX else None


def rfc3339(ms: int) -> str:
    """A time from 1970 on as text, in UTC; one that has no text is shown as the last that has.

    >>> rfc3339(1_700_000_000_123), rfc3339(MS_MAX + 1)
    ('2023-11-14T22:13:20.123Z', '9999-12-31T23:59:59.999Z')
    """
    ms = min(ms, MS_MAX)
    moment = _EPOCH + ms * _MS
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1_000:03}Z"
