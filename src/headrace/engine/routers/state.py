"""The state of a router: its options, its cursor, and what is remembered of its copies.

Nothing here waits or writes, and time is an argument.  `find_cycle` finds the cycle of topics that
a new router would close, `HopRuns` says how often a record has been forwarded, and `CopiedKeys`
which records of a source have been copied with a key.

The hops of a record are not stored with it.  A topic that routers read from remembers them, as runs
of seqs, for the records that some router has still to consume; a record that is not in a run was
written directly, and has none.  A router that begins with records older than itself (a backfill)
takes them for records without hops, so that they go at most `router_hops_max` hops more.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import msgspec
from pyroaring import BitMap64

from headrace.core.clock import NS_PER_MS
from headrace.core.errors import InvalidRequest
from headrace.core.limits import seq_max
from headrace.engine.removal.deleting import TagMatch
from headrace.engine.topics.topic import Topic
from headrace.storage.wal.frame import (
    FORWARD_KEY,
    FORWARD_NODE,
    FORWARD_TAG,
    RouterPut,
)

AT_LEAST_ONCE = "at_least_once"
EXACTLY_ONCE = "exactly_once"
GUARANTEES = (AT_LEAST_ONCE, EXACTLY_ONCE)
ROUTER_KEY = "_topics_router"
ORIGINAL_META = "_topics_original_meta"
META_KEYS_MAX = 64
# A router whose destination takes nothing tries again after this long, twice as long each time.
BACK_OFF_MS_MIN = 50
BACK_OFF_MS_MAX = 5_000


class RouterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a router is asked to do."""

    source: str
    dest: str
    preserve_node: bool = True
    preserve_tag: bool = True
    create_dest: bool = True
    filter: TagMatch | None = None
    allow_cycle: bool = False
    guarantee: str = AT_LEAST_ONCE
    backfill: bool | int = False  # True: all that the source holds; a seq: what is after it

    def __post_init__(self) -> None:
        if self.guarantee not in GUARANTEES:
            raise InvalidRequest(
                f"guarantee is {self.guarantee!r}", fix=f"send one of {', '.join(GUARANTEES)}"
            )


class RouterInfo(msgspec.Struct, frozen=True):
    """A router as it is shown."""

    router: str
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    filter: tuple[str, str, str] | None
    allow_cycle: bool
    guarantee: str
    forwarded_total: int
    cursor: int  # the last seq of the source that it has consumed
    blocked: bool  # the destination takes nothing for now
    reason: str = ""  # why it is blocked


class Router:
    """State of one router.  Owned by the loop thread."""

    __slots__ = (
        "allow_cycle",
        "blocked",
        "busy",
        "cursor",
        "dest",
        "durable_to",
        "exactly_once",
        "failures",
        "filter",
        "forwarded_total",
        "id",
        "live",
        "name",
        "preserve_node",
        "preserve_tag",
        "pressed",
        "reason",
        "retry_ns",
        "source",
    )

    def __init__(self, id: int, name: str, source: Topic, dest: Topic) -> None:
        self.id = id
        self.name = name
        self.source = source
        self.dest = dest
        self.preserve_node = self.preserve_tag = True
        self.filter: TagMatch | None = None
        self.allow_cycle = self.exactly_once = False
        self.cursor = 0
        self.forwarded_total = 0
        self.live = False  # its creation is durable, and its delete was not asked for
        self.busy = False  # a pass of it is not settled yet
        self.blocked = False  # it waits before it tries the next record again
        self.pressed = False  # and for nothing but what soon comes by itself, memory mostly
        self.reason = ""  # why
        self.failures = 0  # failed tries in a row
        self.retry_ns = 0
        self.durable_to = 0  # records of the source up to here are on disk, in every shard

    @property
    def names(self) -> tuple[str, str, str]:
        """Return its name and those of its topics: who uses it must be allowed all of them."""
        return self.name, self.source.name, self.dest.name

    @property
    def flags(self) -> int:
        """Return the `FORWARD_*` flags that say how its copies are made."""
        return (
            (FORWARD_NODE if self.preserve_node else 0)
            | (FORWARD_TAG if self.preserve_tag else 0)
            | (FORWARD_KEY if self.exactly_once else 0)
        )

    def set_options(self, state: RouterPut) -> None:
        """Take over the options that a put may change."""
        self.preserve_node = state.preserve_node
        self.preserve_tag = state.preserve_tag
        self.filter = None if state.filter is None else TagMatch(*state.filter)
        self.allow_cycle = state.allow_cycle
        self.exactly_once = state.exactly_once

    def state(self) -> RouterPut:
        """Return the router as the log and the snapshot have it."""
        return RouterPut(
            self.id,
            self.name,
            self.source.id,
            self.dest.id,
            self.preserve_node,
            self.preserve_tag,
            None if self.filter is None else (self.filter.tag, self.filter.prefix),
            self.allow_cycle,
            self.exactly_once,
            self.cursor,
            self.forwarded_total,
        )

    def info(self) -> RouterInfo:
        """Return the router as it is shown."""
        return RouterInfo(
            self.name,
            self.source.name,
            self.dest.name,
            self.preserve_node,
            self.preserve_tag,
            filter_tuple(self.filter),
            self.allow_cycle,
            EXACTLY_ONCE if self.exactly_once else AT_LEAST_ONCE,
            self.forwarded_total,
            self.cursor,
            self.failures > 0,
            self.reason,
        )

    def back_off(self, now_ns: int, reason: str = "", *, pressed: bool = False) -> None:
        """Wait before the next try.  A failed try before its time does not make the wait longer."""
        self.blocked = True
        self.pressed, self.reason = pressed, reason
        if self.retry_ns <= now_ns:
            delay_ms = min(BACK_OFF_MS_MIN << min(self.failures, 16), BACK_OFF_MS_MAX)
            self.failures += 1
            self.retry_ns = now_ns + delay_ms * NS_PER_MS

    def placed(self) -> None:
        """End the waiting: a pass has placed its copies."""
        self.blocked = self.pressed = False
        self.failures = self.retry_ns = 0
        self.reason = ""


