"""Draw docs/internals/architecture.svg: the packages, and which imports which, read from the code.

python tools/architecture_picture.py            draw the picture again
python tools/architecture_picture.py --check    fail when it is not what would be drawn

A package is a box with the names of its sub-packages.  An arrow leads from a package to one that it
imports; an arrow that follows from others is left out.  A package lies below all that import it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "headrace"
PICTURE = ROOT / "docs" / "internals" / "architecture.svg"

# Sub-packages that are boxes of their own, because a server imports one half and not the other.
APART = ("lake/serving", "pipelines/registry")

# Where a box lies, from 0 (left) to 1 (right), and its colour: what a server runs, what runs beside
# a server, what both use.  A package that is not named lies in the middle.
SERVER, BESIDE, SHARED = "server", "beside", "shared"
BOXES = {
    "cli": (0.5, SHARED),
    "server": (0.16, SERVER),
    "wire": (0.16, SERVER),
    "metrics": (0.16, SERVER),
    "pipelines/registry": (0.16, SERVER),
    "engine": (0.16, SERVER),
    "console": (0.45, SERVER),
    "lake/serving": (0.5, SERVER),
    "testing": (0.45, SHARED),
    "storage": (0.31, SHARED),
    "pipelines": (0.83, BESIDE),
    "lake": (0.5, BESIDE),
    "spark": (0.8, BESIDE),
    "client": (0.8, BESIDE),
    "api": (0.62, SHARED),
    "core": (0.33, SHARED),
}
COLOURS = {
    SERVER: ("#e3eefa", "#1f5fa8"),
    BESIDE: ("#e4f2e9", "#2c7a4b"),
    SHARED: ("#ffffff", "#56616e"),
}
LEGEND = {
    SERVER: "what a server runs",
    BESIDE: "what runs beside a server",
    SHARED: "what both use",
}

WIDTH, MARGIN = 960, 30
BOX_WIDTH, BOX_HEIGHT, LAYER_HEIGHT = 236, 90, 132
LINE_WIDTH = 18  # what a line takes of a layer that it only passes through
TEXT_COLUMNS = 36
TOP = 64
PORT_GAP = 26  # between two arrows at one side of a box


class Spot(NamedTuple):
    """A box, or the place where a line passes a layer."""

    name: str
    layer: int
    is_box: bool


def box_of(parts: tuple[str, ...]) -> str | None:
    """The box that a module of the package belongs to; None for the top of the package itself."""
    if len(parts) < 2:
        return None
    two = "/".join(parts[:2])
    return two if two in APART else parts[0]


def imported_by(path: Path) -> Iterable[tuple[str, ...]]:
    """What a module imports of this package, as parts of a path."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            first, *rest = name.split(".")
            if first == "headrace":
                yield tuple(rest)


@cache
def imports() -> dict[str, frozenset[str]]:
    """Which boxes each box imports."""
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        box = box_of(path.relative_to(PACKAGE).parts)
        if box is None:
            continue
        wanted = {box_of((*parts, "")) for parts in imported_by(path)}
        found.setdefault(box, set()).update(name for name in wanted if name not in (None, box))
    known = found.keys()
    return {box: frozenset(name for name in names if name in known) for box, names in found.items()}


def reach(box: str, graph: dict[str, frozenset[str]]) -> frozenset[str]:
    """All boxes below a box."""
    below: set[str] = set()
    waiting = list(graph[box])
    while waiting:
        name = waiting.pop()
        if name not in below:
            below.add(name)
            waiting += graph[name]
    return frozenset(below)


