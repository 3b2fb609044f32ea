"""Every call of the client as a request: pure functions from arguments to bytes.

Only this file and `pipeline_calls.py` know paths, query parameters and request headers of the
native API, and which calls may be repeated when their outcome is unknown: those that read, appends
that carry a key or a producer's number, acks and extends, and nacks that name leases.  Nothing here
waits or uses the network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict
from urllib.parse import quote, urlencode

import msgspec

from headrace.api.queues import AckBody, ClaimBody, ExtendBody, Job, NackBody, RedriveBody
from headrace.api.records import AppendBody, DeleteBody, DiffBody, Draft, Producer
from headrace.api.routers import AT_LEAST_ONCE, Guarantee, RouterBody
from headrace.api.topics import CONFIG_FIELDS, ArchivedBody
from headrace.core.clock import Random
from headrace.core.errors import InvalidRequest

if TYPE_CHECKING:
    import pyarrow as pa

ARROW_STREAM: Final = "application/vnd.apache.arrow.stream"
JSON_BODY: Final = {"content-type": "application/json"}

KEY_BYTES: Final = 16

_BYTES: Final = (bytes, bytearray, memoryview)
_NO_LIST: Final = (str, *_BYTES, Mapping)

Config = Mapping[str, Any]
Match = str | Sequence[str]
Nodes = str | Sequence[str]


class DiffOptions(TypedDict, total=False):
    """What a read may ask for; what is left out is as in `Client.diff`."""

    from_ts: int | None
    last: int | None
    limit: int | None
    node: Nodes | None
    wait_ms: int
    include_tags: bool
    include_meta: bool
    max_batch_bytes: int | None
    epoch: int | None


class ArrowOptions(DiffOptions, total=False):
    """What a read of columns may ask for beside that."""

    include_headers: bool


class Call(NamedTuple):
    """A request.  `repeatable`: doing it twice is as good as once."""

    method: str
    target: str
    repeatable: bool
    headers: Mapping[str, str] = {}
    body: bytes = b""
    wait_ms: int = 0  # for how long the server may think, by our own wish


def new_key(random: Random) -> str:
    """Return a new idempotency key, too random to be used twice."""
    return random.bytes(KEY_BYTES).hex()


def _path(topic: str, tail: str = "") -> str:
    return f"/v0/topics/{quote(topic, safe='')}{tail}"


def query_text(**parameters: str | int | None) -> str:
    given = {name: value for name, value in parameters.items() if value is not None}
    return f"?{urlencode(given, quote_via=quote)}" if given else ""


def _plain(texts: str | Sequence[str] | None) -> str | list[str] | None:
    """Return one text as it is, and any sequence of texts as a list."""
    return texts if texts is None or isinstance(texts, str) else list(texts)


def _encode(body: object) -> bytes:
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"this cannot be sent as JSON: {error}",
            fix="use what JSON has, or append_arrow with a binary column for bytes",
        ) from None


def _drafts(records: object) -> list[Draft]:
    """Return each record as a draft; refuse what would be taken apart or changed on the way."""
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
    """Return a config; refuse one with a field that no topic has."""
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
    conditions = (expected_head_seq, create, _checked(config), disable_backpressure or None)
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
    node: Nodes | None = None,
    wait_ms: int = 0,
    include_tags: bool = True,
    include_meta: bool = True,
    include_headers: bool = False,
    arrow: bool = False,
    **numbers: int | None,
) -> Call:
    """A read; with `arrow` its answer is a stream of columns.

    >>> diff("a", 7, limit=10, include_tags=False).body
    b'{"from_seq":7,"limit":10}'
    >>> diff("a", None, limits=10)
    Traceback (most recent call last):
    TypeError: Unexpected keyword argument 'limits'
    """
    # What is None is left out: the server's default for it is what was asked for.
    body = DiffBody(
        from_seq,
        node=_plain(node),
        include_tags=include_tags or None,
        include_meta=None if include_meta else False,
        include_headers=include_headers or None,
        wait_ms=wait_ms or None,
        **numbers,
    )
    headers = {**JSON_BODY, "accept": ARROW_STREAM} if arrow else JSON_BODY
    return Call("POST", _path(topic, "/diff"), True, headers, _encode(body), wait_ms)


def delete_records(topic: str, before_seq: int | None, match: Match | None) -> Call:
    body = _encode(DeleteBody(before_seq, _plain(match)))
    return Call("POST", _path(topic, "/delete"), False, JSON_BODY, body)


def put_topic(topic: str, config: Config | None) -> Call:
    return Call("PUT", _path(topic), False, JSON_BODY, _encode(_checked(config) or {}))


def topic(topic: str, touch: bool) -> Call:
    return Call("GET", _path(topic, "" if touch else "?touch=false"), True)


def archived(topic: str, epoch: int, to_seq: int) -> Call:
    body = _encode(ArchivedBody(epoch, to_seq))
    return Call("POST", _path(topic, "/archived"), True, JSON_BODY, body)


def topics(prefix: str, page_size: int | None, cursor: str | None) -> Call:
    query = query_text(prefix=prefix or None, page_size=page_size, cursor=cursor)
    return Call("GET", f"/v0/topics{query}", True)


def delete_topic(topic: str, if_empty: bool) -> Call:
    return Call("DELETE", _path(topic, "?if_empty=true" if if_empty else ""), False)


def _router_path(router: str) -> str:
    return f"/v0/routers/{quote(router, safe='')}"


def put_router(
    router: str,
    source: str,
    dest: str,
    *,
    filter: Match | None,
    preserve_node: bool,
    preserve_tag: bool,
    create_dest: bool,
    allow_cycle: bool,
    guarantee: Guarantee,
    backfill: bool | int,
) -> Call:
    """
    >>> kept = dict.fromkeys(["preserve_node", "preserve_tag", "create_dest"], True)
    >>> how = {"filter": None, "allow_cycle": False, "guarantee": AT_LEAST_ONCE, **kept}
    >>> call = put_router("a->b", "a", "b", backfill=True, **how)
    >>> call.target, call.body
    ('/v0/routers/a-%3Eb', b'{"source":"a","dest":"b","backfill":true}')
    """
    body = RouterBody(
        source,
        dest,
        _plain(filter),
        None if preserve_node else False,
        None if preserve_tag else False,
        None if create_dest else False,
        allow_cycle or None,
        None if guarantee == AT_LEAST_ONCE else guarantee,
        None if backfill is False else backfill,
    )
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
    body = _encode(ClaimBody(node, None if count == 1 else count, lease_ms))
    return Call("POST", _path(topic, "/claim"), False, JSON_BODY, body)


def _seqs_and_leases(jobs: Iterable[Job | int]) -> tuple[list[int], list[str] | None]:
    """Return the seqs of jobs, and their leases where these are known."""
    given = list(jobs)
    seqs = [job.seq if isinstance(job, Job) else job for job in given]
    ids = [job.lease_id if isinstance(job, Job) else "" for job in given]
    return seqs, ids if any(ids) else None


def ack(topic: str, node: str, jobs: Iterable[Job | int]) -> Call:
    """
    >>> ack("jobs", "w1", [1, 2]).body
    b'{"node":"w1","seqs":[1,2]}'
    """
    body = _encode(AckBody(node, *_seqs_and_leases(jobs)))
    return Call("POST", _path(topic, "/ack"), True, JSON_BODY, body)


def nack(topic: str, node: str, jobs: Iterable[Job | int], delay_ms: int) -> Call:
    """
    A job that is named by its seq alone may be held by a new lease by the time of a repeat.

    >>> nack("jobs", "w1", [1], 0).repeatable, nack("jobs", "w1", [], 0).repeatable
    (False, True)
    """
    given = list(jobs)
    repeatable = all(isinstance(job, Job) for job in given)
    body = _encode(NackBody(node, *_seqs_and_leases(given), delay_ms or None))
    return Call("POST", _path(topic, "/nack"), repeatable, JSON_BODY, body)


def extend(topic: str, node: str, jobs: Iterable[Job | int], lease_ms: int) -> Call:
    seqs, lease_ids = _seqs_and_leases(jobs)
    body = _encode(ExtendBody(node=node, seqs=seqs, lease_ids=lease_ids, lease_ms=lease_ms))
    return Call("POST", _path(topic, "/extend"), True, JSON_BODY, body)


def redrive(
    topic: str,
    match: Match | None,
    meta: Mapping[str, Any] | None,
    to: str | None,
    from_seq: int,
    limit: int | None,
) -> Call:
    wanted = None if meta is None else dict(meta)
    body = _encode(RedriveBody(_plain(match), wanted, limit, to, from_seq or None))
    return Call("POST", _path(topic, "/redrive"), False, JSON_BODY, body)


def scrubbed_files(page_size: int | None, cursor: str | None) -> Call:
    query = query_text(page_size=page_size, cursor=cursor)
    return Call("GET", f"/v0/storage/scrub{query}", True)


def segments(topic: str) -> Call:
    return Call("GET", _path(topic, "/segments"), True)


def pin(method: str, topic: str, pin: str) -> Call:
    """`POST` renews a pin of a manifest, `DELETE` gives it back."""
    return Call(method, _path(topic, f"/segments/{quote(pin, safe='')}"), method == "POST")


def probe(path: str, accept: str = "application/json") -> Call:
    return Call("GET", path, True, {"accept": accept})
