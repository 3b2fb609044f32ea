"""What the other parts of the engine need of the routers, which are built on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from headrace.core.steps import Steps

if TYPE_CHECKING:
    from headrace.engine.topics.topic import Topic


class Forwarding(Protocol):
    """What the other parts need of the routers."""

    def hold(self) -> None: ...  # forward nothing more; what is on its way is staged already
    def release(self) -> None: ...
    def connected(self) -> set[int]: ...  # topics that a router reads from or writes to
    def capture(self) -> dict[str, bytes]: ...  # for a snapshot, empty: gone; while held
    def give_back(self, parts: dict[str, bytes]) -> None: ...
    def count_foreign(self, topic: Topic, allowed: Callable[[str], bool]) -> int: ...
    def is_source(self, topic: Topic) -> bool: ...
    def copy_open(self, topic: Topic) -> Steps[None]: ...  # before a topic goes
    def copy_closed(self, topic: Topic) -> Steps[None]: ...  # it takes no records any more
    def detach(self, topic: Topic) -> list[str]: ...  # a topic goes, and its routers with it
    def attach(self, topic: Topic) -> None: ...  # it did not go
    def detached(self, topic: Topic) -> None: ...  # it is gone
