"""Requests that a server makes itself: what a dialect asks for, and what it hears of it.

Nothing here opens a connection; `server/outbound_posts.py` does.  Where a request may go is said by
`outbound_urls.py`, and is checked again for the very address that is connected to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from headrace.wire.exchange import Headers


class OutboundPost(NamedTuple):
    """A POST to make."""

    url: str
    body: bytes
    headers: Headers


class PostResult(NamedTuple):
    """What came of a POST: an answer, or why there is none."""

    status: int = 0  # 0: no answer
    body: bytes = b""  # as much of it as is read
    whole: bool = True  # whether that is all of it
    failure: str = ""

    @property
    def taken(self) -> bool:
        """Whether the receiver took it.

        >>> PostResult(204).taken, PostResult(302).taken, PostResult(failure="refused").taken
        (True, False, False)
        """
        return 200 <= self.status < 300


class OutboundPosts(Protocol):
    """Makes POSTs.  `done` is called once, on the loop thread, never within `post`."""

    def post(self, asked: OutboundPost, done: Callable[[PostResult], None]) -> None: ...
    def drain(self) -> None: ...  # give up what is under way, and take nothing more
