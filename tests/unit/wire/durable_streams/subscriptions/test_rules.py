"""Decisions about a subscription, without a server: fences, cursors, pauses (durable_streams)."""

from __future__ import annotations

import pytest

from headrace.core.clock import SeededRandom
from headrace.core.errors import InvalidRequest, OffsetGone
from headrace.engine.streams.spec import Position
from headrace.wire.durable_streams.subscriptions import rules
from headrace.wire.durable_streams.subscriptions.rules import Decision, Refusal, Report
from headrace.wire.durable_streams.subscriptions.state import (
    EXPLICIT,
    Acked,
    Claimed,
    Created,
    Linked,
    Notified,
    Rested,
    Subscription,
    SubscriptionConfig,
    Woken,
)
from headrace.wire.durable_streams.subscriptions.tokens import make_token

SECRET = b"s" * 32
NOW_MS = 1_000_000
LEASE_MS = 10_000


class Ends:
    """Streams that end where a test says."""

    def __init__(self, **tails: Position) -> None:
        self.tails = tails

    def tail(self, path: str) -> Position | None:
        return self.tails.get(path)

    def resolve(self, path: str, at: Position) -> int:
        tail = self.tails[path]
        if at.incarnation not in (0, tail.incarnation):
            raise OffsetGone("another stream")
        if at.seq > tail.seq:
            raise InvalidRequest("beyond the tail")
        return at.seq


def subscription(type: str = "pull-wake") -> Subscription:
    config = SubscriptionConfig(type, lease_ttl_ms=LEASE_MS)  # type: ignore[arg-type]
    made = Subscription("s", Created(config, "1f", NOW_MS, ""))
    made.link("a", EXPLICIT, Position(7, 2))
    return made


def held(deadline_ms: int = NOW_MS + LEASE_MS) -> Subscription:
    made = subscription()
    made.apply(Woken(1, "w_1"))
    made.apply(Claimed("w", deadline_ms))
    return made


def fenced(made: Subscription, said: Report, generation: int = 1, now_ms: int = NOW_MS) -> str:
    token = make_token(SECRET, "s", "1f", generation)
    refusal = rules.fence(made, SECRET, token, said, now_ms)
    return "" if refusal is None else refusal.code


def test_everything_has_to_be_of_the_present_wake() -> None:
    made = held()
    assert fenced(made, Report("w_1", 1)) == ""
    assert fenced(made, Report("w_2", 1)) == "FENCED"
    assert fenced(made, Report("w_1", 2)) == "FENCED"
    assert fenced(made, Report("w_1", None)) == "FENCED"
    assert fenced(made, Report("w_1", 1), generation=2) == "FENCED"
    assert rules.fence(made, SECRET, "no token", Report("w_1", 1), NOW_MS) == rules.BAD_TOKEN


def test_a_lease_ends_on_time_even_if_nothing_has_noticed() -> None:
    made = held(deadline_ms=NOW_MS + 5)
    assert fenced(made, Report("w_1", 1), now_ms=NOW_MS + 4) == ""
    assert fenced(made, Report("w_1", 1), now_ms=NOW_MS + 5) == "FENCED"
    decided = rules.claim(made, "other", SeededRandom(1), NOW_MS + 5, True)
    assert isinstance(decided, Decision)
    assert [type(event) for event in decided.events] == [Rested, Woken, Claimed]


def test_a_wake_that_nobody_has_claimed_takes_no_report() -> None:
    made = subscription()
    made.apply(Woken(1, "w_1"))
    made.apply(Notified())
    assert fenced(made, Report("w_1", 1)) == "FENCED"


@pytest.mark.parametrize(
    ("acks", "moved"),
    [
        ([("a", "0000000000000007_0000000000000002")], {"a": Position(7, 2)}),
        ([("/a/", "0000000000000007_0000000000000003")], {"a": Position(7, 3)}),
        ([("a", "0000000000000007_0000000000000001")], None),
        ([("a", "0000000000000007_0000000000000005")], None),
        ([("a", "0000000000000006_0000000000000002")], None),
        ([("a", "-1")], None),
        ([("a", "now")], None),
        ([("b", "0000000000000007_0000000000000002")], None),
        (
            [
                ("a", "0000000000000007_0000000000000004"),
                ("a", "0000000000000007_0000000000000003"),
            ],
            None,
        ),
    ],
)
def test_cursors_go_forward_within_the_stream(
    acks: list[tuple[str, str]], moved: dict[str, Position] | None
) -> None:
    cursors = rules.cursors_of(subscription(), acks, Ends(a=Position(7, 4)))
    if moved is None:
        assert isinstance(cursors, Refusal)
        assert (cursors.status, cursors.code) == (409, "INVALID_OFFSET")
    else:
        assert cursors == moved


def test_what_is_new() -> None:
    ends = Ends(a=Position(7, 4))
    assert rules.is_pending(ends, "a", None)
    assert rules.is_pending(ends, "a", Position(7, 3))
    assert not rules.is_pending(ends, "a", Position(7, 4))
    assert rules.is_pending(ends, "a", Position(6, 9)), "a cursor of an earlier stream"
    assert not rules.is_pending(ends, "b", None), "no stream"
    assert not rules.is_pending(Ends(a=Position(7, 0)), "a", None), "an empty one"


def test_pauses_double_up_to_a_minute_and_differ() -> None:
    pauses = [rules.retry_ms(failures, 0.5) for failures in range(1, 9)]
    assert pauses == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]
    made, random = subscription("webhook"), SeededRandom(1)
    made.apply(Woken(1, "w_1"))
    drawn = {rules.failed(made, random, NOW_MS).next_attempt_ms - NOW_MS for _ in range(50)}
    assert len(drawn) > 25 and min(drawn) >= 800 and max(drawn) <= 1_200


def test_what_a_receiver_was_told_of_is_acked_and_nothing_else() -> None:
    made, ends = subscription("webhook"), Ends(a=Position(7, 4))
    made.apply(Woken(1, "w_1"))
    random = SeededRandom(1)
    events = rules.auto_ack(made, {"a": Position(7, 3)}, ends, random, NOW_MS, ["a"])
    assert events[0] == Acked({"a": "0000000000000007_0000000000000003"}, NOW_MS)
    assert [type(event) for event in events] == [Acked, Rested, Woken]
    # A callback was further meanwhile, or the stream is another one now.
    for tail in (Position(7, 1), Position(6, 9)):
        events = rules.auto_ack(made, {"a": tail}, ends, random, NOW_MS, ["a"])
        assert events[0] == Acked({}, NOW_MS)


def test_a_link_is_held_by_name_and_by_pattern() -> None:
    made = subscription()
    made.apply(Linked([("a", 2, "-1")]))
    assert (made.links["a"].kinds, made.links["a"].acked) == (3, Position(7, 2))
    size = made.bytes
    made.unlink("a", EXPLICIT)
    assert made.links["a"].kinds == 2 and made.bytes == size
    made.unlink("a", 2)
    assert not made.links and made.bytes < size
