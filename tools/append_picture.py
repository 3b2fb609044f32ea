"""Draw docs/internals/append.svg: the way of an append, by the functions that it goes through.

python tools/append_picture.py            draw the picture again
python tools/append_picture.py --check    fail when it is not what would be drawn

`STEPS` is the list of those functions; `tests/test_internals.py` checks that each of them exists.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "internals" / "append.svg"

DOWN, BOTTOM, UP = "down", "bottom", "up"


class Step(NamedTuple):
    """A function on the way: which it is, what it does, and on which leg of the way."""

    layer: str
    leg: str
    module: str
    name: str
    words: str


# In the order of the way: down to the log, and up again.
STEPS = (
    Step("server", DOWN, "server.http1.connection", "Http1Connection.data_received",
         "bytes become a request"),
    Step("server", DOWN, "server.app", "App.handle",
         "who may, is it time, which handler"),
    Step("server", DOWN, "server.turn", "Turn.run",
         "what the turn brought, handed over together"),
    Step("wire", DOWN, "wire.native.append", "AppendApi.append_turn",
         "JSON becomes records; data stays bytes"),
    Step("engine", DOWN, "engine.appending.append", "Appender.append_all",
         "check, find the topics, give out seqs"),
    Step("storage", DOWN, "storage.block_encoding", "encode_block",
         "all records become one run of bytes"),
    Step("storage", DOWN, "storage.wal.shard", "WalShard.stage",
         "takes what the turn brought"),
    Step("the log", BOTTOM, "storage.wal.shard", "WalShard.flush",
         "one write for all"),
    Step("the log", BOTTOM, "storage.fs", "RealFile.sync_data",
         "class fsync only: a thread syncs for all"),
    Step("engine", UP, "engine.appending.pending_append", "AppendCommit.settle",
         "in the order of the log; then the answers"),
    Step("engine", UP, "engine.topics.topic", "Topic.publish",
         "readers can see the records"),
    Step("wire", UP, "wire.native.append", "AppendApi._answer",
         "the bytes of the answers"),
    Step("server", UP, "server.http1.connection", "Http1Connection.answered",
         "written, in the order of the requests"),
)  # fmt: skip

LAYERS = ("server", "wire", "engine", "storage", "the log")
COLOURS = {DOWN: ("#e3eefa", "#1f5fa8"), BOTTOM: ("#fdf1e0", "#a86a1f"), UP: ("#e4f2e9", "#2c7a4b")}

WIDTH, MARGIN, LABEL = 960, 24, 90
BOX_WIDTH, BOX_HEIGHT, GAP, PAD = 376, 62, 18, 20
TOP = 74
LEFT = MARGIN + LABEL
RIGHT = WIDTH - MARGIN - BOX_WIDTH - 16


class Box(NamedTuple):
    """Where a step is drawn."""

    step: Step
    x: int
    y: int


def of(layer: str, leg: str) -> list[Step]:
    return [step for step in STEPS if (step.layer, step.leg) == (layer, leg)]


def band_height(layer: str) -> int:
    """As high as the longer of its two columns; the log has its steps side by side."""
    rows = max(1, len(of(layer, DOWN)), len(of(layer, UP)))
    return rows * (BOX_HEIGHT + GAP) - GAP + 2 * PAD


def places() -> tuple[list[Box], dict[str, tuple[int, int]]]:
    """Where each step is, and where each layer begins and ends."""
    boxes, bands, y = [], {}, TOP
    for layer in LAYERS:
        height = band_height(layer)
        bands[layer] = (y, y + height)
        for at, step in enumerate(of(layer, DOWN)):
            boxes.append(Box(step, LEFT, y + PAD + at * (BOX_HEIGHT + GAP)))
        for at, step in enumerate(of(layer, BOTTOM)):
            boxes.append(Box(step, (LEFT, RIGHT)[at], y + PAD))
        # The way up begins at the bottom of its layer.
        for at, step in enumerate(of(layer, UP)):
            place = y + height - PAD - BOX_HEIGHT - at * (BOX_HEIGHT + GAP)
            boxes.append(Box(step, RIGHT, place))
        y += height + 8
    order = {step: at for at, step in enumerate(STEPS)}
    return sorted(boxes, key=lambda box: order[box.step]), bands


def draw_band(layer: str, top: int, bottom: int) -> str:
    return (
        f'  <rect x="{MARGIN}" y="{top}" width="{WIDTH - 2 * MARGIN}" height="{bottom - top}" '
        'rx="8" fill="#eef0f3"/>\n'
        f'  <text x="{MARGIN + 14}" y="{(top + bottom) / 2 + 5:.0f}" font-size="16" '
        f'font-weight="bold" fill="#56616e">{layer}</text>\n'
    )


def draw_box(box: Box, number: int) -> str:
    fill, stroke = COLOURS[box.step.leg]
    x, y = box.x, box.y
    where = box.step.module.replace(".", "/") + ".py"
    return (
        f'  <rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="7" '
        f'fill="{fill}" stroke="{stroke}" stroke-width="1.5"/>\n'
        f'  <circle cx="{x + 24}" cy="{y + BOX_HEIGHT / 2:.0f}" r="13" fill="{stroke}"/>\n'
        f'  <text x="{x + 24}" y="{y + BOX_HEIGHT / 2 + 5:.0f}" font-size="14" fill="#ffffff" '
        f'font-weight="bold" text-anchor="middle">{number}</text>\n'
        f'  <text x="{x + 48}" y="{y + 20}" font-size="14" font-weight="bold">'
        f"{box.step.name}</text>\n"
        f'  <text x="{x + 48}" y="{y + 37}" font-size="13">{box.step.words}</text>\n'
        f'  <text x="{x + 48}" y="{y + 53}" font-size="11" fill="#56616e">{where}</text>\n'
    )


def draw_arrow(start: Box, end: Box) -> str:
    colour = COLOURS[end.step.leg if start.step.leg == BOTTOM else start.step.leg][1]
    middle = BOX_WIDTH // 2
    if start.y == end.y:
        path = f"M{start.x + BOX_WIDTH} {start.y + BOX_HEIGHT / 2:.0f}H{end.x - 4}"
    elif start.y < end.y:
        path = f"M{start.x + middle} {start.y + BOX_HEIGHT}V{end.y - 4}"
    else:
        path = f"M{start.x + middle} {start.y}V{end.y + BOX_HEIGHT + 4}"
    leg = next(leg for leg, (_, stroke) in COLOURS.items() if stroke == colour)
    return (
        f'  <path d="{path}" fill="none" stroke="{colour}" stroke-width="2.5" '
        f'marker-end="url(#{leg})"/>\n'
    )


def picture() -> str:
    boxes, bands = places()
    height = bands[LAYERS[-1]][1] + MARGIN
    markers = "".join(
        f'    <marker id="{leg}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="12" '
        'markerHeight="12" markerUnits="userSpaceOnUse" orient="auto">'
        f'<path d="M0 0 10 5 0 10z" fill="{stroke}"/></marker>\n'
        for leg, (_, stroke) in COLOURS.items()
    )
    about = "; ".join(f"{step.name}: {step.words}" for step in STEPS)
    heads = (
        (LEFT, "Down: each request of a turn"),
        (RIGHT, "Up: all of them, when their class is met"),
    )
    titles = "".join(
        f'  <text x="{x}" y="54" font-size="16" font-weight="bold">{words}</text>\n'
        for x, words in heads
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" aria-labelledby="title about" '
        'font-family="Helvetica, Arial, sans-serif" fill="#1c2530">\n'
        '  <title id="title">The way of an append</title>\n'
        f'  <desc id="about">{about}.</desc>\n  <defs>\n{markers}  </defs>\n'
        f'  <rect width="{WIDTH}" height="{height}" rx="10" fill="#f6f7f9" stroke="#c4cbd3"/>\n'
        + titles
        + "".join(draw_band(layer, *bands[layer]) for layer in LAYERS)
        + "".join(draw_arrow(start, end) for start, end in pairwise(boxes))
        + "".join(draw_box(box, number) for number, box in enumerate(boxes, start=1))
        + "</svg>\n"
    )


if __name__ == "__main__":
    # Beside this file, where Python looks first when it runs it.
    from pages import main

    sys.exit(main(PICTURE, picture(), __file__))