def filter_tuple(match: TagMatch | None) -> tuple[str, str, str] | None:
    """Return a filter as it is written.

    >>> filter_tuple(TagMatch("chat:", True))
    ('tag', 'Glob', 'chat:*')
    """
    if match is None:
        return None
    return ("tag", "Glob", match.tag + "*") if match.prefix else ("tag", "Eq", match.tag)


def find_cycle(next_of: Callable[[str], Iterable[str]], source: str, dest: str) -> list[str] | None:
    """Return the cycle that an edge from `source` to `dest` would close, both ends `source`.

    >>> edges = {"a": ["b"], "b": ["c"]}
    >>> find_cycle(lambda name: edges.get(name, ()), "c", "a")
    ['c', 'a', 'b', 'c']
    >>> find_cycle(lambda name: edges.get(name, ()), "c", "d") is None
    True
    """
    came_from: dict[str, str] = {dest: source}
    ahead = deque([dest])
    while ahead:
        name = ahead.popleft()
        if name == source:
            break
        for following in next_of(name):
            if following not in came_from:
                came_from[following] = name
                ahead.append(following)
    else:
        return None
    path = [source]
    while path[-1] != dest:
        path.append(came_from[path[-1]])
    return [source, *reversed(path[1:]), source] if len(path) > 1 else [source, source]


class HopRuns:
    """How often records of one topic have been forwarded, as runs of seqs; 0 outside of runs.

    >>> runs = HopRuns()
    >>> runs.add(5, [2, 1, 1, 3])
    >>> runs.of([4, 5, 6, 7, 8])
    [0, 1, 1, 3, 0]
    >>> runs.drop_to(6); len(runs)
    1
    """

    __slots__ = ("_firsts", "_hops", "_lasts")

    def __init__(self, flat: Sequence[int] = ()) -> None:
        self._firsts: list[int] = list(flat[0::3])
        self._lasts: list[int] = list(flat[1::3])
        self._hops: list[int] = list(flat[2::3])

    def __len__(self) -> int:
        return len(self._firsts)

    def flat(self) -> list[int]:
        """Return first, last and hops of each run in turn."""
        rows = zip(self._firsts, self._lasts, self._hops, strict=True)
        return [number for row in rows for number in row]

    def add(self, first: int, counted: Sequence[int]) -> None:
        """Add runs from `first` on, as pairs of count and hops.  Runs that are known stay."""
        for count, hops in zip(counted[0::2], counted[1::2], strict=True):
            last = first + count - 1
            known = self._lasts[-1] if self._lasts else 0
            if last > known:
                start = max(first, known + 1)
                if start == known + 1 and self._hops and self._hops[-1] == hops:
                    self._lasts[-1] = last
                else:
                    self._firsts.append(start)
                    self._lasts.append(last)
                    self._hops.append(hops)
            first = last + 1

    def of(self, seqs: Sequence[int]) -> list[int]:
        """Return the hops of each of these seqs."""
        found = []
        for seq in seqs:
            at = bisect_right(self._firsts, seq) - 1
            found.append(self._hops[at] if at >= 0 and seq <= self._lasts[at] else 0)
        return found

    def run_from(self, seq: int) -> tuple[int, int]:
        """Return the hops of this seq, and the last seq up to which they are the same.

        >>> HopRuns([5, 6, 2]).run_from(5), HopRuns([5, 6, 2]).run_from(3)
        ((2, 6), (0, 4))
        """
        at = bisect_right(self._firsts, seq) - 1
        if at >= 0 and seq <= self._lasts[at]:
            return self._hops[at], self._lasts[at]
        following = at + 1
        return 0, self._firsts[following] - 1 if following < len(self) else seq_max

    def drop_to(self, seq: int) -> None:
        """Drop runs up to this seq: all routers have consumed them."""
        gone = bisect_right(self._lasts, seq)
        if gone:
            del self._firsts[:gone], self._lasts[:gone], self._hops[:gone]


