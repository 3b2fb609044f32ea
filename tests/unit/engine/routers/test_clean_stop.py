"""A clean stop of an engine on an event loop: what is left to forward is forwarded, once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace import Engine, Settings
from headrace.engine.routers.drain import Drains
from headrace.engine.routers.state import Router, RouterOptions

ROUTERS = 40
RECORDS = 5


async def loaded(directory: Path) -> Engine:
    """An engine with records that no router has copied yet."""
    engine = Engine.prepare_async(directory, Settings(data_dir=str(directory)))
    await engine.recover_async()
    engine.govern()
    for number in range(ROUTERS):
        await engine.put_topic(f"d{number}", {"durability": "fsync"})
        await engine.routers.put(f"r{number}", RouterOptions(source="s", dest=f"d{number}"))
    engine.state.throttle.govern(1.0)
    for number in range(RECORDS):
        engine.append("s", [b"%d" % number])
    engine.flush()
    return engine


def test_a_stop_under_pressure_forwards_what_is_left(tmp_path: Path) -> None:
    """Under pressure syncs wait for a timer of the loop, which a stop does not let ring."""

    async def main() -> list[int]:
        engine = await loaded(tmp_path)
        assert engine.state.shards[0].syncs.window_ms > 0, "there is no pressure"
        engine.close()
        return [engine.state.by_name[f"d{number}"].head for number in range(ROUTERS)]

    assert asyncio.run(main()) == [RECORDS] * ROUTERS


def test_a_stop_asks_once_for_what_cannot_be_forwarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing moves, a thousand more tries would take the stop minutes, and move nothing."""
    asked = []
    run = Drains.run

    def counted(drains: Drains, routers: list[Router], *, give_up: bool = False) -> object:
        asked.append(len(routers))
        return run(drains, routers, give_up=give_up)

    async def main() -> None:
        engine = await loaded(tmp_path)
        engine.state.throttle.stop()
        engine.state.forwarding.hold()  # type: ignore[union-attr]
        monkeypatch.setattr(Drains, "run", counted)
        engine.close()

    asyncio.run(main())
    assert asked == [ROUTERS]
    with Engine.open(tmp_path, Settings(data_dir=str(tmp_path))) as engine:
        for number in range(ROUTERS):
            page = engine.read(f"d{number}").result()
            assert page.next_from_seq == RECORDS
