"""A lake on the disk that loses power: the topic that waits for it, and a look at its table.

The topic forgets what the lake has (`retain_until_archived` with a small cap), so that a row that
the power loss took from the lake is nowhere.  A sync runs beside the load
(`tests/support/lake_syncing.py`) and is cut off with it.  The look is a program of its own, since
nothing that holds a file of the disk may be there when the power is lost.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from headrace.client import Client
from headrace.core.errors import HeadraceError, TopicNotFound
from headrace.testing.process import ServerProcess
from tests.harness.events import Violation
from tests.harness.power_actors import Actor, Found, difference
from tests.harness.power_history import History, State
from tests.harness.power_machine import DyingPopen, die_with_parent
from tests.support.checkout import ROOT

CAP_RECORDS: Final = 50
SYNCS_MAX: Final = 3  # after a power loss, until one must be right
LOOK_SECONDS_MAX: Final = 240.0
CONFIG: Final = {
    "durability": "fsync",
    "cap_records": CAP_RECORDS,
    "retain_until_archived": True,
}


class ArchivedTopic(Actor):
    """The writer of a topic whose older records are in the lake only."""

    def __init__(self, name: str, seed: int, lake: Path) -> None:
        super().__init__(name, seed)
        self.lake = lake
        self.history = History({"records": {}, "head": 0})
        self.head = 0
        self.mended = 0  # how often a table could not be used before a sync
        self.rows = 0
        self._created = False
        self._url = ""

    def create(self, server: ServerProcess) -> None:
        with Client(server.url) as client:
            client.put_topic(self.name, CONFIG)
        self._created = True

    def syncing(self, server: ServerProcess, seed: int) -> DyingPopen:
        """A program that syncs the topic, and tidies its table, until it is killed."""
        words = ["tests.support.lake_syncing", server.url, str(self.lake), self.name, str(seed)]
        return DyingPopen(
            [sys.executable, "-m", *words], env=_environment(), cwd=ROOT,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def step(self) -> None:
        texts, first = self.texts(30), self.head + 1

        def change(state: State) -> None:
            state["records"].update(enumerate(texts, first))
            state["head"] = first + len(texts) - 1

        self.history.begin(change)
        answer = self.client.append(self.name, texts)
        if answer.first_seq != first:
            raise Violation(f"{self.name}: the head is {self.head}, and the answer {answer}")
        self.head += len(texts)
        self.history.done()

    def judge(self, server: ServerProcess) -> int:
        self._url = server.url
        return super().judge(server)

    def check(self) -> int:
        try:
            found = Found(self.client, self.name)
        except TopicNotFound:
            raise Violation("the topic is gone") from None
        held = {seq: data for seq, (data, _) in found.records.items()}
        seen = look(self._url, self.lake, self.name)
        self._check_before(seen, found)
        rows = dict(seen["rows"])
        if len(rows) != len(seen["rows"]):
            raise Violation("a seq is a row of the lake twice")
        if seen["error"] or seen["findings"] or seen["gaps"]:
            raise Violation(f"{seen['error']}; {seen['findings']}; gaps {seen['gaps']}")
        self.rows = len(rows)

        def compare(state: State) -> str | None:
            if found.head != state["head"]:
                return f"the head is {found.head}, {state['head']} was due"
            if rows != state["records"]:
                return f"of the lake: {difference(rows, state['records'])}"
            later = {seq: data for seq, data in state["records"].items() if seq >= found.earliest}
            return None if held == later else f"of the topic: {difference(held, later)}"

        self.history.judge(compare)
        self.head = found.head
        return len(rows) + len(held)

    def _check_before(self, seen: dict[str, Any], found: Found) -> None:
        """What the server was told that the lake has it has, before anything mends it."""
        if seen["before_error"]:
            self.mended += 1
        elif seen["before"] < found.archived:
            raise Violation(
                f"the server was told of {found.archived} archived seqs, "
                f"and the table ends at {seen['before']}"
            )


def look(url: str, lake: Path, topic: str) -> dict[str, Any]:
    """Look at the table, sync, and look again."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.harness.power_lake", url, str(lake), topic],
        env=_environment(), cwd=ROOT, capture_output=True, timeout=LOOK_SECONDS_MAX, check=False,
        preexec_fn=die_with_parent,
    )  # fmt: skip
    if done.returncode:
        raise Violation(f"the look at the lake ended: {done.stderr.decode()[-2_000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}


def main() -> None:
    from headrace.lake.tables.layout import Lake
    from headrace.lake.tables.table import Table
    from headrace.lake.tables.tasks import run_inline
    from headrace.lake.writing.sync import Sync
    from headrace.lake.writing.verify import verify
    from headrace.spark.options import Connection
    from tests.support.lakes import gaps_in, rows_in

    url, root, topic = sys.argv[1:]
    lake, connection = Lake(root), Connection(url)
    said: dict[str, Any] = {"before": 0, "before_error": "", "error": None, "gaps": []}
    try:
        for name in lake.tables():
            said["before"] = Table(lake, name).place.watermark
    except HeadraceError as error:
        said["before_error"] = str(error)
    with Client(url, deadline_ms=30_000) as client:
        for _ in range(SYNCS_MAX):
            (result,) = Sync(client, connection, lake, run_inline).run([topic])
            said["error"] = result.error or result.report_error
            if said["error"] is None:
                break
        said["rows"], said["findings"] = [], []
        for name in lake.tables() if said["error"] is None else ():
            table = Table(lake, name)
            said["rows"] += [(row["seq"], json.loads(row["data"])) for row in rows_in(table)]
            said["gaps"] += gaps_in(table)
            found = verify(table, run_inline, client, connection)
            said["findings"] += [str(finding) for finding in found.findings]
    print(json.dumps(said))


if __name__ == "__main__":
    main()
