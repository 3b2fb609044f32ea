"""The loads of queues and routers as areas of a server that is killed, and all areas by name."""

from __future__ import annotations

from collections.abc import Coroutine

from tests.harness.job_fleet import Fleet
from tests.harness.job_worker import QUEUES
from tests.harness.kill_area import Area
from tests.harness.router_load import RouterLoad
from tests.harness.s2_load import S2Load
from tests.harness.session_load import SessionLoad
from tests.harness.stream_load import StreamLoad
from tests.harness.subscription_load import SubscriptionLoad
from tests.harness.topic_load import TopicLoad
from tests.harness.watch_load import WatchLoad
from tests.support.server_lives import Site

JOBS = 120  # of each queue
WORKERS = 6
WRITERS = 3
WRITE_PACE_SECONDS = 0.03
FANS = 6


class QueueLoad(Area):
    """Workers of queues: claim, ack, nack, extend, dead letters, redrive."""

    name = "queues"

    def __init__(self, site: Site, seed: int) -> None:
        super().__init__(site, seed)
        self._fleet = Fleet(site, seed, workers=WORKERS, jobs=JOBS, crashes=0)

    async def create(self) -> None:
        await self._fleet.create()

    def workers(self) -> list[Coroutine[None, None, None]]:
        return self._fleet.everybody()

    async def check(self) -> None:
        await self._fleet.check_places()
        ledgers = self._fleet.ledgers.values()
        self.judged += sum(len(one.jobs) + len(one.grants) for one in ledgers)

    def calm(self) -> None:
        self._fleet.calm = True

    async def end(self) -> None:
        await self._fleet.drained()

    def finish(self) -> None:
        super().finish()
        self._fleet.finish()

    async def last(self) -> None:
        await self._fleet.check_end()
        self.judged += 3 * JOBS * len(QUEUES)


class RouterArea(Area):
    """Writers and readers of routers."""

    name = "routers"

    def __init__(self, site: Site, seed: int) -> None:
        super().__init__(site, seed)
        self._load = RouterLoad(
            site,
            seed,
            writers=WRITERS,
            crashes=0,
            writes=0,
            fans=FANS,
            pace_seconds=WRITE_PACE_SECONDS,
        )

    async def create(self) -> None:
        await self._load.create()

    def workers(self) -> list[Coroutine[None, None, None]]:
        return self._load.everybody()

    async def check(self) -> None:
        await self._load.check(everything=True)
        self.judged += sum(len(topic.records) for topic in self._load.seen.values())

    def finish(self) -> None:
        super().finish()
        self._load.finish()

    async def last(self) -> None:
        await self.check()
        await self._load.work_off()


# The queues are the first: what they count in the last life is what the server counted.
AREAS: tuple[type[Area], ...] = (
    QueueLoad,
    TopicLoad,
    RouterArea,
    StreamLoad,
    SubscriptionLoad,
    S2Load,
    SessionLoad,
    WatchLoad,
)
