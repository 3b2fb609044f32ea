"""What an append and a read of the tail cost as a topic grows from 10,000 to 10,000,000 records."""

from __future__ import annotations

import sys
import time

from bench.measure import SINGLE, Measured, Partner, best_cost, payloads, settings_of
from headrace.engine.engine import Engine
from headrace.storage.block import Batch

SMALL = 10_000
LARGE = 10_000_000
FILL_RECORDS = 1_000  # an append
FILLS_PER_SEAL = 1_000
ROUNDS = 30
APPENDS = 1_600
READS = 400
TAIL = 100


def run(directory: str, quick: bool) -> dict[str, Measured]:
    large = SMALL * 10 if quick else LARGE
    rounds = 2 if quick else ROUNDS
    partners = [
        Partner("case_growth:serve", directory=f"{directory}/{records}", records=records)
        for records in (SMALL, large)
    ]
    for partner in partners:
        partner.ask()
    # In turns, so that whatever else the machine does meets both.
    costs: list[list[tuple[float, float]]] = [[], []]
    for _ in range(rounds):
        for partner, samples in zip(partners, costs, strict=True):
            samples.append(partner.ask())
    for partner in partners:
        partner.close()
    appends = [best_cost([sample[0] for sample in samples]) for samples in costs]
    reads = [best_cost([sample[1] for sample in samples]) for samples in costs]
    return {
        "growth_append": appends[1],
        "growth_append_ratio": appends[1] / appends[0],
        "growth_read": reads[1],
        "growth_read_ratio": reads[1] / reads[0],
    }


def serve(directory: str, records: int) -> None:
    """Fill a topic, then measure one round for each line of standard input."""
    batch = Batch(payloads(FILL_RECORDS))
    with Engine.open(directory, settings_of(directory)) as engine:
        for n in range(records // FILL_RECORDS):
            engine.append("orders", batch).result()
            if n % FILLS_PER_SEAL == 0:  # so that the fill never outruns the sealing
                engine.checkpoint().result()
        engine.checkpoint().result()
        sys.stdin.readline()
        print("null", flush=True)
        while sys.stdin.readline():
            appends, reads = one_round(engine)
            print(f"[{appends}, {reads}]", flush=True)
        engine.abandon()


def one_round(engine: Engine) -> tuple[float, float]:
    """Microseconds of CPU (an append, a read of the tail)."""
    starts = [time.process_time()]
    for _ in range(APPENDS // 32):
        tickets = [engine.append("orders", SINGLE) for _ in range(32)]
        tickets[-1].result()
    starts.append(time.process_time())
    for _ in range(READS):
        head = engine.topic("orders").head_seq
        assert engine.read("orders", head - TAIL).result().count == TAIL
    starts.append(time.process_time())
    return (starts[1] - starts[0]) / APPENDS * 1e6, (starts[2] - starts[1]) / READS * 1e6
