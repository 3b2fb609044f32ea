"""The servers of `./run bench --peers`: each started, filled where a row reads, and what is sent.

A start yields the server, or None where there is none, and the plan of the load (`plans.py`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from bench import jobs_peers, peer_servers
from bench.case_http_appends import TOPICS, TOPICS_QUICK, TRAFFIC, prepared, settings_of
from bench.case_http_batch import MEMORY_BYTES
from bench.measure import PAYLOAD_BYTES, QUICK_VARIABLE
from bench.served import Served, serving
from bench.wires import JSON_HEADERS, append_body, document

FILL_SECONDS = 1.0
BATCH = 100

Started = tuple[Served | None, dict[str, Any]]
Start = Callable[[str], contextlib.AbstractContextManager[Started]]

APPEND = {"wire": "append", "topic": "orders"}


# One topic


@contextlib.contextmanager
def headrace(directory: str, durability: str = "disk", **plan: Any) -> Iterator[Started]:
    with serving(directory) as server:
        server.call("PUT", "/v0/topics/orders", {"durability": durability})
        yield server, {**APPEND, **plan}


@contextlib.contextmanager
def redis(directory: str, policy: str) -> Iterator[Started]:
    with peer_servers.redis(directory, policy) as server:
        yield server, {"wire": "redis_xadd", "topic": "orders"}


@contextlib.contextmanager
def nats(directory: str, sync: str) -> Iterator[Started]:
    with peer_servers.nats(directory, sync) as server:
        yield server, {"wire": "nats_publish", "topic": "orders"}


@contextlib.contextmanager
def node_streams(directory: str, stored: bool) -> Iterator[Started]:
    with peer_servers.durable_streams(directory, stored) as server:
        yield (
            server,
            {
                "wire": "http",
                "method": "POST",
                "path": peer_servers.STREAM_PATH,
                "body": peer_servers.STREAM_RECORD,
                "content_type": "application/json",
            },
        )


# Many topics


def in_turns(path: str, body: bytes, headers: dict[str, str] | None = None) -> dict[str, Any]:
    """A plan: the same to each topic, of which all servers have as many."""
    return {
        "wire": "http_turns",
        "path": path,
        "topics": TOPICS,
        "body": body.decode(),
        "headers": headers or JSON_HEADERS,
    }


@contextlib.contextmanager
def headrace_topics(directory: str, durability: str) -> Iterator[Started]:
    with serving(directory) as server:
        for number in range(TOPICS):
            server.call("PUT", f"/v0/topics/t{number}", {"durability": durability})
        yield server, in_turns("/v0/topics/t{}", append_body())


@contextlib.contextmanager
def rust_streams(directory: str, durability: str) -> Iterator[Started]:
    names = [f"t{number}" for number in range(TOPICS)]
    with peer_servers.durable_streams_rust(directory, durability, names) as server:
        yield server, in_turns(peer_servers.STREAM.format("t{}"), document())


@contextlib.contextmanager
def redis_streams(directory: str, policy: str) -> Iterator[Started]:
    with peer_servers.redis(directory, policy) as server:
        yield server, {"wire": "redis_xadds", "topics": TOPICS}


@contextlib.contextmanager
def s2_streams(directory: str, stored: bool) -> Iterator[Started]:
    text = document().decode().replace('"', '\\"')
    body = f'{{"records":[{{"body":"{text}"}}]}}'.encode()
    with peer_servers.s2_lite(directory, stored, TOPICS) as server:
        yield server, in_turns(peer_servers.S2_RECORDS, body, peer_servers.BASIN_HEADERS)


# Appends of other kinds


def streams_of(count: int) -> int:
    """So many topics, or a few where figures mean nothing anyway."""
    return TOPICS_QUICK if QUICK_VARIABLE in os.environ else count


@contextlib.contextmanager
def headrace_traffic(directory: str, name: str) -> Iterator[Started]:
    (traffic,) = [traffic for traffic in TRAFFIC if traffic.name == name]
    with serving(directory, **settings_of(traffic)) as server:
        yield server, prepared(server, traffic, streams_of(traffic.topics))


@contextlib.contextmanager
def rust_many(directory: str, topics: int) -> Iterator[Started]:
    count = streams_of(topics)
    names = [f"t{number}" for number in range(count)]
    with peer_servers.durable_streams_rust(directory, "memory", names) as server:
        yield server, {**in_turns(peer_servers.STREAM.format("t{}"), document()), "topics": count}


@contextlib.contextmanager
def redis_many(directory: str, topics: int) -> Iterator[Started]:
    with peer_servers.redis(directory, "everysec") as server:
        yield server, {"wire": "redis_xadds", "topics": streams_of(topics)}


# Reads


@contextlib.contextmanager
def headrace_read(directory: str, records: int) -> Iterator[Started]:
    with serving(directory) as server:
        server.load(APPEND, 8, FILL_SECONDS, warm_up=0)
        yield server, {"wire": "diff", "topic": "orders", "from_seq": 0, "limit": records}


@contextlib.contextmanager
def redis_read(directory: str, records: int) -> Iterator[Started]:
    with peer_servers.redis(directory, "everysec") as server:
        server.load({"wire": "redis_xadd", "topic": "orders"}, 8, FILL_SECONDS, warm_up=0)
        yield server, {"wire": "redis_xread", "topic": "orders", "limit": records}


# Queues


@contextlib.contextmanager
def headrace_jobs(directory: str, how: str) -> Iterator[Started]:
    durability, _, leases = how.partition(" ")
    config = {"type": "queue", "durability": durability, "leases_durable": bool(leases)}
    with serving(directory) as server:
        server.call("PUT", "/v0/topics/jobs", config)
        yield server, {"jobs": "headrace", "topic": "jobs"}


@contextlib.contextmanager
def redis_jobs(directory: str, policy: str) -> Iterator[Started]:
    with peer_servers.redis(directory, policy) as server:
        jobs_peers.put_redis_group(server.port, "jobs")
        yield server, {"jobs": "redis", "topic": "jobs"}


@contextlib.contextmanager
def nats_jobs(directory: str, how: str) -> Iterator[Started]:
    sync, _, confirmed = how.partition(" ")
    with peer_servers.nats(directory, sync, with_stream=False) as server:
        jobs_peers.put_nats_queue(server.port, "jobs")
        yield server, {"jobs": "nats", "topic": "jobs", "confirmed": bool(confirmed)}


@contextlib.contextmanager
def dramatiq_jobs(directory: str, policy: str) -> Iterator[Started]:
    with peer_servers.redis(directory, policy) as server:
        yield server, {}


# Watchers, bulk, one writer


@contextlib.contextmanager
def headrace_watched(directory: str) -> Iterator[Started]:
    with headrace(directory) as (server, _):
        yield server, {"watch": "sse"}


@contextlib.contextmanager
def rust_watched(directory: str) -> Iterator[Started]:
    with peer_servers.durable_streams_rust(directory, "memory", ["orders"]) as server:
        yield server, {"watch": "durable-streams"}


@contextlib.contextmanager
def headrace_bulk(directory: str, plan: dict[str, Any]) -> Iterator[Started]:
    with serving(directory, memory_budget_bytes=MEMORY_BYTES) as server:
        yield server, {"topic": "orders", "size": PAYLOAD_BYTES, **plan}


@contextlib.contextmanager
def rust_bulk(directory: str) -> Iterator[Started]:
    records = b",".join(document(PAYLOAD_BYTES, n) for n in range(BATCH))
    with peer_servers.durable_streams_rust(directory, "memory", ["orders"]) as server:
        yield (
            server,
            {
                "wire": "http",
                "method": "POST",
                "path": peer_servers.STREAM_PATH,
                "body": f"[{records.decode()}]",
                "content_type": "application/json",
            },
        )


@contextlib.contextmanager
def unserved(directory: str, writes: str) -> Iterator[Started]:
    yield None, {"writes": writes, "directory": directory}
