"""Times, trims, fences and ages of a stream against a model, over checkpoints, kills and restarts.

The model has every record that was ever stored.  Which of them are there is known but for trims
that are on their way: their records are there until a while after the trim, and gone soon after.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import FenceMismatch, HeadMismatch
from headrace.engine.engine import Engine
from headrace.engine.streams.trims import TRIM_DELAY_MS
from headrace.engine.topics.config import TopicConfig, make_config
from headrace.storage.block import KIND_BYTES, Batch
from tests.support.engines import Start, again, clock, engine, kill, restart, start
from tests.support.stream_calls import create, write

__all__ = ["again", "clock", "engine", "kill", "restart", "start"]

CALLS = 300
NAME = "s2:basin/stream"
TICK_MS = 50  # time goes on in steps, so that timers are at most so late
# A trim that comes while another one waits is done after that, with a delay of its own.
TRIM_MS_MAX = 2 * (TRIM_DELAY_MS + TICK_MS)


@dataclass
class Model:
    """What has to be true of the stream."""

    records: list[tuple[int, int, bytes]] = field(default_factory=list)  # ts, arrival, data
    fence: str = ""
    ttl_ms: int = 0
    trims: list[tuple[int, int]] = field(default_factory=list)  # since when, up to which seq
    floor: int = 0  # everything up to here was seen to be gone

    @property
    def last_ts(self) -> int:
        return self.records[-1][0] if self.records else 0

    def age(self, now: int) -> None:
        """Let go of the records that are too old."""
        if self.ttl_ms:
            for ts_arrival in self.records[self.floor :]:
                if ts_arrival[1] >= now - self.ttl_ms:
                    break
                self.floor += 1

    def trimmed(self, before_ms: int) -> int:
        """Up to where trims since before this time reach."""
        return max((to for since, to in self.trims if since <= before_ms), default=0)


class Lockstep:
    """Calls go to both; what the engine answers, the model must have known."""

    def __init__(self, seed: int, engine: Engine, clock: ManualClock, starts: list[Start]) -> None:
        self.chance = random.Random(seed)
        self.engine, self.clock, self.starts = engine, clock, starts
        self.model = Model()
        self.all_from = 0  # since when no restart has put off a trim
        create(engine, NAME, dialect="s2", config=config_of(0))

    def run(self, calls: int) -> None:
        actions = (
            [self.append] * 10 + [self.trim] * 2 + [self.wait] * 6 + [self.refused] * 2
            + [self.configure, self.seal, self.begin_again]
        )  # fmt: skip
        for _ in range(calls):
            self.chance.choice(actions)()
            self.check()

    # Calls

    def append(self, **wanted: object) -> None:
        model, chance, now = self.model, self.chance, self.clock.wall_ms()
        count = chance.randrange(1, 5)
        data = [chance.randbytes(chance.randrange(4)) for _ in range(count)]
        stamps: list[int] | None = None
        if chance.random() < 0.7:
            base = chance.choice([0, 5, now - 50, now + 50, model.last_ts])
            stamps = sorted(base + chance.randrange(9) for _ in range(count))
        batch = Batch(data, KIND_BYTES, timestamps=stamps)
        if chance.random() < 0.2:
            wanted["fence"] = chance.choice(["", "a", "b"])
        head = len(model.records) if chance.random() < 0.5 else None
        appended = write(
            self.engine, NAME, batch, None, head, fencing_token=model.fence, **wanted
        ).result()
        assert appended.first_seq == len(model.records) + 1
        for given, one in zip(stamps or [now] * count, data, strict=True):
            model.records.append((max(given, model.last_ts), now, one))
        assert appended.ts == model.last_ts
        model.fence = str(wanted.get("fence", model.fence))

    def trim(self) -> None:
        head = len(self.model.records)
        to = self.chance.choice([0, head, 2**60, self.chance.randrange(head + 5)])
        self.append(trim=to)
        self.model.trims.append((self.clock.wall_ms(), min(to, len(self.model.records))))

    def refused(self) -> None:
        """A wrong token, or a wrong head: told what is right, and nothing is stored."""
        head = len(self.model.records)
        with pytest.raises(FenceMismatch) as fence:
            write(self.engine, NAME, b"x", None, head, fencing_token="wrong").result()
        assert fence.value.detail["fencing_token"] == self.model.fence
        with pytest.raises(HeadMismatch) as other:
            write(self.engine, NAME, b"x", None, head + 1, fencing_token=self.model.fence).result()
        assert other.value.detail["head_seq"] == head

    def wait(self) -> None:
        for _ in range(self.chance.choice([1, 2, 10, 30])):
            self.clock.advance(self.chance.choice([1, TICK_MS]))
            self.engine.runtime.run()  # type: ignore[attr-defined]

    def configure(self) -> None:
        self.check()  # what the old config took is gone
        self.model.ttl_ms = self.chance.choice([0, 3_000, 20_000])
        own = self.chance.randbytes(3)
        self.engine.streams.update(NAME, config=config_of(self.model.ttl_ms), own=own).result()
        info = self.engine.streams.info(NAME)
        assert (info.config.ttl_ms, info.state.own) == (self.model.ttl_ms, own)

    def seal(self) -> None:
        self.engine.checkpoint().result()

    def begin_again(self) -> None:
        self.engine = self.chance.choice(self.starts)(self.engine)
        self.all_from = self.clock.wall_ms()

    # What is there

    def check(self) -> None:
        model, streams, now = self.model, self.engine.streams, self.clock.wall_ms()
        model.age(now)
        info = streams.info(NAME)
        assert (info.head_seq, info.last_ts) == (len(model.records), model.last_ts)
        assert info.state.fence == model.fence
        least = model.floor
        if now - self.all_from >= TRIM_MS_MAX:
            least = max(least, model.trimmed(now - TRIM_MS_MAX))
        most = max(model.floor, model.trimmed(now - TRIM_DELAY_MS))
        assert least <= info.earliest_seq - 1 <= most, (least, info.earliest_seq, most)
        model.floor = info.earliest_seq - 1
        page = self.engine.read(NAME, info.earliest_seq - 1, limit=10_000).result()
        assert page.tombstone is None
        left = model.records[model.floor :]
        assert [(one.ts, bytes(one.data)) for one in page.records] == [
            (ts, data) for ts, _, data in left
        ]
        some = [0, now, model.last_ts + 1, *(ts for ts, _, _ in left)]
        at = self.chance.choice(some) + self.chance.randrange(2)
        older = sum(1 for ts, _, _ in left if ts < at)
        assert streams.seek_ts(NAME, at).result() == model.floor + older + 1


def config_of(ttl_ms: int) -> TopicConfig:
    return make_config({"durability": "fsync", "ttl_ms": ttl_ms})


@pytest.mark.parametrize("seed", range(4))
def test_a_stream_is_what_the_model_says(
    seed: int, engine: Engine, clock: ManualClock, kill: Start, restart: Start
) -> None:
    lockstep = Lockstep(seed, engine, clock, [kill, restart])
    lockstep.run(CALLS)
    assert lockstep.model.floor > 0 and len(lockstep.model.records) > CALLS // 2
