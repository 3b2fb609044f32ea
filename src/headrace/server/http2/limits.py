"""The bounds of an HTTP/2 connection, and the counters that notice a flood.

Only this file says how much of anything one connection may cost; what an operator may change is a
setting.  It looks at the heads of frames and at nothing else: `h2` knows what they mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError

from headrace.core.limits import KIB, MIB

# Flow control: what a client may send before it has to hear from us.
STREAM_WINDOW_BYTES: Final = MIB
CONNECTION_WINDOW_BYTES: Final = 4 * MIB
# The largest frame taken.  A frame is kept until it is whole, so this is memory per connection.
FRAME_BYTES_MAX: Final = 64 * KIB

# Bytes of answers put together before they are handed to the socket.
BATCH_BYTES_MAX: Final = 256 * KIB
# Bytes that the streams of one connection may have pending before all of them wait.
CONNECTION_PENDING_BYTES_MAX: Final = 4 * MIB
# The share of the response memory that one connection may hold and still begin new answers.
RESPONSE_SHARE: Final = 8
# Who has left no more than this untaken begins new answers however much others leave.
TAKEN_BYTES_MIN: Final = 64 * KIB

# CONTINUATION frames of one header block.
CONTINUATIONS_MAX: Final = 16
# A header list up to this multiple of `header_bytes_max` is read to its end, so that 431 can be
# answered; beyond, the connection is closed, since the compression state is lost.
OVERSIZE_FACTOR: Final = 2
# What answering an oversized head costs of the allowance for faults.
OVERSIZE_COST: Final = 32

# Of so many streams of a connection, heads up to this do not count as memory of requests.
FREE_STREAMS: Final = 64
FREE_HEAD_BYTES: Final = 4 * KIB
# What a stream takes beside its head, as long as it is open.
STREAM_BYTES: Final = 2 * KIB

# Closed streams whose end is remembered, to tell late frames from wrong ones.
CLOSED_STREAMS_KEPT: Final = 1_024
# Request heads remembered by their compressed form, and the largest of them.
CACHED_HEADS_MAX: Final = 128
CACHED_HEAD_BYTES_MAX: Final = 2 * KIB
# Names of response headers whose encoding is remembered, and whole response heads.
CACHED_NAMES_MAX: Final = 256
CACHED_BLOCKS_MAX: Final = 256

# How long a tunnel that this side has ended waits for the other side's end.
TUNNEL_LINGER_MS: Final = 5_000

# Floods: how many at once, and how many a second after that.  Resets start at twice the number of
# streams, because a client may well give up all it has at once.
RESETS_BURST_MIN: Final = 200
RESETS_PER_SECOND: Final = 100
PINGS: Final = (100, 10)
SETTINGS_FRAMES: Final = (50, 5)
EMPTY_DATA: Final = (200, 20)
# PRIORITY and frames of types that we do not know.
IDLE_FRAMES: Final = (1_000, 100)


class Allowance:
    """How many of something may still come: a burst, refilled at a rate.

    >>> pings = Allowance(2, 1, now_ms=0)
    >>> pings.spend(0), pings.spend(0), pings.spend(0), pings.spend(1_000)
    (True, True, False, True)
    """

    __slots__ = ("_burst", "_left", "_per_second", "_seen_ms")

    def __init__(self, burst: int, per_second: int, now_ms: int) -> None:
        self._burst = burst
        self._per_second = per_second
        self._left = float(burst)
        self._seen_ms = now_ms

    def spend(self, now_ms: int, cost: int = 1) -> bool:
        """Spend `cost`; whether there was that much left."""
        refill = (now_ms - self._seen_ms) * self._per_second / 1_000
        self._left = min(self._left + refill, float(self._burst))
        self._seen_ms = now_ms
        if self._left < cost:
            return False
        self._left -= cost
        return True


# Frame types and flags (RFC 9113 §6).
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = 0, 1, 2, 3, 4
PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 6, 7, 8, 9
ACK = END_STREAM = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY_FLAG = 0x20

_NO_BLOCK: Final = -1


class Flood(ProtocolError):
    """A client that asks for more work than it can have use for."""

    error_code = ErrorCodes.ENHANCE_YOUR_CALM


class FrameCounter:
    """What one connection has sent, held against the bounds; each raises `Flood`."""

    def __init__(self, streams_max: int, header_bytes_max: int, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._settled = False  # the first SETTINGS has come
        # Nothing is counted of whole header blocks and of data: the first SETTINGS has come, and no
        # block is arriving in parts.
        self.at_rest = False
        self._block_bytes = 0  # of the header block that is arriving
        self._block_bytes_max = OVERSIZE_FACTOR * header_bytes_max
        self._continuations = _NO_BLOCK  # of that block
        now = now_ms()
        self._faults = Allowance(max(2 * streams_max, RESETS_BURST_MIN), RESETS_PER_SECOND, now)
        self._pings = Allowance(*PINGS, now)
        self._settings = Allowance(*SETTINGS_FRAMES, now)
        self._empty_data = Allowance(*EMPTY_DATA, now)
        self._idle_frames = Allowance(*IDLE_FRAMES, now)

    @property
    def in_block(self) -> bool:
        """Whether a header block has begun and not ended."""
        return self._continuations != _NO_BLOCK

    def accepts(self, kind: int, flags: int, length: int) -> bool:
        """Count a frame; return whether `h2` is to see it."""
        if self._continuations != _NO_BLOCK:
            self._count_block(kind, flags, length)
        elif kind == HEADERS:
            self._block_bytes = length
            if not flags & END_HEADERS:
                self._continuations = 0
        elif kind == RST_STREAM:
            self.fault("resets")
        elif kind == PING:
            if not flags & ACK:
                self._spend(self._pings, "pings")
        elif kind == SETTINGS:
            self._spend(self._settings, "settings")
            self._settled = True
        elif kind == PRIORITY or kind > CONTINUATION:
            self._spend(self._idle_frames, "frames of no use")
            return kind == PRIORITY
        if not self._settled:
            raise ProtocolError("the first frame is not SETTINGS")
        self.at_rest = self._continuations == _NO_BLOCK
        return True

    def _count_block(self, kind: int, flags: int, length: int) -> None:
        # Anything but CONTINUATION is refused by `h2`.
        self._continuations += 1
        self._block_bytes += length
        if self._continuations > CONTINUATIONS_MAX or self._block_bytes > self._block_bytes_max:
            raise Flood("too many continuations")
        if kind == CONTINUATION and flags & END_HEADERS:
            self._continuations = _NO_BLOCK

    def empty_data(self) -> None:
        """Count a frame of data with nothing in it."""
        self._spend(self._empty_data, "empty frames of data")

    def fault(self, what: str, cost: int = 1) -> None:
        """Count work for nothing: a stream given up, refused, or reset for what it sent."""
        self._spend(self._faults, what, cost)

    def _spend(self, allowance: Allowance, what: str, cost: int = 1) -> None:
        if not allowance.spend(self._now_ms(), cost):
            raise Flood(f"too many {what}")
