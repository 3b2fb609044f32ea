"""Tokens of wakes: genuine ones are known, whatever generation they are of (durable_streams)."""

from __future__ import annotations

import pytest

from headrace.wire.durable_streams.subscriptions.tokens import make_token, token_generation

SECRET = b"s" * 32


def test_a_token_says_which_wake_it_is_of() -> None:
    for generation in (1, 2, 10**6):
        token = make_token(SECRET, "orders", "1f", generation)
        assert token_generation(SECRET, "orders", "1f", token) == generation


def test_a_token_is_of_one_subscription_in_one_life_on_one_server() -> None:
    token = make_token(SECRET, "orders", "1f", 7)
    assert token_generation(b"t" * 32, "orders", "1f", token) is None
    assert token_generation(SECRET, "order", "1f", token) is None
    assert token_generation(SECRET, "orders", "2f", token) is None
    # The parts cannot be shifted against each other.
    assert token_generation(SECRET, "sorders", "1f", token) is None
    assert token_generation(SECRET, "f\0orders", "1", token) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda token: "8" + token[1:],
        lambda token: token[:-1] + ("A" if token[-1] != "A" else "B"),
        lambda token: token[:-1],
        lambda token: token + "A",
        lambda token: token.replace(".", ""),
        lambda token: "",
        lambda token: "." + token,
        lambda token: "-" + token,
        lambda token: "7" * 400 + token,
        lambda token: "\u0667" + token[1:],
        lambda token: "é" + token,
    ],
)
def test_a_changed_token_is_not_genuine(change) -> None:  # type: ignore[no-untyped-def]
    token = make_token(SECRET, "orders", "1f", 7)
    assert token_generation(SECRET, "orders", "1f", change(token)) is None
