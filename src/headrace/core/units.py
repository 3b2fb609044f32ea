"""Sizes and durations as people write them: "64MiB", "30s".

Pure functions both ways, used by the settings and by whatever prints a size.  A plain number is
bytes or milliseconds, because those are the units the names of settings end with.
"""

from __future__ import annotations

import re

_SIZES = {
    "": 1,
    "b": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "kb": 1_000,
    "mb": 1_000_000,
    "gb": 1_000_000_000,
    "tb": 1_000_000_000_000,
}
_DURATIONS_MS = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_QUANTITY = re.compile(r"([0-9]+) ?([A-Za-z]*)")


def _parse(text: str, units: dict[str, int], example: str) -> int:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2].lower() not in units:
        names = ", ".join(unit for unit in units if unit)
        raise ValueError(f"write a whole number with one of {names}, such as {example}")
    return int(match[1]) * units[match[2].lower()]


def parse_size(text: str) -> int:
    """Bytes.

    >>> parse_size("64MiB"), parse_size("4 kb"), parse_size("512")
    (67108864, 4000, 512)
    """
    return _parse(text, _SIZES, "64MiB")


def parse_duration_ms(text: str) -> int:
    """Milliseconds.

    >>> parse_duration_ms("30s"), parse_duration_ms("10m"), parse_duration_ms("50")
    (30000, 600000, 50)
    """
    return _parse(text, _DURATIONS_MS, "30s")


def format_size(count: int) -> str:
    """The shortest exact spelling that `parse_size` reads back.

    >>> format_size(64 << 20), format_size(1_000_000), format_size(0)
    ('64MiB', '1000000', '0')
    """
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if count and count % _SIZES[unit.lower()] == 0:
            return f"{count // _SIZES[unit.lower()]}{unit}"
    return str(count)


def format_duration_ms(count: int) -> str:
    """The shortest exact spelling that `parse_duration_ms` reads back.

    >>> format_duration_ms(30_000), format_duration_ms(50), format_duration_ms(0)
    ('30s', '50ms', '0')
    """
    for unit in ("d", "h", "m", "s", "ms"):
        if count and count % _DURATIONS_MS[unit] == 0:
            return f"{count // _DURATIONS_MS[unit]}{unit}"
    return str(count)
