"""Records on their way in and out: what an append may hold, and how a read's records are cut.

Only this file knows how records are metered, which of them are commands, and which timestamp a
record gets.  Records are columns here as they are in the engine: one list of bodies, one of
headers, one of timestamps.  What they look like on the wire is in `protobuf.py`, `json_records.py`
and `sse_records.py`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, chain
from operator import le
from typing import Final, NamedTuple

from headrace.core.limits import MIB, seq_max
from headrace.engine.reading.page import Page
from headrace.storage.block import KIND_BYTES, KIND_COMMAND, KIND_MIXED, Batch
from headrace.storage.record_headers import Header
from headrace.wire.s2.errors import S2Refusal, invalid
from headrace.wire.s2.names import FENCING_TOKEN_BYTES_MAX

BATCH_RECORDS_MAX: Final = 1_000
BATCH_BYTES_MAX: Final = 1 * MIB  # metered
# Headers of all records together: each costs the loop some microseconds, however short it is.
BATCH_HEADERS_MAX: Final = 20_000
TIMESTAMP_MAX: Final = (1 << 63) - 1
U64_MAX: Final = (1 << 64) - 1
RECORD_BYTES: Final = 8  # what a record counts beside its body
HEADER_BYTES: Final = 2  # what a header counts beside its name and value
TRIM_BODY_BYTES: Final = 8

ARRIVAL: Final = "arrival"
CLIENT_PREFER: Final = "client-prefer"
CLIENT_REQUIRE: Final = "client-require"

RecordHeaders = Sequence[Header] | None  # None and an empty one are the same: there is no header
HeaderColumn = list[RecordHeaders] | None  # None: no record has any

_FENCE: Final = b"fence"
_TRIM: Final = b"trim"


class Position(NamedTuple):
    """A place in a stream: the next record's seq_num, and the last record's timestamp."""

    seq_num: int
    timestamp: int


class AppendAck(NamedTuple):
    """What an append is told: where its records begin and end, and where the stream ends."""

    start: Position
    end: Position
    tail: Position


def ack_of(first_seq: int, first_ts: int, last_seq: int, last_ts: int, tail: Position) -> AppendAck:
    """The ack of records with these seqs of the topic.

    >>> ack_of(1, 50, 3, 60, Position(9, 90)).end
    Position(seq_num=3, timestamp=60)
    """
    return AppendAck(Position(first_seq - 1, first_ts), Position(last_seq, last_ts), tail)


class Commands(NamedTuple):
    """What the command records of an append ask for."""

    rows: Sequence[int] = ()  # which records are commands
    fence: str | None = None  # the fencing token behind the append; None: as it was
    # Row, and the seq_num below which records may go: as a seq, up to which.  A trim never reaches
    # behind its own record.
    trims: Sequence[tuple[int, int]] = ()


NO_COMMANDS: Final = Commands()


class AppendInput:
    """Records to append, as columns, and the conditions of the append."""

    __slots__ = (
        "bodies",
        "commands",
        "fencing_token",
        "headers",
        "match_seq_num",
        "metered",
        "timestamps",
    )

    def __init__(
        self,
        bodies: list[bytes],
        headers: HeaderColumn = None,
        timestamps: list[int | None] | None = None,
        match_seq_num: int | None = None,
        fencing_token: str | None = None,
    ) -> None:
        self.bodies = bodies
        self.headers = headers
        self.timestamps = timestamps  # None: no record has any
        self.match_seq_num = match_seq_num
        self.fencing_token = fencing_token
        self.metered = metered_of(bodies, headers)
        self.commands = NO_COMMANDS  # once `validate` has found them

    @property
    def expected_head_seq(self) -> int | None:
        """`match_seq_num` as the head of the topic that has it as its next seq_num."""
        match = self.match_seq_num
        return None if match is None else min(match, seq_max)


def metered_of(bodies: Sequence[bytes], headers: HeaderColumn = None) -> int:
    """The metered bytes of records.

    >>> metered_of([b"hello", b""], [[(b"k", b"v")], None])
    25
    """
    size = RECORD_BYTES * len(bodies) + sum(map(len, bodies))
    if headers is not None:
        pairs = list(chain.from_iterable(filter(None, headers)))
        size += HEADER_BYTES * len(pairs) + sum(map(len, chain.from_iterable(pairs)))
    return size


def metered_sizes(bodies: Sequence[bytes], headers: HeaderColumn = None) -> list[int]:
    """The metered bytes of each record."""
    if headers is None:
        return [RECORD_BYTES + len(body) for body in bodies]
    return [
        RECORD_BYTES + len(body) + sum(HEADER_BYTES + len(n) + len(v) for n, v in pairs or ())
        for body, pairs in zip(bodies, headers, strict=True)
    ]


def too_many_records() -> S2Refusal:
    """The refusal of a batch whose records were not counted to the end."""
    return invalid(f"a batch of more than {BATCH_RECORDS_MAX} records; send at most so many")


def too_many_headers() -> S2Refusal:
    """The refusal of a batch whose headers were not counted to the end."""
    return invalid(f"a batch of more than {BATCH_HEADERS_MAX} headers; send at most so many")


def validate(given: AppendInput) -> None:
    """Refuse records that no stream takes; afterwards `given.commands` tells of the commands."""
    count = len(given.bodies)
    if not 1 <= count <= BATCH_RECORDS_MAX:
        raise invalid(f"a batch of {count} records; send 1 to {BATCH_RECORDS_MAX}")
    if given.metered > BATCH_BYTES_MAX:
        raise invalid(f"a batch of {given.metered} metered bytes; send at most {BATCH_BYTES_MAX}")
    token = given.fencing_token
    if token is not None and len(token.encode()) > FENCING_TOKEN_BYTES_MAX:
        raise invalid(f"fencing token has more than {FENCING_TOKEN_BYTES_MAX} bytes")
    stamps = given.timestamps
    if stamps is not None and max((s for s in stamps if s is not None), default=0) > TIMESTAMP_MAX:
        raise invalid("a timestamp is above 2^63-1")
    if given.headers is not None:
        if sum(map(len, filter(None, given.headers))) > BATCH_HEADERS_MAX:
            raise too_many_headers()
        given.commands = _commands_of(given.bodies, given.headers)


def _commands_of(bodies: Sequence[bytes], headers: Sequence[RecordHeaders]) -> Commands:
    # One look at each record's names; a record whose names are all there is none.
    rows = [row for row, pairs in enumerate(headers) if pairs and not all(n for n, _ in pairs)]
    if not rows:
        return NO_COMMANDS
    fence: str | None = None
    trims: list[tuple[int, int]] = []
    for row in rows:
        pairs, body = headers[row], bodies[row]
        assert pairs is not None
        if len(pairs) > 1:
            raise invalid("a header name is empty; only a command, of one header, has such")
        command = pairs[0][1]
        if command == _FENCE:
            fence = _fence_of(body)
        elif command == _TRIM:
            if len(body) != TRIM_BODY_BYTES:
                raise invalid(f"the body of a trim has {len(body)} bytes, not {TRIM_BODY_BYTES}")
            trims.append((row, int.from_bytes(body, "big")))
        else:
            raise invalid(f"unknown command {command[:40].decode(errors='replace')!r}")
    return Commands(rows, fence, trims)


def _fence_of(body: bytes) -> str:
    if len(body) > FENCING_TOKEN_BYTES_MAX:
        raise invalid(f"fencing token has {len(body)} bytes, more than {FENCING_TOKEN_BYTES_MAX}")
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise invalid("fencing token is not UTF-8") from None


def batch_of(given: AppendInput, mode: str, uncapped: bool, now_ms: int) -> Batch:
    """Validated records as the engine takes them, each with the timestamp that the mode gives it.

    Behind the last timestamp of the stream is what the engine sees to.
    """
    count = len(given.bodies)
    kind, kinds = KIND_BYTES, None
    rows = given.commands.rows
    if len(rows) == count:
        kind = KIND_COMMAND
    elif rows:
        kind = KIND_MIXED
        marks = bytearray([KIND_BYTES]) * count
        for row in rows:
            marks[row] = KIND_COMMAND
        kinds = bytes(marks)
    stamps = None
    if mode != ARRIVAL:
        stamps = _timestamps(given.timestamps, mode == CLIENT_REQUIRE, uncapped, now_ms)
    return Batch(given.bodies, kind, headers=given.headers, kinds=kinds, timestamps=stamps)


def _timestamps(
    given: list[int | None] | None, required: bool, uncapped: bool, now_ms: int
) -> list[int] | None:
    """The timestamps of records, never less than the one before; None: all have the arrival's."""
    if required and (given is None or None in given):
        raise invalid("a record has no timestamp, which this stream requires")
    if given is None:
        return None
    stamps = [now_ms if stamp is None else stamp for stamp in given]
    if not uncapped and max(stamps) > now_ms:
        stamps = [min(stamp, now_ms) for stamp in stamps]
    if not all(map(le, stamps, stamps[1:])):
        stamps = list(accumulate(stamps, max))
    return stamps


