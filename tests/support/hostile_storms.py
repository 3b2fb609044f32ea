"""Hostile clients that ask for much: storms of forks, subscriptions, topics, tokens and the like.

Each step is a burst of requests that are sent at once.  What a storm makes it mostly deletes again,
so that a server that lasts is left with little; how much it leaves at most has a name.
"""

from __future__ import annotations

import json
import socket
import struct
from itertools import count as counting

from tests.support.hostile_clients import Hostile, connect, request
from tests.support.hostile_holders import GOOD, told

BURST = 16
KEPT_MAX = 256  # of what a storm makes and leaves until it ends
FORK_DEPTH = 40
STREAMS = "/v1/stream/"
SUBSCRIPTIONS = STREAMS + "__ds/subscriptions/"
PLAIN = {"Content-Type": "text/plain"}
DISCARD_PORT = 9  # nobody listens there
RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class Storm(Hostile):
    """Bursts of requests with numbers that do not come again."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self.numbers = counting()

    def burst(self) -> list[int]:
        return [next(self.numbers) for _ in range(BURST)]


class ConnectionChurn(Hostile):
    """Connections that are opened and closed or reset, with a request or without one."""

    name = "connection_churn"

    def step(self) -> None:
        for number in range(BURST):
            try:
                connection = connect(self.target)
                if number % 4:
                    connection.sendall(request("GET", "/v0/health")[: 20 * (number % 4)])
                if number % 2:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
                connection.close()
            except OSError:
                continue


class ForkBombs(Storm):
    """Forks of forks, many forks of one stream, and sources that are deleted under them."""

    name = "fork_bombs"

    def begin(self) -> None:
        told(self.ask(request("PUT", STREAMS + "hostile-root", b"root", PLAIN)), *GOOD)
        self._deepest, self._depth = "hostile-root", 0

    def step(self) -> None:
        numbers = self.burst()
        made = []
        for number in numbers:
            name = f"hostile-fork-{number}"
            deep = number % 2 and self._depth < FORK_DEPTH
            made.append(_fork(name, self._deepest if deep else "hostile-root"))
            if deep:
                self._deepest, self._depth = name, self._depth + 1
        self.ask(*made)
        self.ask(*(request("DELETE", f"{STREAMS}hostile-fork-{number}") for number in numbers))
        if self._depth >= FORK_DEPTH:
            self._deepest, self._depth = "hostile-root", 0


def _fork(name: str, source: str) -> bytes:
    return request("PUT", STREAMS + name, None, {"Stream-Forked-From": STREAMS + source})


class SubscriptionStorms(Storm):
    """Subscriptions with wide patterns, woken, claimed and deleted; webhooks to nobody."""

    name = "subscription_storms"

    def begin(self) -> None:
        streams = [request("PUT", f"{STREAMS}hostile-events/{n}", b"", PLAIN) for n in range(BURST)]
        wake = request("PUT", STREAMS + "hostile-wakes", b"", {"Content-Type": "application/json"})
        told(self.ask(*streams, wake), *GOOD)

    def step(self) -> None:
        numbers = self.burst()
        self.ask(*(self._put(number) for number in numbers))
        self.ask(
            *(request("POST", f"{STREAMS}hostile-events/{n}", b"x", PLAIN) for n in range(BURST)),
        )
        self.ask(*(self._claim(number) for number in numbers))
        self.ask(*(request("DELETE", f"{SUBSCRIPTIONS}hostile-{number}") for number in numbers))

    def _put(self, number: int) -> bytes:
        asked: dict[str, object] = {"pattern": "hostile-events/**"}
        if number % 4:
            asked |= {"type": "pull-wake", "wake_stream": "hostile-wakes"}
        else:
            nobody = f"http://{self.target.host}:{DISCARD_PORT}/"
            asked |= {"type": "webhook", "webhook": {"url": nobody}}
        return request("PUT", f"{SUBSCRIPTIONS}hostile-{number}", asked)

    def _claim(self, number: int) -> bytes:
        return request("POST", f"{SUBSCRIPTIONS}hostile-{number}/claim", {"worker": "w"})


class ProducerFloods(Storm):
    """Appends, each by a producer that nobody has heard of, in two dialects."""

    name = "producer_floods"

    def begin(self) -> None:
        told(self.ask(request("PUT", STREAMS + "hostile-producers", b"", PLAIN)), *GOOD)

    def step(self) -> None:
        asked = []
        for number in self.burst():
            fields = {
                "Producer-Id": f"hostile-{number}",
                "Producer-Epoch": "0",
                "Producer-Seq": "0",
            }
            if number % 2:
                path = STREAMS + "hostile-producers"
                asked.append(request("POST", path, b"x", {**PLAIN, **fields}))
            else:
                record = {"records": [{"data": 1}]}
                asked.append(request("POST", "/v0/topics/hostile-producers", record, fields))
        self.ask(*asked)


class TopicFloods(Storm):
    """Topics that are made by an append and deleted a while later."""

    name = "topic_floods"

    def step(self) -> None:
        numbers = self.burst()
        record = {"records": [{"data": 1}]}
        self.ask(*(request("POST", f"/v0/topics/hostile-topic-{n}", record) for n in numbers))
        old = [n - KEPT_MAX for n in numbers if n >= KEPT_MAX]
        self.ask(*(request("DELETE", f"/v0/topics/hostile-topic-{n}") for n in old))


class WildcardWatches(Storm):
    """Watches of everything, each with a stream that is left at once."""

    name = "wildcard_watches"

    def step(self) -> None:
        watch = {"topics": {"*": {"from_seq": 0}}}
        for made in self.ask(*(request("POST", "/v0/watch", watch) for _ in range(4))):
            if made.status == 200:
                wid = json.loads(made.body)["wid"]
                self.hold(request("GET", f"/v0/watch/{wid}", None, {"Accept": "text/event-stream"}))


class TokenStorms(Storm):
    """Access tokens, issued and revoked."""

    name = "token_storms"

    def step(self) -> None:
        numbers = self.burst()
        scope = {"basins": {"prefix": ""}, "streams": {"prefix": ""}, "ops": ["read"]}
        self.ask(
            *(
                request("POST", "/v1/access-tokens", {"id": f"hostile-{n}", "scope": scope})
                for n in numbers
            )
        )
        self.ask(*(request("DELETE", f"/v1/access-tokens/hostile-{n}") for n in numbers))


class BasinStorms(Storm):
    """Basins with a stream each, made and deleted."""

    name = "basin_storms"

    def step(self) -> None:
        numbers = self.burst()
        self.ask(*(request("POST", "/v1/basins", {"basin": f"hostile-{n:06}"}) for n in numbers))
        self.ask(
            *(
                request("POST", "/v1/streams", {"stream": "s"}, {"s2-basin": f"hostile-{n:06}"})
                for n in numbers
            )
        )
        self.ask(*(request("DELETE", f"/v1/basins/hostile-{n:06}") for n in numbers))


STORMS = (
    ConnectionChurn,
    ForkBombs,
    SubscriptionStorms,
    ProducerFloods,
    TopicFloods,
    WildcardWatches,
    TokenStorms,
    BasinStorms,
)
