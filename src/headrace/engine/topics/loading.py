"""Topics that are not back yet: those of class `memory` come back after the start (F0b).

Only this file refuses what needs one of them: by name, with how far it is, never with an answer
that looks like an empty topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.core.errors import NotReady

RETRY_SECONDS = 1


class LoadingTopics:
    """The names of the topics of one engine that are not back yet.

    >>> loading = LoadingTopics()
    >>> loading.begin(["cache"], lambda: 0.25)
    >>> loading.refuse("orders")
    >>> loading.refuse("cache")
    Traceback (most recent call last):
    headrace.core.errors.NotReady: topic 'cache' is coming back from the log; retry: \
detail.replay_progress goes from 0 to 1, and other topics are served
    """

    __slots__ = ("_failure", "_listeners", "_names", "_part")

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._part: Callable[[], float] = lambda: 1.0
        self._failure = ""
        self._listeners: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return bool(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    @property
    def part(self) -> float:
        """How far they are, from 0 to 1."""
        return self._part() if self._names else 1.0

    @property
    def failed(self) -> bool:
        """Whether those that are not back stay away until a restart."""
        return bool(self._failure)

    def begin(self, names: Iterable[str], part: Callable[[], float]) -> None:
        """Refuse these from now on; `part` says how far they are."""
        self._names.update(names)
        self._part = part

    def end(self, name: str) -> None:
        """This one is back."""
        before = len(self._names)
        self._names.discard(name)
        if before and not self._names:
            for listener in self._listeners:
                listener()

    def fail(self, why: str) -> None:
        """Those that are not back stay away until a restart."""
        self._failure = why

    def when_done(self, listener: Callable[[], None]) -> None:
        """Call this once all are back; not if they are already."""
        self._listeners.append(listener)

    def refuse(self, name: str | None) -> None:
        """Raise if this topic, or for None any topic, is not back yet."""
        if self._names and (name is None or name in self._names):
            raise self.refusal(name)

    def refusal(self, name: str | None) -> NotReady:
        """Why a topic, or for None what needs all of them, is not served."""
        who = f"{len(self._names)} topics of class memory are" if name is None else ""
        who = who or f"topic {name!r} is"
        detail: dict[str, object] = {
            "reason": "recovery_failed" if self._failure else "recovering",
            "replay_progress": round(self.part, 3),
            "retry_after_s": RETRY_SECONDS,
        }
        if name is not None:
            detail["topic"] = name
        if self._failure:
            return NotReady(
                f"{who} not back: {self._failure}",
                fix="check the disk, then restart",
                detail=detail,
            )
        return NotReady(
            f"{who} coming back from the log",
            fix="retry: detail.replay_progress goes from 0 to 1, and other topics are served",
            detail=detail,
        )
