"""What runs at the end of a turn of the loop: after the requests of the turn, and their answers."""

from __future__ import annotations

import asyncio

from headrace.core.thread_runtime import LoopRuntime


def test_what_is_last_comes_after_all_else_of_the_turn() -> None:
    """Asked for in a turn, it runs at the end of that turn; asked for at its end, in the next."""

    async def main() -> list[str]:
        runtime = LoopRuntime()
        said: list[str] = []

        def slice_of_work() -> None:
            said.append("slice")
            if said.count("slice") == 1:
                runtime.last(slice_of_work)
                runtime.soon(lambda: said.append("request"))

        def request() -> None:
            runtime.last(slice_of_work)
            said.append("asked")

        runtime.soon(request)
        runtime.soon(lambda: said.append("request"))
        await asyncio.sleep(0)
        said.append("loop")
        await asyncio.sleep(0)
        runtime.close()
        return said

    assert asyncio.run(main()) == ["asked", "request", "slice", "loop", "request", "slice"]


def test_what_is_last_needs_no_other_reason_for_a_turn() -> None:
    async def main() -> list[str]:
        runtime = LoopRuntime()
        said: list[str] = []
        runtime.last(lambda: said.append("slice"))
        await asyncio.sleep(0)
        runtime.last(lambda: said.append("drained"))
        assert not runtime.idle()
        runtime.drain()
        runtime.close()
        return said

    assert asyncio.run(main()) == ["slice", "drained"]
