"""Letting go of very many objects without keeping the interpreter from other threads meanwhile."""

from __future__ import annotations

from typing import Any


def let_go(objects: list[Any]) -> None:
    """Empty a list, one object after the other.

    A list or a dict that goes away frees all it alone refers to in one step, which no other thread
    can interrupt: 20 to 30 ms for what is kept of 50,000 topics.

    >>> topics = [["a"], ["b"]]
    >>> let_go(topics)
    >>> topics
    []
    """
    while objects:
        objects.pop()
