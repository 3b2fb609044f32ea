"""Which paths a pattern matches, and what all of them begin with (durable_streams)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidRequest
from headrace.wire.durable_streams.subscriptions.globs import Glob

PATHS = [
    "/".join(parts)
    for length in range(1, 5)
    for parts in itertools.product(("a", "b"), repeat=length)
]


@pytest.mark.parametrize(
    ("pattern", "matched", "others"),
    [
        ("a", ["a"], ["b", "a/a"]),
        ("a/*", ["a/b", "a/%"], ["a", "a/b/c", "b/a"]),
        ("*/b", ["a/b", "b/b"], ["b", "a/a"]),
        ("**", ["a", "a/b", "a/b/c"], []),
        ("a/**", ["a", "a/b", "a/b/c"], ["ab", "b/a"]),
        ("**/b", ["b", "a/b", "a/a/b"], ["b/a", "ab"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["a", "b", "a/b/c"]),
        ("a/**/**/b/**", ["a/b", "a/x/b/y"], ["a"]),
        ("a*", ["a*"], ["ab", "a"]),
        ("%2A/x", ["*/x"], ["a/x"]),
        ("%2a%2A", ["**"], ["a"]),
        ("a%20b/*", ["a b/c"], ["a%20b/c"]),
        ("/a/*/", ["a/b"], ["a"]),
    ],
)
def test_what_a_pattern_matches(pattern: str, matched: list[str], others: list[str]) -> None:
    glob = Glob(pattern)
    assert [path for path in matched if not glob.matches(path)] == []
    assert [path for path in others if glob.matches(path)] == []


def matches_slowly(parts: list[str], path: list[str]) -> bool:
    """The definition, word for word."""
    if not parts:
        return not path
    if parts[0] == "**":
        return any(matches_slowly(parts[1:], path[skip:]) for skip in range(len(path) + 1))
    return bool(path) and parts[0] in ("*", path[0]) and matches_slowly(parts[1:], path[1:])


@given(st.lists(st.sampled_from(["a", "b", "*", "**"]), min_size=1, max_size=5))
def test_a_pattern_means_what_its_definition_says(parts: list[str]) -> None:
    glob = Glob("/".join(parts))
    for path in PATHS:
        assert glob.matches(path) == matches_slowly(parts, path.split("/")), path
        if glob.matches(path):
            assert path.startswith(glob.prefix)


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [("a/b", "a/b"), ("a/*", "a/"), ("a/**", "a"), ("a/**/b", "a/"), ("*", ""), ("**/a", "")],
)
def test_what_every_match_begins_with(pattern: str, prefix: str) -> None:
    """A key whose prefix is longer must not get at a stream beside it: `a/**` matches `a`."""
    assert Glob(pattern).prefix == prefix


@pytest.mark.parametrize("pattern", ["", "/", "a//b", "%", "a/%2", "%2F", "%00", "a/\x01", "%ff"])
def test_what_is_no_pattern(pattern: str) -> None:
    with pytest.raises(InvalidRequest):
        Glob(pattern)


def test_a_pattern_that_would_take_long_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        Glob("/".join(["**", "a"] * 9))
    # The worst that is allowed is done with in one pass over the path.
    assert not Glob("/".join(["**", "a"] * 8) + "/b").matches("/".join(["a"] * 200))
