"""The names of topics: which are allowed, and all of them in order.

Only this file orders names, so that a page of a list costs what it shows.  The order is that of
their UTF-8 bytes, which is the order of code points, which is how Python compares strings.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator

from headrace.core.errors import InvalidRequest
from headrace.core.limits import any_text_prefix, topic_name_bytes_max


class NameIndex:
    """A sorted set of names.

    >>> names = NameIndex()
    >>> names.build(["b", "a:2", "a:1"])
    >>> list(names.after("", prefix="a:"))
    ['a:1', 'a:2']
    """

    def __init__(self) -> None:
        self._names: list[str] = []

    def __len__(self) -> int:
        return len(self._names)

    def build(self, names: Iterable[str]) -> None:
        """Hold exactly these names."""
        self._names = sorted(set(names))

    def add(self, name: str) -> None:
        index = bisect_left(self._names, name)
        if index == len(self._names) or self._names[index] != name:
            insort(self._names, name, index)

    def remove(self, name: str) -> None:
        index = bisect_left(self._names, name)
        if index < len(self._names) and self._names[index] == name:
            del self._names[index]

    def after(self, name: str, prefix: str = "") -> Iterator[str]:
        """The names beyond `name` that start with `prefix`, in order.

        Nothing may be added or removed while it is iterated.
        """
        names = self._names
        index = max(bisect_right(names, name) if name else 0, bisect_left(names, prefix))
        while index < len(names) and names[index].startswith(prefix):
            yield names[index]
            index += 1


def check_name(name: str) -> None:
    """Engine names: 1 to 600 bytes of UTF-8, no control characters; dialects are stricter.

    Those of S2 may have any but NUL.
    """
    if not isinstance(name, str):
        raise InvalidRequest(f"topic name is {name!r}", fix="send a string")
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidRequest("topic name is not valid UTF-8", fix="send valid text") from None
    if not 1 <= length <= topic_name_bytes_max:
        raise InvalidRequest(
            f"topic name has {length} bytes", fix=f"use 1 to {topic_name_bytes_max}"
        )
    if name.startswith(any_text_prefix):
        controls = "\0" in name
    else:
        controls = any(ord(character) < 0x20 or ord(character) == 0x7F for character in name)
    if controls:
        raise InvalidRequest("topic name has a control character", fix="leave it out")
