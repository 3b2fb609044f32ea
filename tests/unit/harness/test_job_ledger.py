"""The judge of queues over many lives of a server lets through what may be, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.events import Violation
from tests.harness.job_ledger import Grant, JobLedger, Letter

LEASE_MS = 100


class Told:
    """A queue with jobs 1 to 3, and workers that are told things at certain engine times."""

    def __init__(self, *, durable: bool = True) -> None:
        self.ledger = JobLedger("q", durable, 3)
        self.ledger.sent |= {"j1", "j2", "j3"}
        self.ledger.appended(["j1", "j2", "j3"], 1)
        self._leases = 0

    def claim(
        self, at: int, deliveries: int = 1, *, life: int = 1, bound: bool = False, seq: int = 1
    ) -> Grant:
        self._leases += 1
        return self.ledger.granted(
            f"j{seq}", seq, f"lease_{self._leases}", "w",
            deadline=at + LEASE_MS, lease_ms=LEASE_MS, deliveries=deliveries, bound=bound,
            life=life,
        )  # fmt: skip

    def end(self, what: str, grant: Grant, life: int = 1) -> None:
        self.ledger.done(what, self.ledger.ask(life), [grant], [])

    def judge(self) -> None:
        self.ledger.check_history()


def letter(name: str, **changed: object) -> Letter:
    meta: dict[str, Any] = {"job": name, "$dead_letter_from": "q", "$dead_letter_deliveries": "3"}
    return Letter(name, meta | {"$dead_letter_src_seq": name[1:]} | changed)


def refuses(told: Told, match: str) -> None:
    with pytest.raises(Violation, match=match):
        told.judge()


def test_a_lease_that_ran_out_is_followed_by_another() -> None:
    told = Told()
    told.claim(1_000)
    told.claim(1_101, 2)
    told.judge()


def test_two_holders() -> None:
    told = Told()
    told.claim(1_000)
    told.claim(1_100, 2)
    refuses(told, "two holders")


def test_answers_may_come_in_another_order() -> None:
    told = Told()
    told.claim(1_101, 2)
    told.claim(1_000)
    told.judge()


@pytest.mark.parametrize("what", ["nack", "lost nack", "drop", "stop"])
def test_what_was_given_up_may_be_given_again(what: str) -> None:
    told = Told()
    first = told.claim(1_000, bound=what in ("drop", "stop"))
    if what == "nack":
        told.end("nack", first)
    elif what == "lost nack":
        told.ledger.lost("nack", told.ledger.ask(1), [first])
    elif what == "drop":
        told.ledger.dropped([first])
    else:
        told.ledger.stopping(1)
    told.claim(1_010, 2)
    told.judge()


def test_what_is_given_up_later_was_held() -> None:
    told = Told()
    first = told.claim(1_000, bound=True)
    told.claim(1_010, 2)
    told.ledger.dropped([first])
    refuses(told, "two holders")


def test_an_extension_is_a_hold() -> None:
    told = Told()
    first = told.claim(1_000)
    told.ledger.extended(told.ledger.ask(1), [first], {1: 1_180})
    told.claim(1_150, 2)
    refuses(told, "two holders")


def test_an_extension_without_an_answer_may_be_shorter() -> None:
    told = Told()
    first = told.claim(1_000)
    told.claim(1_010, seq=2)
    told.ledger.lost("extend", told.ledger.ask(1), [first], 20)
    told.claim(1_031, 2)
    told.judge()
    told.claim(1_051, 3)
    refuses(told, "two holders")


def test_a_stale_lease_that_is_obeyed() -> None:
    told = Told()
    first = told.claim(1_000)
    told.claim(1_101, 2)
    with pytest.raises(Violation, match="after its end"):
        told.end("nack", first)
    told = Told()
    first = told.claim(1_000, life=1)
    told.claim(1_101, 2, life=2)
    told.end("nack", first)
    refuses(told, "a stale lease was obeyed")


def test_a_job_that_was_done_is_given_again() -> None:
    told = Told()
    told.end("ack", told.claim(1_000))
    told.claim(2_000, 2, life=2)
    refuses(told, "was done")


def test_a_job_is_acknowledged_once() -> None:
    told = Told()
    first = told.claim(1_000)
    told.end("ack", first)
    with pytest.raises(Violation, match="twice"):
        told.end("ack", first)


@pytest.mark.parametrize(("durable", "bound"), [(True, True), (False, False), (True, False)])
def test_leases_and_restarts(durable: bool, bound: bool) -> None:
    told = Told(durable=durable)
    first = told.claim(1_000, bound=bound)
    asked = told.ledger.ask(2)
    if durable and not bound:
        told.ledger.extended(asked, [first], {1: 1_105})
    else:
        with pytest.raises(Violation, match="in life 2"):
            told.ledger.extended(asked, [first], {1: 1_105})
    told.claim(1_010, 2, life=2)
    if durable and not bound:
        refuses(told, "two holders")
    else:
        told.judge()


def test_deliveries_grow() -> None:
    told = Told(durable=False)
    told.claim(1_000, 2)
    told.claim(2_000, 2, life=2)
    told.judge()  # the count of a claim that nobody waited for
    told.ledger.stopping(2)
    told.claim(3_000, 2, life=3)
    refuses(told, "deliveries")
    told = Told()
    told.claim(1_000, 2)
    told.claim(2_000, 2, life=2)
    refuses(told, "deliveries")
    with pytest.raises(Violation, match="too often"):
        told.claim(3_000, 4)


def test_a_delay_is_kept() -> None:
    told = Told()
    first = told.claim(1_000)
    asked = told.ledger.ask(1)
    told.ledger.done("nack", asked, [first], [])
    told.ledger.delayed(asked, [first], [], 50)
    told.claim(1_049, 2)
    refuses(told, "delay")


def test_places() -> None:
    told = Told()
    told.end("ack", told.claim(1_000, seq=1))
    check = told.ledger.check_places
    check({2: "j2", 3: "j3"}, [])
    check({2: "j2"}, [letter("j3")])
    for live, dead, why in (
        ({2: "j2"}, [], "0 places"),
        ({2: "j2", 3: "j3"}, [letter("j3")], "2 places"),
        ({2: "j2"}, [letter("j3"), letter("j3")], "dead twice"),
        ({1: "j1", 2: "j2", 3: "j3"}, [], "acknowledged"),
        ({2: "j2", 3: "j3", 4: "j4"}, [], "nobody sent"),
        ({2: "j3", 3: "j2"}, [], "2 was j2"),
        ({2: "j2"}, [letter("j3", job="j4")], "j3 has"),
        ({2: "j2"}, [letter("j3", **{"$dead_letter_src_seq": 3})], "j3 has"),
    ):
        with pytest.raises(Violation, match=why):
            check(live, dead)
    told.ledger.lost("ack", told.ledger.ask(1), [told.claim(1_000, seq=3)])
    check({2: "j2"}, [])
    check({2: "j2", 3: "j3"}, [])
