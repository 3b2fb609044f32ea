"""For every request type of every dialect: one that is accepted, which can be made larger.

A body of JSON is made as large as it may be with blanks, which every dialect takes; a request
without one with a header.  The entries are sent in their order: what one creates, others need.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

JSON_TYPE = "application/json"
TEXT_TYPE = "text/plain"
S2 = {"s2-basin": "my-basin"}


class Sent(NamedTuple):
    """A request, and the statuses that it may be answered with."""

    path: str
    statuses: tuple[int, ...] = (200,)
    document: object = None  # of the body; None: it has none
    headers: Mapping[str, str] = MappingProxyType({})
    content_type: str = JSON_TYPE

    def body(self, size: int) -> bytes:
        """The body, of so many bytes."""
        if self.content_type == TEXT_TYPE:
            return b"x" * size
        text = json.dumps(self.document).encode()
        return b" " * (size - len(text)) + text


T, D, SUB, CONTROL = (
    "/v0/topics/t",
    "/v1/stream/d",
    "/v1/stream/__ds/subscriptions/s",
    "/v1/stream/__ds",
)
SCOPE = {"basins": {"prefix": ""}, "ops": ["list-basins"]}
RECORD = {"records": [{"data": 1}]}
JOB = {"node": "n", "seqs": [1], "lease_ms": 1_000}
STREAMS = {"streams": ["d"]}
WAKE = {"wake_id": "w", "generation": 1}
ROUTER = {"source": "t", "dest": "copied"}
PIPELINE = {"sql": "SELECT * FROM t", "sources": ["t"], "dest": "out"}

# By method and template.
LARGEST: dict[tuple[str, str], Sent] = {
    ("PUT", "/v0/topics/{topic}"): Sent(T, (200, 201), {}),
    ("GET", "/v0/topics/{topic}"): Sent(T),
    ("POST", "/v0/topics/{topic}"): Sent(T, (200, 201), RECORD),
    ("GET", "/v0/topics"): Sent("/v0/topics"),
    ("POST", "/v0/topics/{topic}/diff"): Sent(f"{T}/diff", (200,), {"from_seq": 1}),
    ("POST", "/v0/topics/{topic}/delete"): Sent(f"{T}/delete", (200,), {"before_seq": 1}),
    ("POST", "/v0/topics/{topic}/archived"): Sent(
        f"{T}/archived", (200, 409), {"epoch": 1, "to_seq": 0}
    ),
    # Refused for what the topic is, with the body in memory.
    ("POST", "/v0/topics/{topic}/claim"): Sent(f"{T}/claim", (409,), {"node": "n"}),
    ("POST", "/v0/topics/{topic}/ack"): Sent(f"{T}/ack", (409,), JOB),
    ("POST", "/v0/topics/{topic}/nack"): Sent(f"{T}/nack", (409,), JOB),
    ("POST", "/v0/topics/{topic}/extend"): Sent(f"{T}/extend", (409,), JOB),
    ("POST", "/v0/topics/{topic}/redrive"): Sent(f"{T}/redrive", (200, 400, 409), {}),
    ("PUT", "/v0/routers/{router}"): Sent("/v0/routers/r", (200, 201), ROUTER),
    ("GET", "/v0/routers/{router}"): Sent("/v0/routers/r"),
    ("GET", "/v0/routers"): Sent("/v0/routers"),
    ("DELETE", "/v0/routers/{router}"): Sent("/v0/routers/r", (200, 404)),
    ("PUT", "/v0/pipelines/{pipeline}"): Sent("/v0/pipelines/p", (200, 201, 400), PIPELINE),
    ("GET", "/v0/pipelines/{pipeline}"): Sent("/v0/pipelines/p", (200, 404)),
    ("GET", "/v0/pipelines"): Sent("/v0/pipelines"),
    ("POST", "/v0/pipelines/{pipeline}/restart"): Sent("/v0/pipelines/p/restart", (200, 404), {}),
    ("POST", "/v0/pipelines"): Sent("/v0/pipelines", (200, 400), {"worker": "w"}),
    ("POST", "/v0/pipelines/{pipeline}/progress"): Sent(
        "/v0/pipelines/p/progress", (200, 400, 404, 409), {"lease_id": "x"}
    ),
    ("POST", "/v0/pipelines/{pipeline}/release"): Sent(
        "/v0/pipelines/p/release", (200, 400, 404, 409), {"lease_id": "x"}
    ),
    ("DELETE", "/v0/pipelines/{pipeline}"): Sent("/v0/pipelines/p", (200, 404)),
    ("GET", "/v0/topics/{topic}/segments"): Sent(f"{T}/segments"),
    ("POST", "/v0/topics/{topic}/segments/{pin}"): Sent(f"{T}/segments/x", (404,), {}),
    ("DELETE", "/v0/topics/{topic}/segments/{pin}"): Sent(f"{T}/segments/x", (200, 404)),
    ("GET", "/v0/storage/scrub"): Sent("/v0/storage/scrub"),
    ("POST", "/v0/watch"): Sent("/v0/watch", (200, 201, 429), {"topics": {"t": {}}}),
    ("GET", "/v0/watch/{wid}"): Sent("/v0/watch/wid_x", (404,)),
    ("GET", "/v0/ws"): Sent("/v0/ws", (400,)),
    ("GET", "/v0/topics/{topic}/work"): Sent(f"{T}/work?node=n", (409,)),
    **{
        ("GET", path): Sent(path)
        for path in (
            "/v0/health", "/healthz", "/v0/ready", "/readyz", "/v0/metrics", "/health", "/ping",
            "/openapi.json", "/docs", "/docs/docs.css", "/docs/docs.js",
        )
    },
    ("DELETE", "/v0/topics/{topic}"): Sent("/v0/topics/gone", (200, 404)),
    # Durable Streams
    ("PUT", "/v1/stream/{path*}"): Sent(D, (200, 201, 409), "", {}, TEXT_TYPE),
    ("POST", "/v1/stream/{path*}"): Sent(D, (200, 204), "", {}, TEXT_TYPE),
    ("HEAD", "/v1/stream/{path*}"): Sent(D),
    ("GET", "/v1/stream/{path*}"): Sent(D),
    ("DELETE", "/v1/stream/{path*}"): Sent("/v1/stream/gone", (404,)),
    ("PUT", f"{CONTROL}/subscriptions/{{id}}"): Sent(
        SUB, (200, 201, 400), {"type": "pull-wake", "pattern": "d*", "wake_stream": "w"}
    ),
    ("GET", f"{CONTROL}/subscriptions/{{id}}"): Sent(SUB, (200, 404)),
    ("POST", f"{CONTROL}/subscriptions/{{id}}/streams"): Sent(
        f"{SUB}/streams", (200, 204, 400, 404), STREAMS
    ),
    ("DELETE", f"{CONTROL}/subscriptions/{{id}}/streams/{{path*}}"): Sent(
        f"{SUB}/streams/d", (200, 204, 404)
    ),
    ("POST", f"{CONTROL}/subscriptions/{{id}}/claim"): Sent(
        f"{SUB}/claim", (200, 204, 400, 404, 409), {"worker": "w"}
    ),
    **{
        ("POST", f"{CONTROL}/subscriptions/{{id}}/{call}"): Sent(
            f"{SUB}/{call}", (200, 204, 400, 401, 404, 409), WAKE
        )
        for call in ("callback", "ack", "release")
    },
    ("DELETE", f"{CONTROL}/subscriptions/{{id}}"): Sent(SUB, (200, 204, 404)),
    ("GET", f"{CONTROL}/jwks.json"): Sent(f"{CONTROL}/jwks.json"),
    **{
        (method, f"{CONTROL}{rest}"): Sent(
            f"{CONTROL}{rest and '/x'}", (400, 404, 405), {} if method in ("PUT", "POST") else None
        )
        for method in ("GET", "PUT", "POST", "DELETE")
        for rest in ("", "/{rest*}")
    },
    # S2
    ("POST", "/v1/basins"): Sent("/v1/basins", (201, 409), {"basin": "my-basin"}),
    ("GET", "/v1/basins"): Sent("/v1/basins"),
    ("PUT", "/v1/basins/{basin}"): Sent("/v1/basins/my-basin", (200, 201, 204), {}),
    ("GET", "/v1/basins/{basin}"): Sent("/v1/basins/my-basin"),
    ("PATCH", "/v1/basins/{basin}"): Sent("/v1/basins/my-basin", (200,), {}),
    ("POST", "/v1/streams"): Sent("/v1/streams", (201, 409), {"stream": "my-stream"}, S2),
    ("GET", "/v1/streams"): Sent("/v1/streams", headers=S2),
    ("PUT", "/v1/streams/{stream}"): Sent("/v1/streams/my-stream", (200, 201, 204), {}, S2),
    ("GET", "/v1/streams/{stream}"): Sent("/v1/streams/my-stream", headers=S2),
    ("PATCH", "/v1/streams/{stream}"): Sent("/v1/streams/my-stream", (200,), {}, S2),
    ("POST", "/v1/streams/{stream}/records"): Sent(
        "/v1/streams/my-stream/records", (200,), {"records": [{"body": "x"}]}, S2
    ),
    ("GET", "/v1/streams/{stream}/records"): Sent(
        "/v1/streams/my-stream/records?seq_num=0&count=1", headers=S2
    ),
    ("GET", "/v1/streams/{stream}/records/tail"): Sent(
        "/v1/streams/my-stream/records/tail", headers=S2
    ),
    ("DELETE", "/v1/streams/{stream}"): Sent("/v1/streams/no-stream", (404,), headers=S2),
    ("DELETE", "/v1/basins/{basin}"): Sent("/v1/basins/no-basin", (404,)),
    ("POST", "/v1/access-tokens"): Sent(
        "/v1/access-tokens", (201, 409), {"id": "a", "scope": SCOPE}
    ),
    ("GET", "/v1/access-tokens"): Sent("/v1/access-tokens"),
    ("DELETE", "/v1/access-tokens/{id}"): Sent("/v1/access-tokens/a", (204, 404)),
    ("GET", "/v1/locations"): Sent("/v1/locations"),
    ("GET", "/v1/locations/default"): Sent("/v1/locations/default"),
    ("PUT", "/v1/locations/default"): Sent("/v1/locations/default", (200, 204), "local"),
    **{
        ("GET", f"/v1/metrics{rest}"): Sent(f"/v1/metrics{path}?set=active-basins", (200, 400, 422))
        for rest, path in (
            ("", ""), ("/{basin}", "/my-basin"), ("/{basin}/{stream}", "/my-basin/my-stream"),
        )
    },
}  # fmt: skip
