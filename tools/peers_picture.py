"""Draw docs/internals/peers.svg: what `./run bench --peers` measured of us and of other servers.

./run bench --peers --json > report.json
python tools/peers_picture.py report.json    keep its figures in peers.json, and draw them
python tools/peers_picture.py                draw those again
python tools/peers_picture.py --check        fail when the picture is not what would be drawn

Rows that promise the same are a group.  On the left is what a request costs the server, on the
right what the group is about: a rate, or how soon.  A line across a bar of ours is the goal.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "internals" / "peers.svg"
FIGURES = PICTURE.with_suffix(".json")

OURS = "headrace"
# Groups that are about how soon, not how many; the others are about a rate.
SOON = ("fsync", "http_sse")
# What is counted, where it is not requests: one, and several.
COUNTED = {
    "http_queue": ("job", "jobs"),
    "http_sse": ("delivery", "deliveries"),
    "http_batch": ("record", "records"),
    "http_arrow": ("row", "rows"),
}
KEPT = ("name", "case", "what", "promise", "versus", "rate", "cpu", "p50", "missing")

WIDTH, MARGIN = 960, 24
TOP, ROW, GROUP_HEAD, GROUP_GAP = 104, 32, 52, 12
BARS, BAR, LONGEST = (372, 668), 12, 186  # where they begin, how thick and how long they are
FIGURE_WIDTH = 8  # of a character of a figure
TINY = 1e-9
STYLE = """
    .page { fill: #f6f7f9; stroke: #c4cbd3 } .band { fill: #ffffff } text { fill: #1c2530 }
    .soft { fill: #56616e } .ours { fill: #1f5fa8 } .peer { fill: #a3adb8 }
    .goal { stroke: #c2410c; stroke-width: 2 }
    @media (prefers-color-scheme: dark) {
      .page { fill: #161b22; stroke: #3d444d } .band { fill: #1f262e } text { fill: #e6edf3 }
      .soft { fill: #9da7b3 } .ours { fill: #6cb0f5 } .peer { fill: #6b7682 }
      .goal { stroke: #f5975b }
    }
"""


class Group(NamedTuple):
    """Rows that promise the same: ours, and those that are compared with it."""

    title: str
    case: str
    rows: Sequence[Mapping[str, Any]]

    @property
    def figure(self) -> str:
        return "p50" if self.case in SOON else "rate"


def kept_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """What the picture needs of a report."""
    if report["quick"]:
        raise SystemExit("a quick run means nothing: measure without --quick")
    rows = [{name: row[name] for name in KEPT if name in row} for row in report["peers"]]
    goals = [
        {"ours": goal["ours"], "figure": goal["figure"], "at": at}
        for goal in report["goals"]
        if (at := goal_of(goal)) is not None
    ]
    return {"machine": report["machine"], "rows": rows, "goals": goals}


def goal_of(goal: Mapping[str, Any]) -> float | None:
    """The figure at which a goal is met; None where the peer was not measured."""
    if goal["peer"] is None:
        return float(goal["bound"])
    return float(goal["bound"] * goal["peer_value"]) if goal["peer_value"] else None


def groups_of(rows: Sequence[Mapping[str, Any]]) -> list[Group]:
    """The measured rows, by the row of ours that they are compared with."""
    measured = [row for row in rows if "versus" in row]
    by_name = {row["name"]: row for row in measured}
    found = []
    for name in dict.fromkeys(row["versus"] for row in measured):
        ours = by_name[name]
        title = ", ".join(filter(None, (ours["what"], ours["promise"])))
        same = [row for row in measured if row["versus"] == name]
        same.sort(key=lambda row: (row["name"] != name, row["name"].partition(" ")[0] != OURS))
        found.append(Group(title, ours["case"], same))
    return found


def shown(figure: str, value: float) -> str:
    """A figure as it stands beside its bar.

    >>> shown("p50", 1657.0), shown("rate", 32235.6), shown("cpu", 0.7323)
    ('1.66 ms', '32,200', '0.73 µs')
    """
    if figure == "rate":
        digits = max(len(str(round(value))) - 3, 0)
        return f"{round(value, -digits):,.0f}"
    value, unit = (value / 1e3, "ms") if figure == "p50" else (value, "µs")
    return f"{value:,.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


def draw_bar(
    x: int, y: int, row: Mapping[str, Any], figure: str, scale: float, goals: Sequence[float]
) -> str:
    """A bar, the goals across it, and its figure behind whatever is there."""
    kind = "ours" if row["name"].partition(" ")[0] == OURS else "peer"
    length = max(row[figure] * scale, 1.0)
    text = shown(figure, row[figure])
    words_at = length + 6
    for goal in sorted(goal * scale for goal in goals):
        if words_at - 6 <= goal <= words_at + FIGURE_WIDTH * len(text):
            words_at = goal + 6
    return (
        f'  <rect class="{kind}" x="{x}" y="{y}" width="{length:.1f}" height="{BAR}"/>\n'
        + "".join(draw_goal(x + goal * scale, y) for goal in goals)
        + f'  <text x="{x + words_at:.1f}" y="{y + 10}" font-size="12">{text}</text>\n'
    )


def draw_group(group: Group, top: int, goals: Sequence[Mapping[str, Any]]) -> str:
    height = GROUP_HEAD + ROW * len(group.rows)
    one, several = COUNTED.get(group.case, ("request", "requests"))
    about = f"{several} a second" if group.figure == "rate" else "how soon, p50"
    drawn = [
        f'  <rect class="band" x="{MARGIN}" y="{top}" width="{WIDTH - 2 * MARGIN}" '
        f'height="{height}" rx="8"/>\n'
        f'  <text x="{MARGIN + 14}" y="{top + 22}" font-size="14" font-weight="bold">'
        f"{escape(group.title)}</text>\n"
    ]
    for x, words in zip(BARS, (f"CPU of the server, one {one}", about), strict=True):
        drawn.append(f'  <text class="soft" x="{x}" y="{top + 42}" font-size="11">{words}</text>\n')
    scales = {name: LONGEST / longest(group, name, goals) for name in ("cpu", group.figure)}
    for number, row in enumerate(group.rows):
        y = top + GROUP_HEAD + number * ROW
        drawn.append(draw_name(row, group, y))
        for x, (figure, scale) in zip(BARS, scales.items(), strict=True):
            drawn.append(draw_bar(x, y, row, figure, scale, at_of(goals, row["name"], figure)))
    return "".join(drawn)


def at_of(goals: Sequence[Mapping[str, Any]], name: str, figure: str) -> list[float]:
    """Where the goals of a row are."""
    return [goal["at"] for goal in goals if (goal["ours"], goal["figure"]) == (name, figure)]


def longest(group: Group, figure: str, goals: Sequence[Mapping[str, Any]]) -> float:
    """The largest figure of a group, or its farthest goal."""
    at = [value for row in group.rows for value in at_of(goals, row["name"], figure)]
    return float(max(*(row[figure] for row in group.rows), *at, TINY))


def draw_goal(x: float, y: int) -> str:
    return f'  <path class="goal" d="M{x:.1f} {y - 3}v{BAR + 6}"/>\n'


def draw_name(row: Mapping[str, Any], group: Group, y: int) -> str:
    """The name of a row, and below it what it promises where that is not what ours does."""
    ours = group.rows[0]
    more = [row[part] for part in ("what", "promise") if row[part] != ours[part] and row[part]]
    weight = ' font-weight="bold"' if row["name"].partition(" ")[0] == OURS else ""
    return (
        f'  <text x="{MARGIN + 14}" y="{y + 10}" font-size="13"{weight}>'
        f"{escape(row['name'])}</text>\n"
        f'  <text class="soft" x="{MARGIN + 14}" y="{y + 23}" font-size="10.5">'
        f"{escape('; '.join(more))}</text>\n"
    )


def draw_heading(machine: Mapping[str, Any]) -> str:
    about = (
        f"{machine['cores']} cores of {machine['cpu']}, Linux {machine['kernel']}, Python"
        f" {machine['python']}; one generator for all, the servers in turns, each figure the best"
        " of its rounds"
    )
    legend = WIDTH - MARGIN - 264
    return (
        f'  <text x="{MARGIN + 14}" y="44" font-size="20" font-weight="bold">'
        "Beside other servers</text>\n"
        f'  <text class="soft" x="{MARGIN + 14}" y="68" font-size="12">{escape(about)}</text>\n'
        f'  <text class="soft" x="{MARGIN + 14}" y="86" font-size="12">Short is good on the left, '
        "and where it is about how soon; long is good where it is about a rate.</text>\n"
        f'  <rect class="ours" x="{legend}" y="34" width="{BAR}" height="{BAR}"/>\n'
        f'  <text x="{legend + 18}" y="44" font-size="12">Headrace</text>\n'
        f'  <rect class="peer" x="{legend + 90}" y="34" width="{BAR}" height="{BAR}"/>\n'
        f'  <text x="{legend + 108}" y="44" font-size="12">others</text>\n'
        f"{draw_goal(legend + 172, 34)}"
        f'  <text x="{legend + 182}" y="44" font-size="12">goal of ours</text>\n'
    )


def picture(kept: Mapping[str, Any]) -> str:
    """The whole picture, and in words what is in it."""
    groups, drawn, y = groups_of(kept["rows"]), [], TOP
    for group in groups:
        drawn.append(draw_group(group, y, kept["goals"]))
        y += GROUP_HEAD + ROW * len(group.rows) + GROUP_GAP
    missing = [f"{row['name']} ({row['missing']})" for row in kept["rows"] if "missing" in row]
    for at, text in enumerate(missing):
        words = f"not measured: {text}" if not at else text
        drawn.append(
            f'  <text class="soft" x="{MARGIN + 14}" y="{y + 14 + 15 * at}" font-size="11">'
            f"{escape(words)}</text>\n"
        )
    height = y + 15 * len(missing) + MARGIN // 2
    about = ". ".join(
        f"{group.title}: "
        + ", ".join(
            f"{row['name']} {shown('cpu', row['cpu'])}, {shown(group.figure, row[group.figure])}"
            for row in group.rows
        )
        for group in groups
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" aria-labelledby="title about" '
        'font-family="Helvetica, Arial, sans-serif">\n'
        '  <title id="title">Headrace beside other servers: CPU and rate</title>\n'
        f'  <desc id="about">{escape(about)}.</desc>\n  <style>{STYLE}  </style>\n'
        f'  <rect class="page" width="{WIDTH}" height="{height}" rx="10"/>\n'
        + draw_heading(kept["machine"])
        + "".join(drawn)
        + "</svg>\n"
    )


def main(arguments: Sequence[str]) -> int:
    """Keep the figures of a report, if one is named; draw, or compare."""
    parser = argparse.ArgumentParser(description="Draw the picture of the peers' table.")
    parser.add_argument("report", nargs="?", type=Path, help="of ./run bench --peers --json")
    parser.add_argument("--check", action="store_true", help="draw nothing, compare")
    options = parser.parse_args(arguments)
    if options.report is not None:
        kept = kept_of(json.loads(options.report.read_text(encoding="utf-8")))
        FIGURES.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    text = picture(json.loads(FIGURES.read_text(encoding="utf-8")))
    if options.check:
        if not PICTURE.exists() or PICTURE.read_text(encoding="utf-8") != text:
            print(f"{PICTURE.name} is not up to date; run `python tools/{Path(__file__).name}`")
            return 1
        return 0
    PICTURE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
