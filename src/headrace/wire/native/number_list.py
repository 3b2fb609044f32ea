"""Lists of many consecutive numbers as text, as an answer with the seqs of a batch has one."""

from __future__ import annotations

from typing import Final

# The last digits of every number: what is before them is written once for all that share it.
_LAST: Final = tuple(f"{number:03d}" for number in range(1_000))


def listed(first: int, last: int) -> str:
    """The numbers from `first` to `last`, with commas between them.

    >>> listed(998, 1001)
    '998,999,1000,1001'
    """
    if first == last:
        return str(first)
    parts: list[str] = []
    if first < len(_LAST):  # these have no digits before
        parts += map(str, range(first, min(last + 1, len(_LAST))))
        first = len(_LAST)
    while first <= last:
        before, at = divmod(first, len(_LAST))
        digits = _LAST[at : at + last - first + 1]
        parts.append(f"{before}{f',{before}'.join(digits)}")
        first += len(digits)
    return ",".join(parts)
