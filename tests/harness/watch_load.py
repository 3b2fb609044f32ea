"""Watches on a server that is killed: writers, followers by server-sent events, changed configs.

What a follower was shown once is there after every kill, the same under the same seq: nothing is
shown before it is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

import msgspec

from headrace.client import Draft, Record
from tests.harness.job_worker import events
from tests.harness.kill_area import Area, Caller, Owner, all_judge, as_json, caller
from tests.support.server_lives import LOOK_SECONDS, Lost, Site, heard

TOPICS = {"w-fsync": "fsync", "w-disk": "disk", "w-memory": "memory"}
WATCHERS = 2
PAGE = 1_000
WRITE_PACE_SECONDS = 0.01
LATE_SECONDS_MAX = 30.0


class ConfigOwner(Owner[dict[str, int]]):
    """Changes the config of a topic."""

    async def create(self, calls: Caller) -> None:
        await self.act(calls)

    async def act(self, calls: Caller) -> None:
        wanted = {
            "ttl_ms": self.chance.randrange(10**8, 10**9),
            "cap_records": self.chance.randrange(10**6, 10**7),
        }
        path = f"/v0/topics/{self.name}"
        await self.change("config", wanted, calls.call("PUT", path, wanted), 200, 201)
        await asyncio.sleep(WRITE_PACE_SECONDS)

    async def look(self, calls: Caller) -> dict[str, int]:
        config = as_json(await calls.call("GET", f"/v0/topics/{self.name}"))["config"]
        return {name: config[name] for name in self.state}


class Watcher:
    """One follower of all topics, over all lives."""

    def __init__(self, area: WatchLoad) -> None:
        self._area = area
        self.shown: dict[str, list[object]] = {topic: [] for topic in TOPICS}

    async def work(self) -> None:
        area = self._area
        while not area.finished:
            await area.site.opened()
            with contextlib.suppress(Lost, OSError, asyncio.IncompleteReadError):
                async with caller(area.site) as calls:
                    await self._follow(calls)
            await asyncio.sleep(LOOK_SECONDS)

    async def _follow(self, calls: Caller) -> None:
        asked = {topic: {"from_seq": len(shown)} for topic, shown in self.shown.items()}
        answer = await calls.call("POST", "/v0/watch", {"topics": asked})
        self._area.want(answer.status == 200, answer)
        server = self._area.site.server
        reader, writer = await asyncio.open_connection(server.host, server.port)
        try:
            path = as_json(answer)["stream_url"]
            writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            self._area.want(head.startswith(b"HTTP/1.1 200 "), head)
            async for name, data in events(reader):
                self._area.want(name in ("record", "caught-up"), f"{name} {data}")
                if name == "record":
                    self._take(msgspec.json.decode(data))
                if self._area.finished:
                    return
        finally:
            writer.transport.abort()

    def _take(self, told: dict[str, Any]) -> None:
        shown = self.shown[told["topic"]]
        for record in told["records"]:
            right = record["$seq"] == len(shown) + 1
            self._area.want(right, f"{told['topic']}: {record} after {len(shown)}")
            shown.append(record["data"])


class WatchLoad(Area):
    """Writers, followers, and those that change configs."""

    name = "watches"

    def __init__(self, site: Site, seed: int) -> None:
        super().__init__(site, seed)
        self._acked: dict[str, dict[int, str]] = {topic: {} for topic in TOPICS}
        self._watchers = [Watcher(self) for _ in range(WATCHERS)]
        self._configs = [ConfigOwner(self, f"w-config-{n}", {}) for n in range(2)]

    async def create(self) -> None:
        async with self.site.client(patient=True) as client:
            for topic, durability in TOPICS.items():
                await client.put_topic(topic, {"durability": durability})
        async with caller(self.site, patient=True) as calls:
            for config in self._configs:
                await config.create(calls)

    def workers(self) -> list[Coroutine[None, None, None]]:
        return [
            *(self._write(topic) for topic in TOPICS),
            *(watcher.work() for watcher in self._watchers),
            *(config.work() for config in self._configs),
        ]

    async def _write(self, topic: str) -> None:
        """Each text once, whatever comes of it."""
        count = 0
        while not self.finished:
            await self.site.opened()
            with contextlib.suppress(Lost):
                async with self.site.client() as client:
                    while not self.finished:
                        count += 1
                        text = f"{topic} {count}"
                        done = await heard(client.append(topic, [Draft(text)]))
                        assert done.first_seq is not None
                        self._acked[topic][done.first_seq] = text
                        await asyncio.sleep(WRITE_PACE_SECONDS)
            await asyncio.sleep(LOOK_SECONDS)

    async def check(self) -> None:
        await all_judge(self._configs)
        async with self.site.client(patient=True) as client:
            for topic in TOPICS:
                found = [
                    record.data
                    async for record in client.follow(topic, to_head=True, limit=PAGE)
                    if isinstance(record, Record)
                ]
                self.want(len(found) == len(set(found)), f"{topic}: twice, {found}")
                for seq, text in self._acked[topic].items():
                    there = found[seq - 1] if seq <= len(found) else None
                    self.want(there == text, f"{topic}: {seq} is {there}, not {text}")
                for watcher in self._watchers:
                    shown = watcher.shown[topic]
                    same = shown == found[: len(shown)]
                    self.want(same, f"{topic}: shown {shown[-3:]}, {len(found)} are there")
                    self.judged += len(shown)

    async def end(self) -> None:
        """Followers are shown everything, in the end."""
        async with asyncio.timeout(LATE_SECONDS_MAX):
            for watcher in self._watchers:
                for topic, acked in self._acked.items():
                    last = max(acked, default=0)
                    while len(watcher.shown[topic]) < last:
                        await asyncio.sleep(LOOK_SECONDS)
