"""`python -m headrace`: the same command as the console script."""

from __future__ import annotations

from headrace.cli.main import console

if __name__ == "__main__":
    console()
