"""What a checkpoint costs in CPU per record, from large blocks and from blocks of one record."""

from __future__ import annotations

import time

from bench.measure import BATCH, NO_CHECKPOINTS, SINGLE, Measured, opened
from headrace.engine.engine import Engine

ROUNDS = 3
BATCHES = 4_000
SINGLES = 200_000
TOPICS = 100


def run(directory: str, quick: bool) -> dict[str, Measured]:
    scale = 50 if quick else 1
    rounds = 1 if quick else ROUNDS
    batched, single = [], []
    with opened(f"{directory}/batched", **NO_CHECKPOINTS) as engine:
        for _ in range(rounds):
            for n in range(BATCHES // scale):
                engine.append(f"orders-{n % TOPICS}", BATCH).result()
            batched.append(cost(engine, BATCHES // scale * len(BATCH.data)))
    with opened(f"{directory}/single", **NO_CHECKPOINTS) as engine:
        for _ in range(rounds):
            for _ in range(SINGLES // scale // TOPICS):
                tickets = [engine.append(f"orders-{t}", SINGLE) for t in range(TOPICS)]
                tickets[-1].result()
            single.append(cost(engine, SINGLES // scale))
    return {"checkpoint_batched": batched, "checkpoint_single": single}


def cost(engine: Engine, records: int) -> float:
    started = time.process_time()
    engine.checkpoint().result()
    return (time.process_time() - started) / records * 1e6
