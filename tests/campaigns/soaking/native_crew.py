"""Everybody who works on native topics at once, and the accounts that are closed at the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from itertools import count
from typing import Any

import msgspec

from tests.campaigns.soaking.jobs import DELIVERIES_MAX, LEASE_MS, Queue
from tests.campaigns.soaking.ledger import Chain, Merged, Once, Sequence, Writers
from tests.campaigns.soaking.readers import (
    Account,
    Row,
    Socket,
    Watch,
    follow,
    follow_columns,
    read_all,
    read_late,
)
from tests.campaigns.soaking.site import Http2Client, Site
from tests.campaigns.soaking.topics import (
    Appends,
    Columns,
    Deletes,
    Keyed,
    Line,
    Plain,
    Produced,
    write_alone,
    write_together,
)

# So much that no reader falls behind it, and so little that it is reached in the warm-up.
CAP = 12_000
SLOW_CAP = 1_000  # of topics that get few records
APPEND_MAX = 250  # records of one append
BATCHED_CAP = 3_000  # of those that Spark reads or writes
TTL_MS = 60_000
PASSING = 5  # topics that come and go
PIPELINE_SECONDS_MAX = 300.0
LAKE_TOPICS = ("lake-a", "lake-b")
PIPELINE = "halves"
PIPELINE_SQL = (
    "select seq as n, data:n::bigint as m, data:of::string as of from source where seq % 2 = 0"
)
Work = Coroutine[Any, Any, None]


def configs() -> dict[str, dict[str, object]]:
    """The topics, and what they keep."""
    disk: dict[str, object] = {"durability": "disk"}
    capped: dict[str, object] = {"cap_records": CAP}
    few: dict[str, object] = {"cap_records": SLOW_CAP}
    archived = {"cap_records": BATCHED_CAP, "retain_until_archived": True}
    return {
        "keys": {"durability": "fsync", **capped},
        "shared": {**disk, **capped},
        "plain": {"durability": "memory", **capped},
        "columns": {**disk, "ttl_ms": TTL_MS},
        "deletes": disk,
        "sockets": {**disk, **few},
        "lake-a": {**disk, **archived},
        "lake-b": {"durability": "fsync", **archived},
        "pipe-in": {**disk, **capped},
        "pipe-out": {**disk, "cap_records": BATCHED_CAP},
        "copy-all": {**disk, **capped},
        "copy-half": {"durability": "fsync", **capped},
        "jobs-dead": {**disk, **few},
        "jobs": {
            **disk,
            "type": "queue",
            "lease_ms": LEASE_MS,
            "max_deliveries": DELIVERIES_MAX,
            "dead_letter": "jobs-dead",
        },
    }


def half(n: int) -> str:
    return "even" if n % 2 == 0 else "odd"


class NativeCrew:
    """Writers, readers, workers."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.lines = {name: Line() for name in configs()}
        self.deletes = Deletes(site.ledger)
        self.queue = Queue(site, "jobs", "jobs-dead", self.lines["jobs"])
        self.writers = Writers()
        ledger = site.ledger
        self.shared = Merged(ledger, "shared")
        self.all_sent = Chain(ledger, "shared, as its reader saw it")
        self.half_sent = Chain(ledger, "the even half of shared, as its reader saw it")
        self.copies = {name: Chain(ledger, name) for name in ("copy-all", "copy-half")}
        self.piped = Once(ledger, "pipe-out", count(2, 2))

    async def prepare(self) -> None:
        client = self.site.client()
        for name, config in configs().items():
            await client.json("PUT", f"/v0/topics/{name}", config)
        router = {"source": "shared", "dest": "copy-all", "guarantee": "exactly_once"}
        await client.json("PUT", "/v0/routers/all", router)
        some = {"source": "shared", "dest": "copy-half", "filter": ["tag", "Eq", "even"]}
        await client.json("PUT", "/v0/routers/half", some)
        pipeline = {
            "sources": [{"topic": "pipe-in", "alias": "source"}],
            "sql": PIPELINE_SQL,
            "dest": {"topic": "pipe-out"},
            "trigger": "15s",
        }
        await client.json("PUT", f"/v0/pipelines/{PIPELINE}", pipeline)
        await client.close()

    def account(self, who: str, name: str) -> Sequence:
        """A new account of a reader of a topic with one writer."""
        line, cap = self.lines[name], configs()[name].get("cap_records", 0)
        may_miss = self.deletes.may_miss if name == "deletes" else (lambda seq: False)

        def may_go() -> int:
            """The last seq that retention can have taken, with what is being appended."""
            if name == "columns":
                return line.head
            return line.head + APPEND_MAX - int(str(cap)) if cap else 0

        return Sequence(self.site.ledger, f"{who} of {name}", name, may_miss, may_go)

    def writing(self) -> dict[str, Work]:
        """Those who write, and end when it is time to stop."""
        site = self.site

        def alone(kind: type[Appends], name: str, many: int, every: float, tag: Any = None) -> Work:
            appends = kind(site, name, name, tag) if tag else kind(site, name, name)
            return write_alone(site, appends, self.lines[name], many, every)

        found = {
            "keys": alone(Keyed, "keys", 4, 0.12),
            "plain": alone(Plain, "plain", 12, 0.3),
            "columns": alone(Columns, "columns", APPEND_MAX, 5.0),
            "deletes": alone(Produced, "deletes", 5, 0.12, Deletes.tag),
            "lake-a": alone(Produced, "lake-a", 9, 0.25),
            "lake-b": alone(Keyed, "lake-b", 3, 0.25),
            "pipe-in": alone(Produced, "pipe-in", 9, 0.25),
            "jobs": alone(Keyed, "jobs", 5, 0.2),
            "deleter": self.deletes.run(site, "deletes", self.lines["deletes"]),
            "passing": self._passing(),
            "late keys": read_late(site, "keys", self.account, CAP),
            "late plain": read_late(site, "plain", self.account, CAP),
            "late columns": read_late(site, "columns", self.account, 0),
        }
        for number in range(3):
            of = f"shared-{number}"
            appends = Produced(site, "shared", of, half)
            found[of] = write_together(site, appends, of, self.writers, 2, 0.2)
        return found

    def reading(self) -> dict[str, Work]:
        """Those who read, and end when all is read and nobody writes."""
        site, ledger = self.site, self.site.ledger

        account = self.account
        followed = ("keys", "plain", "sockets", "lake-a", "lake-b", "pipe-in")
        found = {f"diff {name}": follow(site, name, account("diff", name)) for name in followed}
        found["diff deletes"] = follow(
            site, "deletes", account("diff", "deletes"), gone=self.deletes.seen
        )
        found["diff shared"] = follow(site, "shared", self.shared, each=self._copied)
        found["diff h2"] = follow(
            site, "shared", Merged(ledger, "shared over HTTP/2"), client=Http2Client(site)
        )
        found["diff columns"] = follow_columns(site, "columns", account("Arrow", "columns"))
        for name, chain in self.copies.items():
            found[f"diff {name}"] = follow(site, name, chain)
        for merged, names in {
            "shared": ("keys", "deletes", "plain"),
            "copy-all": ("columns", "keys"),
        }.items():
            watched: dict[str, Account] = {name: account("watch", name) for name in names}
            watched[merged] = Merged(ledger, f"watch of {merged}")
            found[f"watch with {merged}"] = Watch(site, watched).run()
        heard = {name: account("WebSocket", name) for name in ("plain", "sockets", "deletes")}
        found["WebSocket"] = Socket(site, heard, "sockets", self.lines["sockets"]).run()
        for number in range(3):
            found[f"worker {number}"] = self.queue.work(f"worker-{number}")
        found["pushed"] = self.queue.pushed("worker-pushed")
        found["dead letters"] = follow(
            site, "jobs-dead", Chain(ledger, "jobs-dead"), each=self.queue.bury
        )
        found["pipeline"] = self._pipeline()
        return found

    def _copied(self, row: Row) -> None:
        """A record of `shared` was read, in order: so it has to be in its copies."""
        self.all_sent.add(bytes(row.data))
        if row.tag == "even":
            self.half_sent.add(bytes(row.data))

    async def _passing(self) -> None:
        """Topics that are made, appended to, read, and deleted with all that they hold."""
        client = self.site.client()
        for turn in count():
            if self.site.stopping.is_set():
                return
            name = f"passing-{turn % PASSING}"
            records = [{"data": n} for n in range(turn % 7 + 1)]
            cuts = self.site.counts["requests without an answer"]
            await client.json("DELETE", f"/v0/topics/{name}")
            told = await client.json("POST", f"/v0/topics/{name}", {"records": records})
            read = await client.json("POST", f"/v0/topics/{name}/diff", {})
            if self.site.counts["requests without an answer"] == cuts:
                found = [(row["$seq"], row["data"]) for row in read["records"]]
                self.site.ledger.expect(
                    told["first_seq"] == 1 and found == [(n + 1, n) for n in range(len(records))],
                    f"{name}: made anew it was told {told}, and holds {found}",
                )
            self.site.counts["topics deleted"] += 1
            await self.site.pause(1.0)

    async def _pipeline(self) -> None:
        """Follow what the pipeline makes, until it has made all of it."""

        def take(row: Row) -> None:
            made = msgspec.json.decode(bytes(row.data))
            if (made["m"], made["of"]) != (made["n"], "pipe-in"):
                self.site.ledger.wrong(f"pipe-out: seq {row.seq} holds {made}")
            self.piped.take(made["n"])
            self.site.counts["records of the pipeline"] += 1

        account = Chain(self.site.ledger, "pipe-out")
        await follow(self.site, "pipe-out", account, each=take)
        deadline = time.monotonic() + PIPELINE_SECONDS_MAX
        while self.piped.next <= self.lines["pipe-in"].head and time.monotonic() < deadline:
            await asyncio.sleep(1.0)
            await follow(self.site, "pipe-out", account, each=take)

    async def close_accounts(self) -> dict[str, int]:
        """Compare what is left to compare; the heads of topics with one writer."""
        site = self.site
        self.shared.compare(self.writers)
        self.copies["copy-all"].compare(self.all_sent)
        self.copies["copy-half"].compare(self.half_sent)
        self.piped.finish(self.lines["pipe-in"].head)
        await self.queue.finish()
        client = site.client()
        for name in ("keys", "plain", "columns", "deletes", "sockets", *LAKE_TOPICS, "pipe-in"):
            account = self.account("last reader", name)
            head = await read_all(site, client, name, account)
            site.ledger.expect(
                head == self.lines[name].head == account.seq,
                f"{name}: its head is {head}, acknowledged {self.lines[name].head}",
            )
        return {name: line.head for name, line in self.lines.items()}

    def lags(self) -> dict[str, int]:
        """How far the pipeline is behind."""
        return {"pipeline": max(0, self.lines["pipe-in"].head - self.piped.next + 2)}
