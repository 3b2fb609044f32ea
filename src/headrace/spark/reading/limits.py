"""How one micro-batch is shared between topics: nobody starves, and the same inputs share alike.

Numbers are of seqs, not of rows: what was deleted in between counts too.  Nothing here keeps state:
whose turn it is comes from the offset and goes back into it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import NamedTuple


class Shares(NamedTuple):
    """How many seqs each topic may read; `turn` is the last topic served when some had to wait."""

    seqs: dict[str, int]
    turn: str


def share_out(lags: Mapping[str, int], seqs_max: int | None, turn: str = "") -> Shares:
    """At most `seqs_max` seqs for topics that are `lags` behind, in proportion to that.

    Each gets at least one.  When there are more topics than seqs, those whose names come next
    after `turn` get one each, in a circle.

    >>> share_out({"a": 10, "b": 30, "idle": 0}, 8)
    Shares(seqs={'a': 2, 'b': 6}, turn='')
    >>> share_out({"a": 10, "b": 30, "c": 1}, 2, turn="b")
    Shares(seqs={'c': 1, 'a': 1}, turn='a')
    >>> share_out({"a": 10, "b": 30}, None)
    Shares(seqs={'a': 10, 'b': 30}, turn='')
    """
    behind = {name: lags[name] for name in sorted(lags) if lags[name] > 0}
    total = sum(behind.values())
    if seqs_max is None or total <= seqs_max:
        return Shares(behind, "")
    assert seqs_max > 0, seqs_max
    if seqs_max < len(behind):
        names = list(behind)
        first = bisect_right(names, turn)
        served = (names[first:] + names[:first])[:seqs_max]
        return Shares(dict.fromkeys(served, 1), served[-1])
    spare, beyond = seqs_max - len(behind), total - len(behind)
    # One each, and of the rest the part that fits the lag; what rounding leaves over goes to those
    # who lost most by it.  No share exceeds its lag, because spare < beyond.
    shares = {name: 1 + spare * (lag - 1) // beyond for name, lag in behind.items()}
    left = seqs_max - sum(shares.values())
    for name in sorted(behind, key=lambda n: (-(spare * (behind[n] - 1) % beyond), n))[:left]:
        shares[name] += 1
    return Shares(shares, "")
