"""`./run test --campaign NAME`: what the words of the command mean."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.campaigns import report
from tests.campaigns.campaign import Campaign
from tests.campaigns.record import Record, published, save
from tests.campaigns.runner import Runner, do_unit

ROOT = Path(__file__).resolve().parent.parent.parent
DIRECTORY_VARIABLE = "HEADRACE_TEST_CAMPAIGNS"
DIRECTORY = ".campaigns"
LIST = "list"
EXIT_TERMINATED = 143


def campaigns() -> dict[str, Campaign]:
    """Every campaign by its name."""
    from tests.campaigns.catalog import CAMPAIGNS  # what they need is imported only now

    return {campaign.name: campaign() for campaign in CAMPAIGNS}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="./run test --campaign NAME",
        description="Run a campaign for hours; started again, it goes on where it was. "
        f"What is known of it is in {DIRECTORY}/NAME, or below ${DIRECTORY_VARIABLE}.",
    )
    parser.add_argument("name", help=f"a campaign, or `{LIST}`")
    parser.add_argument("--hours", type=float, default=1.0, help="how long (1)")
    parser.add_argument("--workers", type=int, help="processes at once (one for each core)")
    parser.add_argument("--unit", type=int, help="do only this unit, here, and keep nothing")
    parser.add_argument("--fresh", action="store_true", help="forget what was done before")
    parser.add_argument("--report", action="store_true", help="only show what is known of it")
    parser.add_argument(
        "--publish",
        action="store_true",
        help="put what is known into the checkout, to be committed",
    )
    given = parser.parse_args(arguments)
    known = campaigns()
    if given.name == LIST:
        for campaign in known.values():
            print(f"{campaign.name:18} {campaign.about}")
        return 0
    if given.name not in known:
        print(f"there is no campaign {given.name!r}; there are {', '.join(known)}")
        return 2
    campaign = known[given.name]
    if (missing := campaign.missing()) is not None:
        print(f"campaign {campaign.name} cannot run here: {missing}")
        return 2
    if given.unit is not None:
        return one_unit(campaign, given.unit, given.hours * 3600)
    directory = Path(os.environ.get(DIRECTORY_VARIABLE, ROOT / DIRECTORY))
    if given.fresh:
        shutil.rmtree(directory / campaign.name, ignore_errors=True)
    runner = Runner(campaign, directory, commit())
    if given.publish:
        published(campaign).parent.mkdir(exist_ok=True)
        save(published(campaign), runner.record)
        page = ROOT / report.PAGE
        page.write_text(report.with_table(page.read_text(), known.values()))
    elif not given.report:
        # As an interrupt: what was begun is noted, and its processes end.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
        runner.run(given.hours * 3600, given.workers or len(os.sched_getaffinity(0)))
    return verdict(campaign, runner.record)


def verdict(campaign: Campaign, record: Record) -> int:
    print(report.text(campaign, record))
    return 1 if record.findings_total else 0


def one_unit(campaign: Campaign, number: int, seconds: float) -> int:
    outcome = do_unit(campaign, number, seconds, print)
    for name, count in outcome.counts.items():
        print(f"{count:,} {name}")
    for finding in outcome.findings:
        print(f"{finding.reason}\n    {finding.repeat}")
    return 1 if outcome.findings else 0


def commit() -> str:
    """The commit of the checkout, with a mark if files differ from it."""
    git = ["git", "-C", str(ROOT)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True)
        changes = subprocess.run(
            [*git, "status", "--porcelain", "-uno"], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.decode()[:12] + ("+" if changes.stdout else "")
