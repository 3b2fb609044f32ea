"""The bounded map: what it keeps, what it drops first, and who hears of it."""

from __future__ import annotations

from headrace.core.lru import LruMap


def test_a_use_saves_a_value_from_being_dropped() -> None:
    recent: LruMap[int, str] = LruMap(3)
    for number in range(3):
        recent.put(number, str(number))
    assert recent.get(0) == "0"
    recent.put(3, "3")
    assert list(recent) == [2, 0, 3]
    assert recent.get(1) is None


def test_the_bound_is_a_weight_and_the_newest_value_stays() -> None:
    recent: LruMap[str, bytes] = LruMap(10)
    recent.put("a", b"", 6)
    recent.put("b", b"", 4)
    assert (len(recent), recent.weight) == (2, 10)
    recent.put("huge", b"", 100)
    assert (list(recent), recent.weight) == (["huge"], 100)
    recent.put("c", b"", 1)
    assert (list(recent), recent.weight) == (["c"], 1)


def test_a_value_that_is_replaced_gives_its_weight_back() -> None:
    recent: LruMap[str, str] = LruMap(10)
    recent.put("a", "old", 6)
    recent.put("a", "new", 2)
    assert (recent.get("a"), recent.weight) == ("new", 2)


def test_every_value_that_leaves_is_told_once_and_one_taken_out_is_not() -> None:
    left: list[str] = []
    recent: LruMap[int, str] = LruMap(2, left.append)
    for number in range(4):
        recent.put(number, f"v{number}")
    assert left == ["v0", "v1"]
    assert recent.pop(2) == "v2"
    assert recent.pop(2) is None
    same = recent.get(3)
    assert same is not None
    recent.put(3, same)
    recent.put(3, "other")
    recent.clear()
    assert left == ["v0", "v1", "v3", "other"]
    assert (len(recent), recent.weight) == (0, 0)