class ReadBatch:
    """Records that a reader is given, as columns, and the tail if it is known."""

    __slots__ = ("bodies", "headers", "seq_nums", "tail", "timestamps")

    def __init__(
        self,
        seq_nums: Sequence[int],
        timestamps: Sequence[int],
        bodies: Sequence[bytes],
        headers: HeaderColumn = None,
        tail: Position | None = None,
    ) -> None:
        self.seq_nums = seq_nums
        self.timestamps = timestamps
        self.bodies = bodies
        self.headers = headers
        self.tail = tail

    def __len__(self) -> int:
        return len(self.bodies)

    @property
    def last_seq_num(self) -> int:
        return self.seq_nums[-1]

    @property
    def metered(self) -> int:
        return metered_of(self.bodies, self.headers)

    def prefix(self, count: int) -> ReadBatch:
        """The first records only, without a tail: the batch ends before it."""
        headers = self.headers
        return ReadBatch(
            self.seq_nums[:count],
            self.timestamps[:count],
            self.bodies[:count],
            None if headers is None else headers[:count],
        )


def heartbeat(tail: Position) -> ReadBatch:
    """A batch that tells nothing but the tail."""
    return ReadBatch((), (), (), None, tail)


def read_batch(page: Page, tail: Position | None = None) -> ReadBatch:
    """The records of a page of a stream's topic."""
    pieces = page.rows
    if len(pieces) == 1:
        rows = pieces[0]
        return ReadBatch(
            _seq_nums(rows.seqs), _each(rows.ts, len(rows)), rows.data, rows.headers, tail
        )
    seq_nums: list[int] = []
    stamps: list[int] = []
    bodies: list[bytes] = []
    headers: list[RecordHeaders] | None = None
    for rows in pieces:
        if rows.headers is not None and headers is None:
            headers = [None] * len(bodies)
        if headers is not None:
            headers += rows.headers or [None] * len(rows)
        seq_nums += _seq_nums(rows.seqs)
        stamps += _each(rows.ts, len(rows))
        bodies += rows.data
    return ReadBatch(seq_nums, stamps, bodies, headers, tail)


