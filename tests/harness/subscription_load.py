"""Subscriptions on a server that is killed: wakes are claimed, acknowledged, released.

Each worker has a subscription of its own, with a lease that outlives the test, and knows its
cursors and whether it holds the lease.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, NamedTuple

from headrace.client.message import Response
from tests.harness.events import Violation
from tests.harness.kill_area import Area, Caller, Owner, all_judge, as_json, caller

ROOT = "/v1/stream/"
SUBSCRIPTIONS = ROOT + "__ds/subscriptions/"
OWNERS = 2
STREAMS = 3  # of each worker
LEASE_MS = 600_000
START = "-1"
NEXT = "stream-next-offset"


class Subscription(NamedTuple):
    """What is known of it."""

    cursors: tuple[tuple[str, str], ...]
    held: bool = False


class SubscriptionOwner(Owner[Subscription | None]):
    """One worker."""

    def __init__(self, area: Area, name: str) -> None:
        super().__init__(area, name, None)
        self._paths = [f"{name}/{number}" for number in range(STREAMS)]
        self._tails = dict.fromkeys(self._paths, START)
        self._made = 0
        self._said: dict[str, object] = {}
        self._token = ""
        self._generation = 0
        self._unsure = False  # a claim was interrupted: its token is unknown

    async def create(self, calls: Caller) -> None:
        for path in (f"{self.name}/wake", *self._paths):
            answer = await calls.call("PUT", ROOT + path, [])
            self.area.want(answer.status == 201, answer)
            if path in self._tails:
                self._tails[path] = answer.headers[NEXT]

    @property
    def _path(self) -> str:
        return f"{SUBSCRIPTIONS}{self.name}-{self._made}"

    async def act(self, calls: Caller) -> None:
        chance, state = self.chance.random(), self.state
        if state is None:
            await self._subscribe(calls)
        elif self._unsure or chance < 0.03:
            await self.change("delete", None, calls.call("DELETE", self._path), 204)
            self._unsure = False
        elif chance < 0.4:
            path = self.chance.choice(self._paths)
            answer = await calls.call("POST", ROOT + path, [self.chance.random()])
            self.area.want(answer.status == 204, answer)
            self._tails[path] = answer.headers[NEXT]
        elif not state.held:
            await self._claim(calls, state)
        elif chance < 0.5:
            self.area.want((await self._tell(calls, "ack", {})).status == 200, "a lease was lost")
        elif chance < 0.65:
            call = self._tell(calls, "release", {})
            await self.change("release", state._replace(held=False), call, 204)
        else:
            await self._ack(calls, state)

    async def _subscribe(self, calls: Caller) -> None:
        self._made += 1
        self._generation = 0
        asked = {
            "type": "pull-wake",
            "streams": self._paths,
            "wake_stream": f"{self.name}/wake",
            "lease_ttl_ms": LEASE_MS,
        }
        # It begins where the streams are then.
        call = calls.call("PUT", self._path, asked)
        before = tuple(sorted(self._tails.items()))
        answer = await self.change("subscribe", Subscription(before), call, 201)
        self.state = Subscription(_cursors(as_json(answer)))

    async def _claim(self, calls: Caller, state: Subscription) -> None:
        self._unsure = True
        answer = await calls.call("POST", self._path + "/claim", {"worker": self.name})
        self._unsure = False
        told = as_json(answer)
        if answer.status == 409:
            self.area.want(told["error"]["code"] == "NO_PENDING_WORK", told)
            pending = [path for path, at in state.cursors if at < self._tails[path]]
            self.area.want(not pending, f"nothing to claim, with {pending} of {state}")
            return
        self.area.want(answer.status == 200, answer)
        generation = told["generation"]
        self.area.want(generation > self._generation, f"generation {generation} came again")
        self._generation, self._token = generation, told["token"]
        self._said = {"wake_id": told["wake_id"], "generation": generation}
        self.area.want(_cursors(told) == state.cursors, f"{told}, not {state}")
        self.state = state._replace(held=True)

    async def _tell(self, calls: Caller, what: str, more: dict[str, object]) -> Response:
        bearer = {"authorization": f"Bearer {self._token}"}
        return await calls.call("POST", f"{self._path}/{what}", self._said | more, bearer)

    async def _ack(self, calls: Caller, state: Subscription) -> None:
        paths = self.chance.sample(self._paths, self.chance.randint(1, STREAMS))
        acks = {path: self._tails[path] for path in paths}
        done = self.chance.random() < 0.5
        after = Subscription(
            tuple((path, max(at, acks.get(path, at))) for path, at in state.cursors), not done
        )
        more: dict[str, object] = {
            "acks": [{"stream": path, "offset": at} for path, at in acks.items()]
        }
        if done:
            more["done"] = True
        await self.change("ack", after, self._tell(calls, "ack", more), 200)

    async def look(self, calls: Caller) -> Subscription | None:
        for path in self._paths:  # the last append may have been interrupted
            tail = (await calls.call("GET", f"{ROOT}{path}?offset=now")).headers[NEXT]
            self.area.want(tail >= self._tails[path], f"{path}: {tail}, not {self._tails[path]}")
            self._tails[path] = tail
        answer = await calls.call("GET", self._path)
        if answer.status == 404:
            return None
        held = False
        if self.state is not None and self.state.held:
            kept = await self._tell(calls, "ack", {})
            if kept.status not in (200, 409):
                raise Violation(f"{self.name}: {kept}")
            held = kept.status == 200
        return Subscription(_cursors(as_json(answer)), held)

    def weight(self) -> int:
        return STREAMS + 1


def _cursors(told: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((link["path"], link["acked_offset"]) for link in told["streams"]))


class SubscriptionLoad(Area):
    """Some workers that pull wakes."""

    name = "subscriptions"

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._owners = [SubscriptionOwner(self, f"sub-{number}") for number in range(OWNERS)]

    async def create(self) -> None:
        async with caller(self.site, patient=True) as calls:
            for owner in self._owners:
                await owner.create(calls)

    def workers(self) -> list[Coroutine[None, None, None]]:
        return [owner.work() for owner in self._owners]

    async def check(self) -> None:
        await all_judge(self._owners)

    async def last(self) -> None:
        await self.check()
