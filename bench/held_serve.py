"""`headrace serve` whose pressure is what a file says: the governor does not look, it is told.

    python bench/held_serve.py pressure.txt serve --data-dir ...

For measuring a rung of the ladder by itself (`case_http_rungs.py`).  Nothing else is changed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.cli.main import main
from headrace.engine.scheduling.governor import Governor, Load


def hold(source: Path) -> None:
    """At every look, take what the file says now."""

    def look(governor: Governor, load: Load, now_ms: int) -> float:
        governor.set_pressure(float(source.read_text()), now_ms)
        return governor.pressure

    setattr(Governor, "look", look)  # noqa: B010


if __name__ == "__main__":
    hold(Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
