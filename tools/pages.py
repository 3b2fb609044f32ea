"""What every tool that writes a page of the documentation does with it: write it, or compare."""

from __future__ import annotations

import sys
from pathlib import Path


def main(page: Path, text: str, tool: str) -> int:
    """Write the page, or with `--check` say whether it is what would be written."""
    if "--check" in sys.argv:
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            print(f"{page.name} is not up to date; run `python tools/{Path(tool).name}`")
            return 1
        return 0
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")
    return 0