def counted(values: Sequence[int]) -> list[int]:
    """Return runs of equal values, as pairs of count and value.

    >>> counted([1, 1, 3])
    [2, 1, 1, 3]
    """
    if not values:
        return []
    starts = [0, *(i for i, (a, b) in enumerate(pairwise(values), 1) if a != b), len(values)]
    return [n for a, b in pairwise(starts) for n in (b - a, values[a])]


class CopiedKeys:
    """Which records of a source an exactly-once router copied, and to which seqs.

    Both sets ascend together, so that the n-th of one belongs to the n-th of the other.  A record
    that is copied again, because its first copy is gone, begins another pair of sets.

    >>> keys = CopiedKeys()
    >>> keys.add([3, 5], 10)
    >>> keys.copies_of(5), keys.copies_of(4)
    ([11], [])
    """

    __slots__ = ("_pairs",)

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._pairs = [(BitMap64.deserialize(a), BitMap64.deserialize(b)) for a, b in pairs]

    def encode(self) -> list[tuple[bytes, bytes]]:
        """Return the pairs of sets as a snapshot has them."""
        for pair in self._pairs:
            for seqs in pair:
                seqs.run_optimize()
        return [(a.serialize(), b.serialize()) for a, b in self._pairs]

    def __len__(self) -> int:
        return sum(len(copies) for _, copies in self._pairs)

    def add(self, seqs: Sequence[int], first_copy: int) -> None:
        """Note that these records were copied to consecutive seqs.  Noting it twice is harmless."""
        if not self._pairs or self._pairs[-1][0].max() >= seqs[0]:
            if any(first_copy in copies for _, copies in self._pairs):
                return
            self._pairs.append((BitMap64(), BitMap64()))
        sources, copies = self._pairs[-1]
        sources.update(seqs)
        copies.add_range(first_copy, first_copy + len(seqs))

    def may_have(self, first: int) -> bool:
        """Return whether any record from this seq on was copied before."""
        return any(sources.max() >= first for sources, _ in self._pairs)

    def copies_of(self, seq: int) -> list[int]:
        """Return the seqs of the copies of a record, alive or not."""
        return [copies[sources.rank(seq) - 1] for sources, copies in self._pairs if seq in sources]

    def drop_to(self, base: int) -> bool:
        """Forget copies up to this seq, which are gone; return whether any are left."""
        self._pairs = [pair for pair in self._pairs if pair[1].max() > base]
        for sources, copies in self._pairs:
            gone = copies.rank(base)
            if gone:
                sources.remove_range(0, sources[gone - 1] + 1)
                copies.remove_range(0, base + 1)
        return bool(self._pairs)


def keyed_meta(meta: bytes | None, router: str, source: Topic, seq: int) -> bytes:
    """Return the meta of a copy with a key that no other copy has."""
    key = {
        "idempotency_key": f"router:{router}:{source.id}:{source.epoch}:{seq}",
        "router": router,
        "source_topic": source.name,
        "source_topic_id": source.id,
        "source_epoch": source.epoch,
        "source_seq": seq,
    }
    if meta is None:
        return msgspec.json.encode({ROUTER_KEY: key})
    try:
        fields = msgspec.json.decode(meta, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        fields = None
    if fields is None or len({*fields, ROUTER_KEY}) > META_KEYS_MAX:
        fields = {ORIGINAL_META: msgspec.Raw(_as_json(meta))}
    return msgspec.json.encode({**fields, ROUTER_KEY: key})


def _as_json(meta: bytes) -> bytes:
    """Return meta as JSON, which meta of another dialect need not be."""
    try:
        msgspec.json.decode(meta)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.json.encode(meta)
    return meta
