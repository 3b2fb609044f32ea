"""Starts the benchmarks, whether as `python -m bench` or as `python bench`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

if __name__ == "__main__":
    # As a directory, Python puts that directory first, where our module names could hide others.
    sys.path[:] = [p for p in sys.path if not p or Path(p).resolve() != ROOT / "bench"]
    sys.path[:0] = [str(ROOT)]
    if "headrace" not in sys.modules:
        sys.path.append(str(ROOT / "src"))

    from bench.command import main

    sys.exit(main())
