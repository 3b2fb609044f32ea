"""Letting go of many objects: one at a time, so that other threads get the interpreter."""

from __future__ import annotations

from headrace.core.let_go import let_go


def test_each_object_is_freed_by_itself() -> None:
    left: list[int] = []

    class Noted:
        def __del__(self) -> None:
            left.append(len(objects))

    objects = [Noted() for _ in range(5)]
    let_go(objects)
    assert left == [4, 3, 2, 1, 0]
