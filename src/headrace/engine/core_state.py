"""What the parts of the engine share: the topics, the log, the sealed files and the totals.

Only this file finds a topic by name, routes it to a shard and counts what is in memory.  The parts
(append, read, delete, lifecycle, checkpoint, recovery) each hold the one `Core`, and are handed the
few other parts they use.  Everything here belongs to the loop thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Protocol, TypeVar

from xxhash import xxh3_64_intdigest

from headrace.core.clock import EngineClock, Random
from headrace.core.errors import (
    CorruptionError,
    HeadraceError,
    InvalidRequest,
    NotReady,
    ShuttingDown,
    Throttled,
    TopicNotFound,
)
from headrace.core.limits import topic_name_bytes_max
from headrace.core.runtime import Runtime, Thunk, Ticket
from headrace.core.settings import Settings
from headrace.engine.idempotency import KeyIndex
from headrace.engine.names import NameIndex
from headrace.engine.scheduling.throttle import Throttle
from headrace.engine.scheduling.turns import Turns
from headrace.engine.topic import Sealed, Topic
from headrace.engine.totals import Totals
from headrace.storage.block import Block
from headrace.storage.cache import BlockCache
from headrace.storage.catalog import Catalog
from headrace.storage.frame import Control, encode_control
from headrace.storage.fs import Filesystem
from headrace.storage.history import History
from headrace.storage.tier import Tiers
from headrace.storage.wal import WalShard

if TYPE_CHECKING:
    from headrace.engine.routers.state import Router

log = logging.getLogger("headrace.engine")

# A restored data directory counts epochs from another start, so that old cursors are noticed.
EPOCHS_PER_GENERATION = 1 << 32

T = TypeVar("T")


class Forwarding(Protocol):
    """What the other parts need of the routers."""

    def hold(self) -> None: ...  # forward nothing more; what is on its way is staged already
    def release(self) -> None: ...
    def connected(self) -> set[int]: ...  # topics that a router reads from or writes to
    def capture(self) -> dict[str, bytes]: ...  # for a snapshot, empty: gone; while held
    def give_back(self, parts: dict[str, bytes]) -> None: ...
    def detach(self, topic: Topic) -> list[str]: ...  # a topic goes, and its routers with it
    def attach(self, topic: Topic) -> None: ...  # it did not go
    def detached(self, topic: Topic) -> None: ...  # it is gone


class Core:
    """Shared state of one engine."""

    def __init__(
        self, settings: Settings, fs: Filesystem, runtime: Runtime, random: Random, tiers: Tiers
    ) -> None:
        self.settings = settings
        self.fs = fs
        self.runtime = runtime
        self.random = random
        self.clock = EngineClock(runtime.clock)
        self.tiers = tiers
        self.by_name: dict[str, Topic] = {}
        self.names = NameIndex()  # the keys of `by_name`
        self.by_id: dict[int, Topic] = {}
        self.directory = ""  # the name of the data directory, once recovery has read it
        self.next_topic_id = 1
        self.next_file_id = 1
        self.wal_numbers = count(1)  # two threads take from it
        self.generation = 0
        self.shards: list[WalShard] = []
        self.cache = BlockCache(settings.read_cache_bytes)
        self.catalog = Catalog()
        self.keys = KeyIndex(settings.idempotency_entries_max)
        self.totals = Totals()
        self.turns = Turns(runtime)  # live delivery and background work
        self.throttle = Throttle(self, self.turns)
        self.total_bytes = 0  # live bytes of all topics
        self.staged_bytes = 0
        self.unsealed_bytes = 0  # log bytes of blocks that only the log and memory hold
        self.ephemeral_bytes = 0  # bytes of blocks that only memory holds, ever
        self.resident_bytes = 0  # bytes of all blocks in memory
        self.tag_index_bytes = 0
        self.relocated_bytes_total = 0  # of files that moved to the cold tier
        self.cold_reads_total = 0  # records that reads took from there
        self.history: History | None = None  # where what topics let go is kept, too
        self.lake_reads_total = 0  # reads of that, the records they took, and those that failed
        self.lake_records_total = 0
        self.lake_read_errors_total = 0
        self.sealed_topics: dict[int, Topic] = {}  # may have sealed blocks in memory, by time
        self.dirty: dict[int, Topic] = {}  # changed since the last checkpoint
        self.removed: set[int] = set()  # deleted since the last checkpoint
        # Topics whose oldest rows are being looked up, and who waits for that.
        self.fetching: dict[int, list[Thunk]] = {}
        self.overtaken: set[int] = set()  # topics that lost what was to be archived first
        self.overtaken_records_total = 0
        self.ready = False
        self.closing = False
        # Topics by name that routers feed, what brings them up to date, and who does it all.
        self.routed: dict[str, list[Router]] = {}
        self.drain: Callable[[str], Ticket[None] | None] = lambda _name: None
        self.forwarding: Forwarding | None = None
        self.pinned: set[int] = set()  # topics whose dead rows stay in memory, while replaying
        # Heard on the loop thread, once the change is durable and acknowledged.
        self.on_topic_created: list[Callable[[Topic], None]] = []
        self.on_topic_deleted: list[Callable[[Topic], None]] = []

    # Topics

    def find(self, name: str) -> Topic | None:
        """The topic of this name, live or being created."""
        if type(name) is str:
            return self.by_name.get(name)
        if not isinstance(name, str):
            raise InvalidRequest(f"topic name is {name!r}", fix="send a string")
        return self.by_name.get(name)

    def topic(self, name: str) -> Topic:
        """The live topic of this name, or `TopicNotFound`."""
        if not self.ready:
            self.refuse_unready()
        topic = self.find(name)
        if topic is None or not topic.live:
            raise TopicNotFound.named(name)
        return topic

    def sealed(self, topic: Topic, *, wait: bool = True) -> Sealed:
        """Access to the sealed rows of a topic."""
        return Sealed(lambda: self.catalog.runs(topic.id, wait), wait)

    def despite_damage(self, topic: Topic, step: Callable[[Sealed], T]) -> T:
        """Take a step that is decided; it only needs sizes, which damaged files cannot tell."""
        try:
            return step(self.sealed(topic))
        except (CorruptionError, OSError) as error:
            log.error("the bytes of %r are not exact any more: %s", topic.name, error)
            return step(Sealed(list))

    def epoch_of(self, topic_id: int) -> int:
        return self.generation * EPOCHS_PER_GENERATION + topic_id

    def mark(self, topic: Topic) -> None:
        """The next checkpoint has to look at this topic."""
        self.dirty[topic.id] = topic

    def note_overtaken(self, topic: Topic) -> None:
        """The watermark of a topic has moved, or retention has moved past it."""
        if topic.is_overtaken:
            self.overtaken.add(topic.id)
        else:
            self.overtaken.discard(topic.id)

    # The log

    def shard_of(self, topic_id: int) -> WalShard:
        shards = self.shards
        if len(shards) == 1:
            return shards[0]
        return shards[xxh3_64_intdigest(topic_id.to_bytes(8, "little")) % len(shards)]

    def refuse_unready(self) -> None:
        """Raise while there is no log to write to."""
        if not self.ready:
            raise NotReady("recovery is running", fix="retry", detail={"reason": "recovering"})

    def refuse_writes(self, shard: WalShard) -> None:
        """Raise if nothing can be written to this shard now."""
        pending = shard.pending_bytes
        if not (
            self.closing
            or shard.troubled
            or pending >= shard.pending_bytes_max
            or self.unsealed_bytes + pending >= self.settings.memory_budget_bytes
        ):
            return
        if self.closing:
            raise ShuttingDown("the engine is closing", fix="retry after the restart")
        refusal = shard.refusal()
        if refusal is not None:
            raise refusal
        if shard.pending_bytes >= shard.pending_bytes_max:
            shard.submit_full_total += 1
            raise Throttled(
                f"{shard.pending_bytes} bytes wait for the log",
                fix="retry after a moment, or raise HEADRACE_WAL_PENDING_BYTES_MAX",
                detail={"limit": "wal_pending_bytes_max", "max": shard.pending_bytes_max},
            )
        if self.unsealed_bytes + shard.pending_bytes >= self.settings.memory_budget_bytes:
            shard.submit_full_total += 1
            raise Throttled(
                f"{self.unsealed_bytes} bytes wait to be sealed",
                fix="retry after a moment, or raise HEADRACE_MEMORY_BUDGET_BYTES",
                detail={
                    "limit": "memory_budget_bytes",
                    "max": self.settings.memory_budget_bytes,
                },
            )

    def refuse_ephemeral(self, size: int) -> None:
        """Raise if memory has no room for more records that only it holds."""
        budget = self.settings.memory_budget_bytes // 2
        if self.ephemeral_bytes + size > budget:
            raise Throttled(
                f"{self.ephemeral_bytes} bytes of ephemeral records are in memory",
                fix="cap or expire them, or raise HEADRACE_MEMORY_BUDGET_BYTES",
                detail={"limit": "memory_budget_bytes", "max": self.settings.memory_budget_bytes},
            )

    def log(
        self,
        topic: Topic,
        kind: int,
        control: Control,
        *,
        needs_sync: bool,
        done: Callable[[HeadraceError | None], None] = lambda _error: None,
    ) -> None:
        """Stage a control entry of a topic; `done` hears when its class is met."""
        commit = ControlCommit(encode_control(kind, topic.id, control), needs_sync, done)
        self.shard_of(topic.id).stage(commit)

    # Memory

    def keep(self, topic: Topic, block: Block, logged: bool = True) -> None:
        """A block has become part of a topic, at its head; `logged`: a checkpoint can seal it."""
        topic.blocks.append(block)
        self.dirty[topic.id] = topic
        size = len(block.raw)
        self.resident_bytes += size
        if not logged:
            topic.unlogged_to = topic.head
            self.ephemeral_bytes += size
            topic.ephemeral_bytes += size
            return
        if topic.ephemeral_bytes:
            self.count_as_logged(topic, topic.head)
        topic.logged_to = topic.head
        self.unsealed_bytes += size
        topic.unsealed_bytes += size

    def count_as_logged(self, topic: Topic, logged_to: int) -> None:
        """What is below a stored record is sealed with it, whatever its class was."""
        topic.logged_to = max(topic.logged_to, logged_to)
        if topic.ephemeral_bytes:
            self.ephemeral_bytes -= topic.ephemeral_bytes
            self.unsealed_bytes += topic.ephemeral_bytes
            topic.unsealed_bytes += topic.ephemeral_bytes
            topic.ephemeral_bytes = 0

    def trim(self, topic: Topic) -> None:
        """Drop from memory the blocks of a topic that are dead."""
        if topic.id in self.pinned:
            return
        first = topic.blocks.first
        while first is not None and first.last_seq <= topic.base:
            self._drop_first(topic)
            first = topic.blocks.first

    def note_sealed(self, topic: Topic) -> None:
        """The blocks of a topic may leave memory, after those of topics noted earlier."""
        self.sealed_topics.pop(topic.id, None)
        self.sealed_topics[topic.id] = topic

    def forget_blocks(self, topic: Topic) -> None:
        """Drop every block of a topic from memory, and what was made of them."""
        self.sealed_topics.pop(topic.id, None)
        if topic.tags is not None:
            self.tag_index_bytes -= topic.tags.bytes
            topic.tags = None
        while topic.blocks.first is not None:
            self._drop_first(topic)

    def _drop_first(self, topic: Topic) -> None:
        block = topic.blocks.pop_first()
        self.resident_bytes -= len(block.raw)
        if block.last_seq > topic.logged_to:
            self.ephemeral_bytes -= len(block.raw)
            topic.ephemeral_bytes -= len(block.raw)
        elif block.last_seq > topic.sealed_to:
            self.unsealed_bytes -= len(block.raw)
            if block.last_seq <= topic.sealing_to:
                topic.sealing_bytes -= len(block.raw)
            else:
                topic.unsealed_bytes -= len(block.raw)

    def fit_memory(self) -> None:
        """Drop sealed blocks, of what was sealed longest ago first, until half the budget is free.

        The other half is for what only the log and memory hold.
        """
        goal = self.settings.memory_budget_bytes // 2
        for topic in list(self.sealed_topics.values()):
            while self.resident_bytes > goal:
                first = topic.blocks.first
                if first is None or first.last_seq > topic.sealed_to:
                    del self.sealed_topics[topic.id]
                    break
                self._drop_first(topic)
            else:
                return

    def free(self, topic: Topic, freed: int) -> None:
        """Account for records of a topic that went."""
        self.total_bytes -= freed
        assert self.total_bytes >= 0, self.total_bytes
        self.totals.recount(topic)
        self.trim(topic)
        self.mark(topic)

    def is_ephemeral(self, topic: Topic) -> bool:
        return topic.ephemeral

    def is_logged(self, topic: Topic) -> bool:
        """Whether anything of the topic is stored, so that what removes records must be, too."""
        return topic.logged_to > 0 or not topic.ephemeral


class ControlCommit:
    """A control entry on its way to the log."""

    __slots__ = ("_done", "needs_sync", "raw")

    def __init__(
        self, raw: bytes, needs_sync: bool, done: Callable[[HeadraceError | None], None]
    ) -> None:
        self.raw = raw
        self.needs_sync = needs_sync
        self._done = done

    def settle(self, error: HeadraceError | None) -> None:
        self._done(error)


def failed(runtime: Runtime, error: BaseException) -> Ticket[T]:
    """A ticket that has failed already."""
    ticket: Ticket[T] = Ticket(runtime)
    ticket.fail(error)
    return ticket


def check_name(name: str) -> None:
    """Engine names: 1 to 600 bytes of UTF-8, no control characters; dialects are stricter."""
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
    if any(ord(character) < 0x20 or ord(character) == 0x7F for character in name):
        raise InvalidRequest("topic name has a control character", fix="leave it out")
