"""The headers by which a producer numbers its appends: what repeats is read once.

How each header is read is its dialect's; this file knows when it need not be read again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from headrace.core.lru import FifoMap
from headrace.engine.appending.producers import ProducerClaim, new_claim

PRODUCER_HEADERS: Final = (b"producer-id", b"producer-epoch", b"producer-seq")
PRODUCERS_MAX: Final = 4_096  # that are remembered as they were sent
PRODUCER_BYTES_MAX: Final = 256  # of one of them

Sent = Mapping[bytes, bytes]


class ProducerHeaders:
    """What producers have sent of late."""

    __slots__ = ("_known", "_number", "_read")

    def __init__(
        self, read: Callable[[Sent], ProducerClaim | None], number: Callable[[bytes], int]
    ) -> None:
        self._read = read  # all three
        self._number = number  # the last of them
        # A claim that was read, by its name and epoch as they were sent.
        self._known: FifoMap[tuple[bytes, bytes], ProducerClaim] = FifoMap(PRODUCERS_MAX)

    def claim_of(self, headers: Sent) -> ProducerClaim | None:
        """What the producer says of an append; None: no producer sent it."""
        id, epoch, number = map(headers.get, PRODUCER_HEADERS)
        # Of no other type, as one that came more than once is (`Repeated`).
        if number is not None and type(id) is bytes is type(epoch):
            known = self._known.get((id, epoch))
            if known is not None:
                read = self._number
                return new_claim((known[0], known[1], read(number)))
        claim = self._read(headers)
        if claim is not None:
            assert id is not None and epoch is not None
            if len(id) + len(epoch) <= PRODUCER_BYTES_MAX:
                self._known.put((id, epoch), claim)
        return claim
