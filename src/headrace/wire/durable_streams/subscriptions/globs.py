"""Patterns of stream paths: `*` is one segment, `**` any number of them, none too.

Only this file knows what a pattern matches.  A literal star is written `%2A`; other percent-encoded
text in a pattern means what it means in a path.
"""

from __future__ import annotations

from typing import Final

from headrace.core.errors import InvalidRequest
from headrace.wire.durable_streams.subscriptions.stream_paths import decoded_segment

ONE: Final = "*"
ANY: Final = "**"
# Nobody needs more, and what a pattern means should be seen at a glance.
DEEP_PARTS_MAX: Final = 8


class Glob:
    """A pattern of paths.

    Matching follows all ways through the pattern at once, as bits of one number: bit n says that
    the first n parts can have matched the segments so far.  So a segment costs a few operations,
    whatever the pattern is, and no pattern is a way to stop the loop.

    >>> glob = Glob("events/*")
    >>> glob.matches("events/a"), glob.matches("events"), glob.matches("events/a/b")
    (True, False, False)
    >>> Glob("**/log").matches("log"), Glob("**/log").matches("a/b/log")
    (True, True)
    """

    __slots__ = ("_any", "_begin", "_end", "_literals", "_one", "_rest", "prefix", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        parts = _parts_of(text)
        self.prefix = _prefix_of(parts)
        self._any = self._one = 0  # where a wildcard is next
        at: dict[str, int] = {}  # where a literal is next
        for index, part in enumerate(parts):
            if part == ANY:
                self._any |= 1 << index
            elif part == ONE:
                self._one |= 1 << index
            else:
                at[part[0]] = at.get(part[0], 0) | 1 << index
        # Where a segment takes the next part: its literals, and each `*`.
        self._literals = {segment: bits | self._one for segment, bits in at.items()}
        self._begin = self._beyond(1)
        self._end = 1 << len(parts)
        self._rest = self._end >> 1 & self._any  # a `**` at the end takes whatever follows

    def matches(self, path: str) -> bool:
        """Return whether a decoded path is one of those that are meant."""
        if not path.startswith(self.prefix):
            return False
        wild, one, rest, takes = self._any, self._one, self._rest, self._literals.get
        reached = self._begin
        for segment in path.split("/"):
            if reached & rest:
                return True
            reached = reached & wild | (reached & takes(segment, one)) << 1
            reached |= (reached & wild) << 1
            if not reached:
                return False
        return reached & self._end != 0

    def _beyond(self, reached: int) -> int:
        """Add what is reached without a segment, because `**` may be none: no two are in a row."""
        return reached | (reached & self._any) << 1


def _parts_of(text: str) -> list[str | list[str]]:
    """A wildcard as itself, any other segment decoded in a list: a literal star is no wildcard."""
    parts: list[str | list[str]] = []
    for segment in text.strip("/").split("/"):
        if not segment:
            raise InvalidRequest(f"{text[:80]!r} has an empty segment", fix="leave it out")
        if segment not in (ONE, ANY):
            parts.append([decoded_segment(segment)])
        elif segment != ANY or parts[-1:] != [ANY]:  # twice in a row says nothing more
            parts.append(segment)
    if parts.count(ANY) > DEEP_PARTS_MAX:
        raise InvalidRequest(
            f"the pattern has more than {DEEP_PARTS_MAX} `**`", fix="write a simpler one"
        )
    return parts


def _prefix_of(parts: list[str | list[str]]) -> str:
    """The longest text that every match is known to begin with."""
    fixed: list[str] = []
    for part in parts:
        if isinstance(part, str):
            break
        fixed += part
    rest = parts[len(fixed) :]
    text = "/".join(fixed)
    # `a/**` matches `a` itself; whatever else follows comes behind a slash.
    return text + "/" if fixed and rest and any(part != ANY for part in rest) else text
