"""The report of a campaign: what was run, for how long, what it counted against its goals, and what
it found, with the command that shows each finding again."""

from __future__ import annotations

from tests.campaigns.campaign import Campaign
from tests.campaigns.record import Record


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
