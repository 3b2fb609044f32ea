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
# `**` makes matching a search: a pattern with many of them would be a way to stop the loop.
DEEP_PARTS_MAX: Final = 8


class Glob:
    """A pattern of paths.

    >>> glob = Glob("events/*")
    >>> glob.matches("events/a"), glob.matches("events"), glob.matches("events/a/b")
    (True, False, False)
    >>> Glob("**/log").matches("log"), Glob("**/log").matches("a/b/log")
    (True, True)
    """

    __slots__ = ("_parts", "prefix", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        # A wildcard as itself, any other segment decoded, in a list of its own: a literal star
        # is no wildcard.
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
        self._parts = tuple(parts)
        self.prefix = self._prefix()

    def _prefix(self) -> str:
        """The longest text that every match is known to begin with."""
        fixed: list[str] = []
        for part in self._parts:
            if isinstance(part, str):
                break
            fixed += part
        rest = self._parts[len(fixed) :]
        text = "/".join(fixed)
        # `a/**` matches `a` itself; whatever else follows comes behind a slash.
        return text + "/" if fixed and rest and any(part != ANY for part in rest) else text

    def matches(self, path: str) -> bool:
        """Return whether a decoded path is one of those that are meant."""
        if not path.startswith(self.prefix):
            return False
        segments = path.split("/")
        # Which numbers of parts can have matched the segments so far.
        reached = self._beyond({0})
        for segment in segments:
            step: set[int] = set()
            for index in reached:
                if index == len(self._parts):
                    continue
                part = self._parts[index]
                if part == ANY:
                    step.add(index)
                elif part == ONE or part == [segment]:
                    step.add(index + 1)
            reached = self._beyond(step)
            if not reached:
                return False
        return len(self._parts) in reached

    def _beyond(self, reached: set[int]) -> set[int]:
        """Add the places that are reached without a segment, because `**` may be none."""
        for index in sorted(reached):
            while index < len(self._parts) and self._parts[index] == ANY:
                index += 1
                reached.add(index)
        return reached