def _seq_nums(seqs: Sequence[int]) -> Sequence[int]:
    if isinstance(seqs, range):
        return range(seqs.start - 1, seqs.stop - 1)
    return [seq - 1 for seq in seqs]


def _each(value: int | Sequence[int], count: int) -> Sequence[int]:
    return [value] * count if isinstance(value, int) else value


def cut(
    batch: ReadBatch, count: int | None, bytes_max: int | None, until: int | None
) -> tuple[ReadBatch, int]:
    """The records of a batch before a limit, and their metered bytes; it is the same if all are.

    `until` is the first timestamp that is not wanted.

    >>> read = ReadBatch(range(3), [5, 6, 9], [b"ab", b"c", b""])
    >>> [len(cut(read, *limits)[0]) for limits in ((2, None, None), (9, 18, None), (9, 99, 6))]
    [2, 1, 1]
    """
    stop = len(batch) if count is None else min(count, len(batch))
    if until is not None:
        stop = bisect_left(batch.timestamps, until, 0, stop)
    whole = batch
    if stop < len(batch):
        batch = batch.prefix(stop)
    size = batch.metered
    if bytes_max is not None and size > bytes_max:
        ends = list(accumulate(metered_sizes(batch.bodies, batch.headers)))
        stop = bisect_right(ends, bytes_max)
        batch, size = whole.prefix(stop), ends[stop - 1] if stop else 0
    return batch, size