def without_shortcuts(graph: dict[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """The same without arrows that follow from others."""
    below = {box: reach(box, graph) for box in graph}
    return {
        box: frozenset(
            name for name in names if not any(name in below[other] for other in names - {name})
        )
        for box, names in graph.items()
    }


def layers_of(graph: dict[str, frozenset[str]]) -> dict[str, int]:
    """How far above the ground each box lies: above all that it imports."""
    layers: dict[str, int] = {}

    def layer(box: str) -> int:
        if box not in layers:
            layers[box] = 1 + max((layer(name) for name in graph[box]), default=-1)
        return layers[box]

    for box in sorted(graph):
        layer(box)
    return layers


def routes_of(
    graph: dict[str, frozenset[str]], layers: dict[str, int]
) -> dict[tuple[str, str], list[Spot]]:
    """Each arrow as the spots that it goes through, from top to bottom."""
    routes = {}
    for box in sorted(graph):
        for name in sorted(graph[box]):
            between = range(layers[box] - 1, layers[name], -1)
            passing = [Spot(f"{box} > {name}", layer, False) for layer in between]
            ends = Spot(box, layers[box], True), Spot(name, layers[name], True)
            routes[box, name] = [ends[0], *passing, ends[1]]
    return routes


def hint(spot: Spot) -> float:
    """Where a spot would like to be, by the table; a line goes straight down to its end."""
    name = spot.name if spot.is_box else spot.name.split(" > ")[1]
    return BOXES.get(name, (0.5, SHARED))[0]


def width_of(spot: Spot) -> int:
    return BOX_WIDTH if spot.is_box else LINE_WIDTH


def spread(row: list[Spot], wished: dict[Spot, float]) -> dict[Spot, float]:
    """Places for the spots of a layer: near their wishes, in this order, none upon another."""
    gap = 14
    at: dict[Spot, float] = {}
    left = float(MARGIN)
    for spot in row:
        at[spot] = max(wished[spot], left + width_of(spot) / 2)
        left = at[spot] + width_of(spot) / 2 + gap
    right = float(WIDTH - MARGIN)
    for spot in reversed(row):
        at[spot] = min(at[spot], right - width_of(spot) / 2)
        right = at[spot] - width_of(spot) / 2 - gap
    return at


def places(routes: dict[tuple[str, str], list[Spot]], boxes: Iterable[Spot]) -> dict[Spot, float]:
    """The x of each spot: where it would like to be, as far as its neighbours leave room."""
    spots = {*boxes, *(spot for route in routes.values() for spot in route)}
    wished = {spot: MARGIN + hint(spot) * (WIDTH - 2 * MARGIN) for spot in spots}
    rows: dict[int, list[Spot]] = {}
    for spot in sorted(spots, key=lambda spot: (wished[spot], spot)):
        rows.setdefault(spot.layer, []).append(spot)
    return {spot: x for row in rows.values() for spot, x in spread(row, wished).items()}


def parts_of(box: str) -> list[str]:
    """The names of the sub-packages of a box."""
    directory = PACKAGE / box
    found = sorted(path.parent.name for path in directory.glob("*/__init__.py"))
    return [name for name in found if f"{box}/{name}" not in APART]


def in_lines(words: list[str]) -> list[str]:
    """The names on as few lines as it takes."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(word) + 3 <= TEXT_COLUMNS:
            lines[-1] += f" · {word}"
        else:
            lines.append(word)
    return lines


def y_of(layer: int, highest: int) -> int:
    """The top of the boxes of a layer."""
    return TOP + (highest - layer) * LAYER_HEIGHT


def draw_box(box: str, x: float, y: int) -> str:
    fill, stroke = COLOURS[BOXES.get(box, (0.5, SHARED))[1]]
    lines = in_lines(parts_of(box))
    first = y + BOX_HEIGHT / 2 + 6 - 7.5 * len(lines)
    text = [
        f'  <rect x="{x - BOX_WIDTH / 2:.0f}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" '
        f'rx="7" fill="{fill}" stroke="{stroke}" stroke-width="1.5"/>\n',
        f'  <text x="{x:.0f}" y="{first:.0f}" font-size="17" font-weight="bold">{box}/</text>\n',
    ]
    for number, line in enumerate(lines, start=1):
        text.append(
            f'  <text x="{x:.0f}" y="{first + 4 + 15 * number:.0f}" font-size="12" '
            f'fill="#56616e">{line}</text>\n'
        )
    return "".join(text)


def ports(
    routes: dict[tuple[str, str], list[Spot]], at: dict[Spot, float]
) -> dict[tuple[str, str], tuple[float, float]]:
    """The x at which each arrow leaves its box and enters the other: side by side, not crossing."""
    leaving: dict[str, list[tuple[float, tuple[str, str]]]] = {}
    entering: dict[str, list[tuple[float, tuple[str, str]]]] = {}
    for arrow, route in routes.items():
        leaving.setdefault(arrow[0], []).append((at[route[1]], arrow))
        entering.setdefault(arrow[1], []).append((at[route[-2]], arrow))

    def shifts(
        ends: dict[str, list[tuple[float, tuple[str, str]]]],
    ) -> dict[tuple[str, str], float]:
        return {
            arrow: (number - (len(found) - 1) / 2) * PORT_GAP
            for found in ends.values()
            for number, (_, arrow) in enumerate(sorted(found))
        }

    out, into = shifts(leaving), shifts(entering)
    return {
        arrow: (at[route[0]] + out[arrow], at[route[-1]] + into[arrow])
        for arrow, route in routes.items()
    }


def draw_arrow(
    route: list[Spot], at: dict[Spot, float], ends: tuple[float, float], highest: int
) -> str:
    """A curve through all spots; straight down where it passes a layer."""
    start, *between, end = route
    x, y = ends[0], y_of(start.layer, highest) + BOX_HEIGHT
    path = [f"M{x:.0f} {y}"]
    for spot in (*between, end):
        to = ends[1] if spot is end else at[spot]
        top = y_of(spot.layer, highest) - (3 if spot is end else 0)
        half = (y + top) / 2
        path.append(f"C{x:.0f} {half:.0f} {to:.0f} {half:.0f} {to:.0f} {top}")
        if spot is not end:
            path.append(f"V{top + BOX_HEIGHT}")
        x, y = to, top + BOX_HEIGHT
    side = BOXES.get(start.name, (0.5, SHARED))[1]
    colour = COLOURS[side][1]
    return (
        f'  <path d="{"".join(path)}" fill="none" stroke="{colour}" stroke-width="1.8" '
        f'marker-end="url(#{side})"/>\n'
    )


def draw_legend() -> str:
    text, x = [], MARGIN
    for side, words in LEGEND.items():
        fill, stroke = COLOURS[side]
        text.append(
            f'  <rect x="{x}" y="22" width="22" height="16" rx="4" fill="{fill}" '
            f'stroke="{stroke}" stroke-width="1.5"/>\n'
            f'  <text x="{x + 30}" y="35" font-size="14" text-anchor="start">{words}</text>\n'
        )
        x += 50 + 8 * len(words)
    text.append(
        f'  <text x="{WIDTH - MARGIN}" y="35" font-size="14" fill="#56616e" '
        'text-anchor="end">an arrow: imports</text>\n'
    )
    return "".join(text)


def picture() -> str:
    every = imports()
    graph = without_shortcuts(every)
    layers = layers_of(every)
    highest = max(layers.values())
    boxes = [Spot(box, layer, True) for box, layer in sorted(layers.items())]
    routes = routes_of(graph, layers)
    at = places(routes, boxes)
    ends = ports(routes, at)
    height = y_of(0, highest) + BOX_HEIGHT + MARGIN
    words = "; ".join(f"{box} imports {', '.join(sorted(graph[box])) or 'none'}" for box in graph)
    markers = "".join(
        f'    <marker id="{side}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="11" '
        'markerHeight="11" markerUnits="userSpaceOnUse" orient="auto">'
        f'<path d="M0 0 10 5 0 10z" fill="{colour}"/></marker>\n'
        for side, (_, colour) in COLOURS.items()
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" aria-labelledby="title about" '
        'font-family="Helvetica, Arial, sans-serif" fill="#1c2530" text-anchor="middle">\n'
        '  <title id="title">The packages of Headrace</title>\n'
        f'  <desc id="about">{words}.</desc>\n  <defs>\n{markers}  </defs>\n'
        f'  <rect width="{WIDTH}" height="{height}" rx="10" fill="#f6f7f9" stroke="#c4cbd3"/>\n'
        + draw_legend()
        + "".join(draw_arrow(routes[key], at, ends[key], highest) for key in sorted(routes))
        + "".join(draw_box(spot.name, at[spot], y_of(spot.layer, highest)) for spot in boxes)
        + "</svg>\n"
    )


if __name__ == "__main__":
    # Beside this file, where Python looks first when it runs it.
    from pages import main

    sys.exit(main(PICTURE, picture(), __file__))
