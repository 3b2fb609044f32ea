"""Write docs/internals/map.md: every package and module, with the first sentence of its docstring.

python tools/package_map.py            rewrite the page
python tools/package_map.py --check    fail when the page is not what would be written
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "headrace"
PAGE = ROOT / "docs" / "internals" / "map.md"

HEAD = """\
# The map

Every package of `src/headrace` and every module in it, with the sentence that it opens with: what
it is, and what it owns. Packages stand in the order in which they import each other, the lowest
first. [architecture.md](architecture.md) has the picture.

"""

TAIL = """
This page is written by `python tools/package_map.py`.
"""

# The lowest first; a package that is not named here comes after those that are.
ORDER = (
    "core", "api", "storage", "engine", "metrics", "wire", "server", "client", "spark", "lake",
    "pipelines", "console", "cli", "testing",
)  # fmt: skip


def first_sentence(path: Path) -> str:
    """The first sentence of a module's docstring, on one line."""
    opening = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(opening.split("\n\n")[0].split())
    return re.split(r"(?<=[.?])\s+(?=[A-Z`])", paragraph)[0].rstrip(":").replace("|", "\\|")


def place_of(package: Path) -> tuple[int, str]:
    """Where a package comes on the page."""
    name = package.relative_to(PACKAGE).as_posix()
    top = name.partition("/")[0]
    if name == ".":
        return -1, name
    return (ORDER.index(top) if top in ORDER else len(ORDER)), name


def section(package: Path) -> str:
    """A package: its own sentence, and a row for each of its modules."""
    name = package.relative_to(PACKAGE).as_posix()
    title = "headrace" if name == "." else name + "/"
    depth = "##" if "/" not in name else "###"
    lines = [f"{depth} {title}\n\n{first_sentence(package / '__init__.py')}\n"]
    modules = sorted(path for path in package.glob("*.py") if path.name != "__init__.py")
    if modules:
        lines.append("\n| module | what it is |\n|---|---|\n")
    for path in modules:
        link = f"[{path.name}](../../{path.relative_to(ROOT).as_posix()})"
        lines.append(f"| {link} | {first_sentence(path)} |\n")
    return "".join(lines)


def page() -> str:
    packages = sorted((path.parent for path in PACKAGE.rglob("__init__.py")), key=place_of)
    return HEAD + "\n".join(section(package) for package in packages) + TAIL


if __name__ == "__main__":
    # Beside this file, where Python looks first when it runs it.
    from pages import main

    sys.exit(main(PAGE, page(), __file__))
