"""The judge of histories lets through what one order explains, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.harness.events import Violation
from tests.harness.linearizability import Append, History, Read, chain

LOG = [b"a", b"b", b"c"]


def history(
    appends: Sequence[Append], reads: Sequence[Read] = (), unknown: Sequence[Append] = ()
) -> History:
    return History(list(appends), list(unknown), list(reads))


def read(began: int, returned: int, tail: int) -> Read:
    return Read(began, returned, tail, chain(0, LOG[:tail]))


A = Append(1, 4, (b"a",), 1)
B = Append(2, 3, (b"b", b"c"), 2)


def test_a_good_history_passes() -> None:
    history([A, B], [read(2, 5, 1), read(5, 6, 3)]).check(LOG)
    history([A], [read(2, 5, 3)], [Append(2, 0, (b"b", b"c"))]).check(LOG)
    history([A], [], [Append(2, 0, (b"x",))]).check([b"a"])


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (history([A, Append(2, 3, (b"b",), 1)]), "share seq"),
        (history([A, Append(2, 3, (b"x", b"c"), 2)]), "at its place"),
        (history([A]), "nobody wrote"),
        (history([A, B, Append(5, 6, (b"d",), 4)]), "at its place"),
        (history([A], [], [Append(2, 0, (b"b", b"x"))]), "only a part"),
        (history([Append(3, 4, (b"a",), 1), Append(1, 2, (b"b", b"c"), 2)]), "began after"),
        (history([A, B], [Read(5, 6, 2, chain(0, LOG))]), "does not show the first"),
        (history([A, B], [read(5, 6, 1)]), "acknowledged before it began"),
        (history([A, B], [read(1, 2, 2)]), "ends inside"),
        (history([A, Append(5, 6, (b"b", b"c"), 2)], [read(2, 4, 3)]), "began after it returned"),
        (history([A, Append(1, 9, (b"b", b"c"), 2)], [read(2, 5, 3), read(6, 7, 1)]), "goes back"),
    ],
)
def test_a_bad_history_is_noticed(wrong: History, reason: str) -> None:
    with pytest.raises(Violation, match=reason):
        wrong.check(LOG)
