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


def test_a_pattern_of_many_wildcards_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        Glob("/".join(["**", "a"] * 9))


class CountedSegment(str):
    """A segment that counts how often it is looked at."""

    looked_at = 0

    def __eq__(self, other: object) -> bool:
        CountedSegment.looked_at += 1
        return str(self) == other

    def __hash__(self) -> int:
        CountedSegment.looked_at += 1
        return hash(str(self))


class CountedPath(str):
    """A path of such segments."""

    def split(self, *_args: object) -> list[str]:  # type: ignore[override]
        return [CountedSegment(segment) for segment in str(self).split("/")]


@pytest.mark.parametrize(
    "pattern",
    [
        "/".join(["**", "a"] * 8) + "/b",
        "**/" + "*/" * 200 + "b",
        "**/" + "a/" * 250 + "b",
        "**/" + "a/" * 120 + "**/" + "a/" * 120 + "b",
    ],
    ids=len,
)
def test_no_pattern_makes_a_long_path_take_long(pattern: str) -> None:
    """Each part was tried on each segment: one path took 40 ms, and a PUT looked at thousands."""
    CountedSegment.looked_at = 0
    path = CountedPath("/".join(["a"] * 290))
    assert not Glob(pattern).matches(path)
    assert CountedSegment.looked_at <= 2 * 290  # found once, and compared with what was found
