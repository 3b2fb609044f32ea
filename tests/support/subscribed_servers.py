"""Durable Streams with subscriptions, without sockets: requests are calls, webhooks are notes.

Nothing runs by itself: time moves when a test says so, and a webhook is answered when a test
answers it.  Everything between a route's handler and the disk is the server's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.core.clock import ManualClock
from headrace.core.runtime import StepRuntime
from headrace.engine.engine import Engine
from headrace.metrics.requests import Metrics
from headrace.wire.durable_streams.dialect import durable_streams_dialect
from headrace.wire.exchange import JSON, Headers
from headrace.wire.outbound import OutboundPost, PostResult
from headrace.wire.routes import RouteTable
from headrace.wire.server_context import ServerContext
from tests.support.exchanges import AnsweredExchange

ROOT = "/v1/stream/"
SUBSCRIPTIONS = ROOT + "__ds/subscriptions/"
HOOK = "https://hooks.example.com/wake"


class NotedPost(NamedTuple):
    """A POST that the server wants to make."""

    asked: OutboundPost
    done: Callable[[PostResult], None]

    @property
    def json(self) -> dict[str, Any]:
        decoded = json.loads(self.asked.body)
        assert isinstance(decoded, dict)
        return decoded


class NotedPosts:
    """Keeps the POSTs that are to be made until a test answers them."""

    def __init__(self) -> None:
        self.open: list[NotedPost] = []
        self.drained = False

    def post(self, asked: OutboundPost, done: Callable[[PostResult], None]) -> None:
        self.open.append(NotedPost(asked, done))

    def drain(self) -> None:
        self.drained = True


class HeardExchange(AnsweredExchange):
    """A request whose client does something when it is answered."""

    __slots__ = ("heard",)
    heard: Heard | None

    def answer(
        self, status: int, body: bytes, content_type: bytes = JSON, headers: Headers = ()
    ) -> None:
        super().answer(status, body, content_type, headers)
        if self.heard is not None:
            self.heard(self)


Heard = Callable[[AnsweredExchange], None]


class SubscribedServer:
    """One server on an engine that nothing but it uses."""

    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        assert isinstance(engine.runtime, StepRuntime)
        self.engine = engine
        self.clock = clock
        self.runtime = engine.runtime
        self.posts = NotedPosts()
        context = self.context = ServerContext(engine, engine.settings, Metrics())
        self.dialect = durable_streams_dialect(context, self.posts)
        self.hub = context.open_streams.hub
        self._table = RouteTable([self.dialect])
        self.key: Any = None

    # Requests

    def begin(
        self,
        method: str,
        path: str,
        body: object = None,
        heard: Heard | None = None,
        **headers: str,
    ) -> AnsweredExchange:
        """Make a request, and wait for nothing; a body that is no text becomes JSON.

        `heard` is called when the client has the answer.
        """
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-").encode(): text.encode() for name, text in headers.items()}
        named = {b"host": b"streams.example.com", b"content-type": b"application/json"} | named
        exchange = HeardExchange(method, path, "", named, 0)
        exchange.heard = heard
        exchange.body = b"" if body is None else data
        exchange.key = self.key
        found = self._table.match(method, path)
        exchange.route, exchange.params = found
        try:
            found.route.handler(exchange)
        except Exception as error:  # noqa: BLE001 - as the server does
            exchange.fail(error)
        return exchange

    def call(self, method: str, path: str, body: object = None, **headers: str) -> AnsweredExchange:
        """Make a request, and let things happen until nothing does any more."""
        exchange = self.begin(method, path, body, None, **headers)
        self.runtime.run()
        assert exchange.answered, (method, path)
        return exchange

    def subscribe(self, id: str, **fields: object) -> AnsweredExchange:
        """Create a subscription: a webhook, or pull-wake with `wake_stream`."""
        if "wake_stream" in fields:
            asked = {"type": "pull-wake", **fields}
        else:
            asked = {"type": "webhook", "webhook": {"url": HOOK}, **fields}
        return self.call("PUT", SUBSCRIPTIONS + id, asked)

    def append(self, path: str, value: object = "x") -> str:
        """Append to a stream, which is made if need be; return its tail."""
        answer = self.call("POST", ROOT + path, value)
        if answer.status == 404:
            answer = self.call("PUT", ROOT + path, [value])
        assert answer.status in (201, 204), (answer.status, answer.reply)
        return answer.reply_headers[b"stream-next-offset"].decode()

    def record(self, id: str) -> dict[str, Any]:
        """Return a subscription as its owner sees it."""
        answer = self.call("GET", SUBSCRIPTIONS + id)
        assert answer.status == 200, answer.reply
        return answer.json

    def cursors(self, id: str) -> dict[str, str]:
        """Return how far a subscription is, by path."""
        return {link["path"]: link["acked_offset"] for link in self.record(id)["streams"]}

    def events_of(self, path: str) -> list[Any]:
        """Return the messages of a JSON stream."""
        page = self.engine.read(f"ds:{path}").result()
        return [json.loads(record.data) for record in page.records]

    # Wakes

    def claim(self, id: str, worker: str = "w1") -> AnsweredExchange:
        return self.call("POST", f"{SUBSCRIPTIONS}{id}/claim", {"worker": worker})

    def report(
        self, id: str, action: str, wake: dict[str, Any], *, token: str = "", **fields: object
    ) -> AnsweredExchange:
        """Say something of a wake: `action` is callback, ack or release."""
        shown = token or wake.get("token") or wake["callback_token"]
        said = {"wake_id": wake["wake_id"], "generation": wake["generation"], **fields}
        path = f"{SUBSCRIPTIONS}{id}/{action}"
        return self.call("POST", path, said, authorization=f"Bearer {shown}")

    def the_post(self) -> NotedPost:
        """Return the one POST that is open, which a test is then to answer."""
        self.runtime.run()
        (post,) = self.posts.open
        self.posts.open.clear()
        return post

    def answer(self, post: NotedPost, status: int = 200, body: bytes = b"", **rest: Any) -> None:
        """Be the receiver of a webhook."""
        post.done(PostResult(status, body, **rest))
        self.runtime.run()

    def be_done(self) -> None:
        """Be a receiver that has dealt with every wake, until there is none."""
        while self.posts.open:
            post = self.posts.open.pop(0)
            self.answer(post, 200, b'{"done":true}')

    def wait(self, ms: int) -> None:
        """Let time pass, and happen what is due then."""
        self.clock.advance(ms)
        self.dialect.tick(self.clock.monotonic_ns() // 1_000_000)
        self.runtime.run()
