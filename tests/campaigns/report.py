"""The report of a campaign: what was run, for how long, what it counted against its goals, and what
it found, with the command that shows each finding again.

The page docs/internals/reliability.md has a table of all published records, which is written here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.campaigns.campaign import Campaign
from tests.campaigns.record import Record, load, published

PAGE = Path("docs/internals/reliability.md")
BEGIN, END = "<!-- published campaigns -->\n", "<!-- the end of them -->\n"


def clock(seconds: float) -> str:
    """Seconds as 1:02:03."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def text(campaign: Campaign, record: Record) -> str:
    """The report as Markdown."""
    counts = record.counts
    lines = [
        f"# Campaign `{campaign.name}`",
        "",
        campaign.about,
        "",
        f"{clock(record.seconds)} in {len(record.runs)} runs, "
        f"{record.next_unit - 1 - len(record.unfinished):,} units done.",
        "",
        "| what | how many | goal |",
        "|---|---|---|",
    ]
    for name in sorted(counts.keys() | campaign.goals.keys()):
        goal = campaign.goals.get(name)
        said = "" if goal is None else f"{goal:,}: {'met' if counts[name] >= goal else 'not yet'}"
        lines.append(f"| {name} | {counts[name]:,} | {said} |")
    lines += ["", "| run | commit | took | processes |", "|---|---|---|---|"]
    lines += [
        f"| {run.started} | {run.commit[:12]} | {clock(run.seconds)} | {run.workers} |"
        for run in record.runs
    ]
    if record.notes:
        lines += ["", "| noted | |", "|---|---|"]
        lines += [f"| {name} | {value} |" for name, value in sorted(record.notes.items())]
    lines += ["", f"Findings: {record.findings_total}."]
    for finding in record.findings:
        lines += ["", f"- {finding.reason}", f"  `{finding.repeat}`"]
    return "\n".join(lines) + "\n"


def with_table(page: str, campaigns: Iterable[Campaign]) -> str:
    """The page with the table of what is published now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table(campaigns) + END + after


def table(campaigns: Iterable[Campaign]) -> str:
    """A row for each campaign, with what its goals count; the others are in its report."""
    lines = ["", "| campaign | took | units | what, and how much of the goal | findings |"]
    lines.append("|---|---|---|---|---|")
    for campaign in campaigns:
        record = load(published(campaign)) or Record()
        counts = record.counts
        done = ", ".join(
            f"{counts[name]:,} of {goal:,} {name}" for name, goal in campaign.goals.items()
        )
        units = record.next_unit - 1 - len(record.unfinished)
        lines.append(
            f"| `{campaign.name}` | {clock(record.seconds)} | {units:,} | {done} "
            f"| {record.findings_total} |"
        )
    return "\n".join([*lines, "", ""])
