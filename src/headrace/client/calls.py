"""Every call of the client as a request: pure functions from arguments to bytes.

Only this file knows paths, query parameters and request headers of the native API, and which calls
may be repeated when nobody knows whether they were done: those that read, appends that carry a key
or a producer's number, acks and extends, and nacks that name leases.  Nothing here waits or speaks
to anybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from headrace.client.job_models import ClaimBody, HeldBody, Job, RedriveBody
from headrace.client.models import (
    CONFIG_FIELDS,
    AppendBody,
    ArrowPage,
    DeleteBody,
    DiffBody,
    Draft,
    Producer,
    RouterBody,
    Tombstone,
)
from headrace.core.clock import Random
from headrace.core.errors import InvalidRequest, Unreachable

if TYPE_CHECKING:
    import pyarrow as pa

ARROW_STREAM: Final = "application/vnd.apache.arrow.stream"
JSON_BODY: Final = {"content-type": "application/json"}

# What every name of the schema metadata of an Arrow answer begins with.
ARROW_METADATA: Final = "headrace."

KEY_BYTES: Final = 16

_BYTES: Final = (bytes, bytearray, memoryview)
_NO_LIST: Final = (str, *_BYTES, Mapping)

Config = Mapping[str, Any]
Match = str | Sequence[str]
Nodes = str | Sequence[str]


class Call(NamedTuple):
    """A request.  `repeatable`: doing it twice is as good as once."""

    method: str
    target: str
    repeatable: bool
    headers: Mapping[str, str] = {}
    body: bytes = b""
    wait_ms: int = 0  # for how long the server may think, by our own wish


def new_key(random: Random) -> str:
    """An idempotency key that nobody else has."""
    return random.bytes(KEY_BYTES).hex()


def _path(topic: str, tail: str = "") -> str:
    return f"/v0/topics/{quote(topic, safe='')}{tail}"


def query_text(**parameters: str | int | None) -> str:
    given = {name: value for name, value in parameters.items() if value is not None}
    return f"?{urlencode(given, quote_via=quote)}" if given else ""


def _encode(body: object) -> bytes:
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"this cannot be sent as JSON: {error}",
            fix="use what JSON has, or append_arrow with a binary column for bytes",
        ) from None


def _drafts(records: object) -> list[Draft]:
    """Each record as a draft; what would be taken apart or changed on the way is refused."""
    if isinstance(records, _NO_LIST) or not isinstance(records, Iterable):
        raise InvalidRequest("records is not a list", fix="send a list of payloads")
    drafts = [record if type(record) is Draft else Draft(record) for record in records]
    for draft in drafts:
        if type(draft.data) in _BYTES:
            raise InvalidRequest(
                "a payload is bytes, which JSON does not have",
                fix="use append_arrow with a binary column `data`",
            )
    return drafts


def _checked(config: Config | None) -> Config | None:
    """A config without fields that nobody knows."""
    if isinstance(config, Mapping):
        for name in config:
            if name not in CONFIG_FIELDS:
                # difflib is imported here because it is needed once in a thousand programs.
                import difflib

                nearest = difflib.get_close_matches(str(name), CONFIG_FIELDS, n=1, cutoff=0.0)[0]
                raise InvalidRequest(
                    f"{name!r} is not a setting of a topic", fix=f"did you mean {nearest}?"
                )
    return config


def append(
    topic: str,
    records: Iterable[object],
    *,
    node: str | None,
    key: str | None,
    producer: Producer | None,
    expected_head_seq: int | None,
    create: bool | None,
    config: Config | None,
    return_seqs: bool,
    disable_backpressure: bool = False,
) -> Call:
    """Each of `records` is a `Draft`, or the payload of one.

    >>> from headrace.core.clock import SeededRandom
    >>> how = dict.fromkeys(["node", "producer", "expected_head_seq", "create", "config"])
    >>> call = append("a b", [{"n": 1}], key="k1", return_seqs=False, **how)
    >>> call.target, call.body
    ('/v0/topics/a%20b?return_seqs=false', b'{"records":[{"data":{"n":1}}],"idempotency_key":"k1"}')
    """
    conditions = (expected_head_seq, create, _checked(config), disable_backpressure)
    body = AppendBody(_drafts(records), node, key, *conditions)
    return Call(
        "POST",
        _path(topic) if return_seqs else _path(topic, "?return_seqs=false"),
        repeatable=key is not None or producer is not None,
        headers=JSON_BODY if producer is None else {**JSON_BODY, **producer.headers()},
        body=_encode(body),
    )


def append_arrow(
    topic: str,
    data: pa.Table | pa.RecordBatch,
    *,
    key: str | None,
    producer: Producer | None,
    expected_head_seq: int | None = None,
    create: bool | None = None,
    disable_backpressure: bool = False,
) -> Call:
    """Columns `data`, and optionally `tag`, `node`, `meta`."""
    import pyarrow as pa

    if not isinstance(data, pa.Table | pa.RecordBatch):
        raise InvalidRequest(
            f"{type(data).__name__} is no Arrow table", fix="send a pyarrow.Table or RecordBatch"
        )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema) as writer:
        writer.write(data)
    headers = {"content-type": ARROW_STREAM}
    if producer is not None:
        headers |= producer.headers()
    elif key is not None:
        headers["idempotency-key"] = key
    repeatable = key is not None or producer is not None
    body = sink.getvalue().to_pybytes()
    query = query_text(
        return_seqs="false",
        expected_head_seq=expected_head_seq,
        create=None if create is None else str(create).lower(),
        disable_backpressure="true" if disable_backpressure else None,
    )
    return Call("POST", _path(topic, query), repeatable, headers, body)


def diff(
    topic: str,
    from_seq: int | None,
    *,
    from_ts: int | None,
    last: int | None,
    limit: int | None,
    node: Nodes | None,
    wait_ms: int,
    include_tags: bool,
    include_meta: bool,
    max_batch_bytes: int | None,
    epoch: int | None,
    arrow: bool = False,
) -> Call:
    """A read; with `arrow` its answer is a stream of columns."""
    nodes = node if node is None or isinstance(node, str) else list(node)
    body = DiffBody(
        from_seq,
        from_ts,
        last,
        limit,
        nodes,
        include_tags,
        include_meta,
        wait_ms,
        max_batch_bytes,
        epoch,
    )
    headers = {**JSON_BODY, "accept": ARROW_STREAM} if arrow else JSON_BODY
    return Call("POST", _path(topic, "/diff"), True, headers, _encode(body), wait_ms)


def delete_records(topic: str, before_seq: int | None, match: Match | None) -> Call:
    pattern = match if match is None or isinstance(match, str) else list(match)
    body = _encode(DeleteBody(before_seq, pattern))
    return Call("POST", _path(topic, "/delete"), False, JSON_BODY, body)


def put_topic(topic: str, config: Config | None) -> Call:
    return Call("PUT", _path(topic), False, JSON_BODY, _encode(_checked(config) or {}))


def topic(topic: str, touch: bool) -> Call:
    return Call("GET", _path(topic, "" if touch else "?touch=false"), True)


def archived(topic: str, epoch: int, to_seq: int) -> Call:
    body = _encode({"epoch": epoch, "to_seq": to_seq})
    return Call("POST", _path(topic, "/archived"), True, JSON_BODY, body)


def topics(prefix: str, page_size: int | None, cursor: str | None) -> Call:
    query = query_text(prefix=prefix or None, page_size=page_size, cursor=cursor)
    return Call("GET", f"/v0/topics{query}", True)


def delete_topic(topic: str, if_empty: bool) -> Call:
    return Call("DELETE", _path(topic, "?if_empty=true" if if_empty else ""), False)


def _router_path(router: str) -> str:
    return f"/v0/routers/{quote(router, safe='')}"


def put_router(router: str, body: RouterBody) -> Call:
    """
    >>> call = put_router("a->b", RouterBody("a", "b", backfill=True))
    >>> call.target, call.body
    ('/v0/routers/a-%3Eb', b'{"source":"a","dest":"b","backfill":true}')
    """
    return Call("PUT", _router_path(router), False, JSON_BODY, _encode(body))


def router(router: str) -> Call:
    return Call("GET", _router_path(router), True)


def routers(
    prefix: str, source: str | None, dest: str | None, page_size: int | None, cursor: str | None
) -> Call:
    query = query_text(
        prefix=prefix or None, source=source, dest=dest, page_size=page_size, cursor=cursor
    )
    return Call("GET", f"/v0/routers{query}", True)


def delete_router(router: str) -> Call:
    return Call("DELETE", _router_path(router), False)


def claim(topic: str, node: str, count: int, lease_ms: int | None) -> Call:
    body = _encode(ClaimBody(node, count, lease_ms))
    return Call("POST", _path(topic, "/claim"), False, JSON_BODY, body)


def _held(node: str, jobs: Iterable[Job | int], **more: int) -> bytes:
    """Jobs by their seqs, and by their leases where these are known."""
    given = list(jobs)
    seqs = [job.seq if isinstance(job, Job) else job for job in given]
    ids = [job.lease_id if isinstance(job, Job) else "" for job in given]
    return _encode(HeldBody(node, seqs, ids if any(ids) else None, **more))


def ack(topic: str, node: str, jobs: Iterable[Job | int]) -> Call:
    """
    >>> ack("jobs", "w1", [1, 2]).body
    b'{"node":"w1","seqs":[1,2]}'
    """
    return Call("POST", _path(topic, "/ack"), True, JSON_BODY, _held(node, jobs))


def nack(topic: str, node: str, jobs: Iterable[Job | int], delay_ms: int) -> Call:
    """
    A job that is named by its seq alone may be held anew by the time of a repeat.

    >>> nack("jobs", "w1", [1], 0).repeatable, nack("jobs", "w1", [], 0).repeatable
    (False, True)
    """
    given = list(jobs)
    repeatable = all(isinstance(job, Job) for job in given)
    body = _held(node, given, delay_ms=delay_ms)
    return Call("POST", _path(topic, "/nack"), repeatable, JSON_BODY, body)


def extend(topic: str, node: str, jobs: Iterable[Job | int], lease_ms: int) -> Call:
    body = _held(node, jobs, lease_ms=lease_ms)
    return Call("POST", _path(topic, "/extend"), True, JSON_BODY, body)


def redrive(
    topic: str,
    match: Match | None,
    meta: Mapping[str, Any] | None,
    to: str | None,
    from_seq: int,
    limit: int | None,
) -> Call:
    pattern = match if match is None or isinstance(match, str) else list(match)
    body = _encode(RedriveBody(pattern, meta, limit, to, from_seq))
    return Call("POST", _path(topic, "/redrive"), False, JSON_BODY, body)


def segments(topic: str) -> Call:
    return Call("GET", _path(topic, "/segments"), True)


def pin(method: str, topic: str, pin: str) -> Call:
    """`POST` renews a pin of a manifest, `DELETE` gives it back."""
    return Call(method, _path(topic, f"/segments/{quote(pin, safe='')}"), method == "POST")


def probe(path: str, accept: str = "application/json") -> Call:
    return Call("GET", path, True, {"accept": accept})


def arrow_page(body: bytes) -> ArrowPage:
    """The answer to an Arrow diff: a table, and what else a page says in its schema metadata."""
    import pyarrow as pa

    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            table = reader.read_all()
    except pa.ArrowInvalid as error:
        raise Unreachable(
            f"the answer is not an Arrow stream: {error}",
            fix="check that the address is of a Headrace server",
            detail={"outcome": "unknown"},
        ) from None
    metadata = table.schema.metadata or {}
    said = {
        name: msgspec.json.decode(metadata[key])
        for name in ArrowPage._fields
        if (key := f"{ARROW_METADATA}{name}".encode()) in metadata
    }
    gap = said.get("tombstone")
    return ArrowPage(
        table=table.replace_schema_metadata(None),
        next_from_seq=said["next_from_seq"],
        head_seq=said["head_seq"],
        earliest_seq=said["earliest_seq"],
        caught_up=said["caught_up"],
        lag=said["lag"],
        tombstone=None if gap is None else msgspec.convert(gap, Tombstone),
        epoch=said.get("epoch"),
    )
