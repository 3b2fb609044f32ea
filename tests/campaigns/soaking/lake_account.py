"""The account of the lake: every record of the synced topics is a row, once, with its bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tests.campaigns.soaking.content import payload
from tests.campaigns.soaking.lives import lake


def close(directory: Path, url: str, topics: tuple[str, ...], heads: dict[str, int]) -> list[str]:
    """Bring the rest into the lake, have it verified, and compare the rows; what is wrong."""
    wrong = []
    code, _, complaints = lake(directory, "sync", "--topics", ",".join(topics), "--url", url)
    if code:
        wrong.append(f"lake sync ended with {code}: {complaints}")
    code, said, complaints = lake(directory, "verify", "--url", url)
    if code:
        wrong.append(f"lake verify ended with {code}: {said} {complaints}")
    for topic in topics:
        tables = list((directory / "lake").glob(f"*-{topic}"))
        if len(tables) != 1:
            wrong.append(f"{topic} has {len(tables)} tables in the lake")
            continue
        wrong += compare(tables[0], topic, heads.get(topic, -1))
    return wrong


def compare(table: Path, topic: str, head: int) -> list[str]:
    """What is wrong with the rows of a table that has to hold records 1 to `head`."""
    seen = bytearray(head + 1)
    bad = 0
    for batch in DeltaTable(str(table)).to_pyarrow_dataset().to_batches(columns=["seq", "data"]):
        seqs: list[Any] = batch["seq"].to_pylist()
        for seq, data in zip(seqs, batch["data"].to_pylist(), strict=True):
            if not 1 <= seq <= head or seen[seq]:
                return [f"{table.name}: a row has seq {seq}, which is beyond {head}, or twice"]
            seen[seq] = 1
            bad += data != payload(topic, seq)
    missing = head - sum(seen)
    wrong = []
    if missing:
        first = seen.index(0, 1)
        wrong.append(f"{table.name}: {missing} of {head} rows are missing, the first is {first}")
    if bad:
        wrong.append(f"{table.name}: {bad} rows do not hold what was appended")
    return wrong
