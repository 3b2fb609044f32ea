"""What the client sends and what it gets back, as types.

Only this file, and `job_models.py` for queues, know the JSON keys of the native API on the client's
side.  Payloads are not parsed until somebody looks at them: `Record.raw` is what was appended, byte
for byte.  Fields that a newer server adds are ignored.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec

NULL = msgspec.Raw(b"null")

# Of a topic's config.  The server ignores other fields; here they are refused as slips.
CONFIG_FIELDS: Final = (
    "type",
    "ttl_ms",
    "cap_records",
    "cap_bytes",
    "discard",
    "durable",
    "durability",
    "priority",
    "auto_priority",
    "auto_create",
    "idempotency_window_ms",
    "dedupe_node",
    "lease_ms",
    "claim_jitter_ms",
    "max_deliveries",
    "dead_letter",
    "leases_durable",
    "retain_until_archived",
    "retain_bytes_max",
    "cold_reads",
)


class Producer(NamedTuple):
    """A writer that numbers its appends 0, 1, 2, … within an epoch; a repeat is stored once.

    >>> Producer("job-7", epoch=0, sequence=3).headers()
    {'producer-id': 'job-7', 'producer-epoch': '0', 'producer-seq': '3'}
    """

    id: str
    epoch: int
    sequence: int

    def headers(self) -> dict[str, str]:
        return {
            "producer-id": self.id,
            "producer-epoch": str(self.epoch),
            "producer-seq": str(self.sequence),
        }


class Draft(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record to append.  `data` and `meta` may be `msgspec.Raw`: JSON that is sent as it is.

    >>> msgspec.json.encode(Draft({"id": 1}, tag="order-1"))
    b'{"data":{"id":1},"tag":"order-1"}'
    """

    data: Any
    tag: str | None = None
    node: str | None = None
    meta: Any = None


class Record(msgspec.Struct, frozen=True):
    """A record as a reader sees it: `seq`, `ts`, `data`, and `tag`, `node`, `meta` or None.

    `data` is what JSON has, or bytes where bytes were appended.  `raw` and `raw_meta` are the JSON
    itself, unparsed.

    >>> record = msgspec.json.decode(b'{"$seq":1,"$ts":5,"data": {"id":  1}}', type=Record)
    >>> record.seq, record.data, bytes(record.raw), record.tag
    (1, {'id': 1}, b'{"id":  1}', None)
    >>> record
    Record(seq=1, ts=5, data={'id': 1})
    """

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    raw: msgspec.Raw = msgspec.field(name="data", default=NULL)
    tag: str | None = msgspec.field(name="$tag", default=None)
    node: str | None = msgspec.field(name="$node", default=None)
    raw_meta: msgspec.Raw = msgspec.field(name="meta", default=NULL)

    @property
    def data(self) -> Any:
        """The payload as Python values; parsed anew at each look.

        Bytes come as base64, and only the meta says so: without `include_meta` they stay text.
        """
        value = msgspec.json.decode(self.raw)
        if isinstance(value, str) and self._is_base64:
            try:
                return binascii.a2b_base64(value, strict_mode=True)
            except binascii.Error:
                return value  # somebody's own `$encoding`
        return value

    @property
    def meta(self) -> Any:
        """The meta as Python values; None where there is none."""
        return msgspec.json.decode(self.raw_meta)

    @property
    def _is_base64(self) -> bool:
        meta = self.meta
        return isinstance(meta, dict) and meta.get("$encoding") == "base64"

    def __repr__(self) -> str:
        parts = [f"seq={self.seq}", f"ts={self.ts}", f"data={self.data!r}"]
        for name in ("tag", "node", "meta"):
            value = getattr(self, name)
            if value is not None:
                parts.append(f"{name}={value!r}")
        return f"Record({', '.join(parts)})"


class Tombstone(msgspec.Struct, frozen=True):
    """Records `gap_from` to `gap_to` are gone, and nobody asked for it; `reason` says why."""

    gap_from: int
    gap_to: int
    reason: str
    earliest_seq: int = 0
    head_seq: int = 0
    missed_estimate: int = 0


class Page(msgspec.Struct, frozen=True):
    """What one diff gives.  `next_from_seq` is the cursor for the next one."""

    topic: str
    records: list[Record]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    lag: int
    tombstone: Tombstone | None = None
    epoch: int | None = None
    performance: dict[str, float] = {}


class ArrowPage(NamedTuple):
    """What one Arrow diff gives: `table`, a `pyarrow.Table`, for the records; else as `Page`."""

    table: Any
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    lag: int
    tombstone: Tombstone | None
    epoch: int | None


class Appended(msgspec.Struct, frozen=True):
    """What an append was given.

    After a repeat `deduped` is True and `created` False, whatever the first attempt did.
    """

    topic: str
    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    created: bool = False
    deduped: bool = False
    seqs: list[int] | None = None
    performance: dict[str, float] = {}


class Put(msgspec.Struct, frozen=True):
    """What `put_topic` did.  `config` has every field, with the values that hold now."""

    topic: str
    created: bool
    config: dict[str, Any]


class QueueCounts(msgspec.Struct, frozen=True):
    """The jobs of a queue."""

    ready: int
    in_flight: int
    dead_lettered: int
    unreadable: int = 0  # their records are damaged


