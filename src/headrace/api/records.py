"""Records: what appends, diffs and deletes send and get back.

>>> msgspec.json.encode(Draft({"id": 1}, tag="order-1"))
b'{"data":{"id":1},"tag":"order-1"}'
>>> record = msgspec.json.decode(b'{"$seq":1,"$ts":5,"data": {"id":  1}}', type=Record)
>>> record.seq, record.data, bytes(record.raw), record.tag
(1, {'id': 1}, b'{"id":  1}', None)
>>> record
Record(seq=1, ts=5, data={'id': 1})
"""

from __future__ import annotations

import binascii
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec
from msgspec import Meta, Raw, field

from headrace.api.base import (
    LEFT_OUT,
    NULL,
    Answer,
    Body,
    Json,
    Match,
    Nodes,
    Performance,
    Unsigned,
    Unsigned32,
    documented,
)

Reason = Literal["cap", "ttl", "mixed", "recreated", "source_trim", "crash"]


class Producer(NamedTuple):
    """A writer that numbers its appends 0, 1, 2, … within an epoch; a repeat is stored once.

    >>> Producer("job-7", epoch=0, sequence=3).headers()
    {'producer-id': 'job-7', 'producer-epoch': '0', 'producer-seq': '3'}
    """

    id: str
    epoch: int
    sequence: int

    def headers(self) -> dict[str, str]:
        """Return the headers of the append that has this number."""
        return {
            "producer-id": self.id,
            "producer-epoch": str(self.epoch),
            "producer-seq": str(self.sequence),
        }


class Draft(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One record to append."""

    schema_name: ClassVar[str] = "RecordIn"

    data: Annotated[Json, Meta(description="Any JSON; it comes back byte for byte.")]
    tag: Annotated[str | None, Meta(description="A key to delete by, up to 256 bytes.")] = None
    node: Annotated[str | None, Meta(description="Who wrote it; readers may leave it out.")] = None
    meta: Annotated[
        Json, Meta(description="A small JSON value, mostly an object, beside the data.")
    ] = None


class AppendBody(Body, frozen=True, gc=False):
    """Records to append, all or none."""

    records: list[Draft]
    node: str | None = None
    idempotency_key: str | None = None
    expected_head_seq: Unsigned | None = None
    create: bool | None = None
    config: Json = None
    disable_backpressure: bool | None = None


_FORGOTTEN = Meta(description="Absent of a producer's repeat whose seqs are forgotten.")
_REPEAT = Meta(description="Of a producer's repeat: the highest number that is stored of it.")


class Appended(Answer, frozen=True):
    """What an append was given.

    A repeat that a producer sends so late that its seqs are forgotten has none of them, and no
    count: `first_seq`, `last_seq` and `count` are None, and `head_seq` is the head as it is now.
    """

    schema_name: ClassVar[str] = "AppendAnswer"

    topic: str
    head_seq: int
    first_seq: Annotated[int | None, LEFT_OUT, _FORGOTTEN] = None
    last_seq: Annotated[int | None, LEFT_OUT, _FORGOTTEN] = None
    count: Annotated[int | None, LEFT_OUT, _FORGOTTEN] = None
    created: bool = False  # of a repeat: False, even if the first attempt created the topic
    deduped: bool = False
    producer_seq: Annotated[int | None, LEFT_OUT, _REPEAT] = None
    seqs: Annotated[list[int] | None, LEFT_OUT] = None
    performance: Annotated[dict[str, float], documented(Performance)] = field(default_factory=dict)
    epoch: Annotated[int | None, documented(int)] = None


class DiffBody(Body, frozen=True, gc=False):
    """Where to read and how much.  At most one of from_seq, from_ts and last."""

    from_seq: Unsigned | None = None
    from_ts: Unsigned | None = None
    last: Unsigned | None = None
    limit: Unsigned32 | None = None
    node: Nodes | None = None
    include_tags: bool | None = None
    include_meta: bool | None = None
    wait_ms: Unsigned32 | None = None
    max_batch_bytes: Unsigned | None = None
    epoch: Unsigned | None = None
    include_headers: bool | None = None


class Record(msgspec.Struct, frozen=True):
    """One record, as a reader sees it.

    A payload that was appended as bytes (an Arrow column `binary`) is a base64 string, and `meta`
    says so with `"$encoding":"base64"`.
    """

    schema_name: ClassVar[str] = "RecordOut"

    seq: Annotated[int, Meta(ge=1)] = field(name="$seq")
    ts: int = field(name="$ts")
    raw: Annotated[Raw, Meta(description="As it was appended; bytes as base64, see `meta`.")] = (
        field(name="data", default=NULL)
    )
    tag: Annotated[str | None, LEFT_OUT] = field(name="$tag", default=None)
    node: Annotated[str | None, LEFT_OUT] = field(name="$node", default=None)
    raw_meta: Annotated[
        Raw,
        LEFT_OUT,
        Meta(
            description='As it was appended. `"$encoding":"base64"` is added where `data` is bytes '
            "in base64; a meta that is no object is `$meta` beside it then. The headers of such a "
            "record are `$headers`, and a command of its stream has `$kind`."
        ),
    ] = field(name="meta", default=NULL)

    @property
    def data(self) -> Any:
        """The payload as Python values, parsed at each access; bytes where bytes were appended.

        Bytes come as base64, and only the meta says so: without `include_meta` they stay text.
        """
        value = msgspec.json.decode(self.raw)
        if isinstance(value, str) and self._is_base64:
            try:
                return binascii.a2b_base64(value, strict_mode=True)
            except binascii.Error:
                return value  # a writer's own `$encoding`
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
    """Records that are gone without anybody having asked for it."""

    schema_name: ClassVar[str] = "TombstoneOut"

    gap_from: int
    gap_to: int
    reason: Annotated[str, documented(Reason)]
    earliest_seq: int = 0
    head_seq: int = 0
    missed_estimate: int = 0


class Page(Answer, frozen=True):
    """A page of records."""

    schema_name: ClassVar[str] = "DiffAnswer"

    topic: str
    records: list[Record]
    next_from_seq: int  # the cursor for the next page
    head_seq: int
    earliest_seq: int
    caught_up: bool
    lag: int
    tombstone: Tombstone | None = None
    epoch: Annotated[int | None, documented(int)] = None
    performance: Annotated[dict[str, float], documented(Performance)] = field(default_factory=dict)


class DeleteBody(Body, frozen=True):
    """What to delete: below a seq, by tag, or both at once."""

    before_seq: Unsigned | None = None
    match: Match | None = None


class DeleteResult(Answer, frozen=True):
    """How many records went, and what is left."""

    schema_name: ClassVar[str] = "DeleteAnswer"

    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int
