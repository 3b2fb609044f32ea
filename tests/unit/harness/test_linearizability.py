"""The judge of histories lets through what one order explains, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.harness.events import Violation
from tests.harness.linearizability import Append, Fenced, History, Part, Read, chain

LOG = [b"a", b"b", b"c"]


def history(
    appends: Sequence[Append],
    reads: Sequence[Read] = (),
    unknown: Sequence[Append] = (),
    parts: Sequence[Part] = (),
    fenced: Sequence[Fenced] = (),
) -> History:
    return History(list(appends), list(unknown), list(reads), list(parts), list(fenced))


def read(began: int, returned: int, tail: int) -> Read:
    return Read(began, returned, tail, chain(0, LOG[:tail]))


def part(began: int, returned: int, first: int, last: int) -> Part:
    return Part(began, returned, first, last, chain(0, LOG[first - 1 : last]))


A = Append(1, 4, (b"a",), 1)
B = Append(2, 3, (b"b", b"c"), 2)


def test_a_good_history_passes() -> None:
    history([A, B], [read(2, 5, 1), read(5, 6, 3)]).check(LOG)
    history([A], [read(2, 5, 3)], [Append(2, 0, (b"b", b"c"))]).check(LOG)
    history([A], [], [Append(2, 0, (b"x",))]).check([b"a"])
    history([A, B], [Read(2, 5, 1, None)], [], [part(2, 6, 2, 2), part(7, 8, 1, 3)]).check(LOG)


def fence(began: int, returned: int, token: bytes, seq: int, given: bytes | None = None) -> Append:
    return Append(began, returned, (token,), seq, token=given, fences=True)


def test_conditions_that_held_pass() -> None:
    after = Append(2, 3, (b"b", b"c"), 2, after=1)
    history([A, after]).check(LOG)
    history([A], [], [Append(2, 0, (b"b", b"c"), after=1)]).check(LOG)
    fences = [fence(1, 4, b"a", 1, b""), fence(5, 6, b"b", 2, b"a")]
    last = Append(7, 8, (b"c",), 3, token=b"b")
    told = [Fenced(2, 3, b"x", b""), Fenced(4, 7, b"x", b"a"), Fenced(9, 10, b"x", b"b")]
    history([*fences, last], fenced=told).check(LOG)


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (Fenced(7, 8, b"x", b"a"), "does not tell of"),
        (Fenced(7, 8, b"x", b""), "does not tell of"),
        (Fenced(1, 2, b"x", b"b"), "began after it returned"),
        (Fenced(7, 8, b"x", b"c"), "nobody fenced"),
    ],
)
def test_a_wrong_token_is_noticed(told: Fenced, reason: str) -> None:
    fences = [fence(1, 4, b"a", 1), fence(5, 6, b"b", 2)]
    with pytest.raises(Violation, match=reason):
        history([*fences, Append(9, 10, (b"c",), 3)], fenced=[told]).check(LOG)


def test_a_refusal_of_what_held_is_noticed() -> None:
    with pytest.raises(Violation, match="told of that tail"):
        History().refused(1, after=3, tail=3)
    with pytest.raises(Violation, match="told of that token"):
        History().fenced_off(1, given=b"t", told=b"t")


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
        # An acknowledged append that is lost, at the end and before others.
        (history([A, B, Append(7, 8, (b"c",), 4)]), "at its place"),
        (history([A, Append(2, 3, (b"lost",), 2), Append(2, 3, (b"c",), 3)]), "at its place"),
        # One that is there twice, answered or not.
        (history([A, Append(2, 3, (b"b",), 2)], [], [Append(2, 0, (b"a",))]), "nobody wrote"),
        # An append without an answer is before one that had returned when it began.
        (history([B], [], [Append(4, 0, (b"a",))]), "began after"),
        # Looks at the tail alone, and reads from the middle.
        (history([A, B], [Read(5, 6, 1, None)]), "acknowledged before it began"),
        (history([A, B], [Read(5, 6, 4, None)]), "does not show the first"),
        (history([A, B], [Read(1, 3, 2, None)]), "ends inside"),
        (history([A, B], [Read(1, 1, 3, None)]), "began after it returned"),
        (history([A, B], [], [], [Part(5, 6, 2, 3, chain(0, [b"c", b"b"]))]), "the log has there"),
        (history([A, B], [], [], [part(1, 1, 2, 3)]), "began after it returned"),
        (
            history([A, Append(1, 9, (b"b", b"c"), 2)], [read(6, 7, 1)], [], [part(2, 5, 2, 2)]),
            "goes back",
        ),
        # Behind another tail, or under another token, than an append asked for.
        (history([A, Append(2, 3, (b"b", b"c"), 2, after=0)]), "as it asked to be"),
        (history([A], [], [Append(2, 0, (b"b", b"c"), after=2)]), "as it asked to be"),
        (history([A, Append(2, 3, (b"b", b"c"), 2, token=b"t")]), "where the token was"),
    ],
)
def test_a_bad_history_is_noticed(wrong: History, reason: str) -> None:
    with pytest.raises(Violation, match=reason):
        wrong.check(LOG)