class TopicState(msgspec.Struct, frozen=True):
    """One topic, in full; `queue` is None for a log."""

    topic: str
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    bytes: int
    config: dict[str, Any]
    effective_priority: int
    type: Literal["log", "queue"] = "log"
    last_write_ts: int | None = None
    last_read_ts: int | None = None
    epoch: int | None = None
    queue: QueueCounts | None = None
    archived_seq: int = 0  # records up to here are kept elsewhere, too; 0: nobody said so yet
    overtaken_seq: int = 0  # the last that a cap or the TTL took before that; 0: none was


class ArchivedTo(msgspec.Struct, frozen=True):
    """The watermark of a topic that holds now."""

    topic: str
    epoch: int
    archived_seq: int
    head_seq: int


class TopicSummary(msgspec.Struct, frozen=True):
    """One topic of a list."""

    topic: str
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durable: bool
    effective_priority: int
    epoch: int | None = None


class TopicPage(msgspec.Struct, frozen=True):
    """One page of a list of topics; `next_cursor` is None on the last."""

    topics: list[TopicSummary]
    next_cursor: str | None = None


class TopicDeleted(msgspec.Struct, frozen=True):
    """What `delete_topic` did: whether there was one."""

    deleted: bool
    routers_removed: list[str] = []


class RouterPut(msgspec.Struct, frozen=True):
    """What `put_router` did.  `filter` is a list of three, such as `["tag", "Glob", "x*"]`."""

    router: str
    created: bool
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    allow_cycle: bool
    guarantee: str
    filter: list[str] | None = None


class RouterState(msgspec.Struct, frozen=True):
    """One router, in full; `forwarded_total` is how many records it has brought to `dest`.

    `blocked`: `dest` takes nothing for now, and the router tries again.
    """

    router: str
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    allow_cycle: bool
    guarantee: str
    forwarded_total: int
    filter: list[str] | None = None
    blocked: bool = False


class RouterSummary(msgspec.Struct, frozen=True):
    """One router of a list."""

    router: str
    source: str
    dest: str
    guarantee: str
    forwarded_total: int
    blocked: bool = False


class RouterPage(msgspec.Struct, frozen=True):
    """One page of a list of routers; `next_cursor` is None on the last."""

    routers: list[RouterSummary]
    next_cursor: str | None = None


class RouterDeleted(msgspec.Struct, frozen=True):
    """What `delete_router` did: whether there was one."""

    router: str
    deleted: bool


class RecordsDeleted(msgspec.Struct, frozen=True):
    """What a delete of records left."""

    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int


class Floors(msgspec.Struct, frozen=True):
    """The last seq that each reason took from the front; all but `delete` are losses."""

    cap: int
    ttl: int
    crash: int
    source_trim: int
    delete: int


class ManifestFile(msgspec.Struct, frozen=True):
    """One sealed file, and where in it a topic's records are."""

    file_id: int
    location: str  # an absolute path, or the URL of an object
    tier: str
    format: int
    size: int
    footer_offset: int
    hash: str  # of everything from `footer_offset`, in hexadecimal
    owner: int
    topics: int
    rows: int
    first_row: int
    row_count: int
    first_seq: int
    last_seq: int
    min_ts: int
    max_ts: int
    bytes: int


class Erasures(msgspec.Struct, frozen=True):
    """What somebody deleted of a topic with `cold_reads`, also of what it holds no more."""

    since: int  # deletes of seqs from here on are all known
    below: int  # everything up to here was deleted
    seqs: str  # base64 of a 64-bit Roaring bitmap in its portable form
    tags: list[tuple[str, bool, int]]  # tag, whether it is a prefix, up to which seq


class Manifest(msgspec.Struct, frozen=True):
    """Where a topic's sealed records lie, all of one instant; see docs/reference/segments.md."""

    topic: str
    topic_id: int
    epoch: int
    head_seq: int
    earliest_seq: int
    tail_from_seq: int
    floors: Floors
    gaps: list[tuple[int, int]]
    files: list[ManifestFile]
    pin: str
    pin_ms: int
    pin_expires_ms: int
    deletes: list[tuple[int, int]] | None = None
    deletes_bitmap: str | None = None
    directory: str = ""  # the name that the data directory keeps for life
    erased: Erasures | None = None


class Pin(msgspec.Struct, frozen=True):
    """For how long the files of a manifest stay where they are."""

    topic: str
    pin: str
    pin_ms: int
    pin_expires_ms: int


class PinReleased(msgspec.Struct, frozen=True):
    """The files of a manifest are let go."""

    topic: str
    pin: str
    released: bool


class Health(msgspec.Struct, frozen=True):
    """A server that runs."""

    status: str
    version: str
    uptime_ms: int


class Ready(msgspec.Struct, frozen=True):
    """A server that takes calls."""

    status: str
    topics: int


class AppendBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of an append."""

    records: list[Draft]
    node: str | None = None
    idempotency_key: str | None = None
    expected_head_seq: int | None = None
    create: bool | None = None
    config: Mapping[str, Any] | None = None
    disable_backpressure: bool = False


class DiffBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a diff."""

    from_seq: int | None = None
    from_ts: int | None = None
    last: int | None = None
    limit: int | None = None
    node: str | list[str] | None = None
    include_tags: bool = False
    include_meta: bool = True
    wait_ms: int = 0
    max_batch_bytes: int | None = None
    epoch: int | None = None


class RouterBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a router."""

    source: str
    dest: str
    filter: str | list[str] | None = None
    preserve_node: bool = True
    preserve_tag: bool = True
    create_dest: bool = True
    allow_cycle: bool = False
    guarantee: str = "at_least_once"
    backfill: bool | int = False


class DeleteBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a delete of records."""

    before_seq: int | None = None
    match: str | list[str] | None = None
