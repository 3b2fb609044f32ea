"""The runner of campaigns: it goes on after everything that may become of a unit, and resumes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns import command, report, runner
from tests.campaigns.catalog import CAMPAIGNS
from tests.campaigns.record import Record, Run, load, save
from tests.campaigns.runner import Runner
from tests.support.checkout import ROOT
from tests.support.small_campaign import DIES, FINDS, HANGS, RAISES, Small

LONG = 120.0


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Record]:
    directory = tmp_path_factory.mktemp("campaigns")
    return directory, Runner(Small(), directory, "commit").run(LONG, 2)


def test_each_unit_is_done_and_each_fate_is_a_finding(done: tuple[Path, Record]) -> None:
    _, record = done
    assert record.counts == {"done": 3}
    reasons = " ".join(finding.reason for finding in record.findings)
    assert len(record.findings) == record.findings_total == 4
    assert f"unit {RAISES}: ValueError: raised" in reasons and "found" in reasons
    assert f"unit {DIES}: the process that did it ended" in reasons
    assert f"unit {HANGS}: took more than 1 s" in reasons
    repeats = {finding.repeat for finding in record.findings}
    assert f"./run test --campaign small --unit {HANGS}" in repeats and FINDS not in repeats


def test_what_is_done_is_not_done_again(done: tuple[Path, Record]) -> None:
    directory, record = done
    again = Runner(Small(), directory, "another commit").run(LONG, 1)
    assert again.counts == record.counts and len(again.runs) == 2
    assert again.next_unit == 7 and not again.unfinished


def test_what_was_not_finished_is_done_first(tmp_path: Path) -> None:
    """A record as a run leaves it that is killed in its first unit."""
    (tmp_path / "small").mkdir()
    kept = Record(next_unit=7, unfinished=[1, 6], runs=[Run("commit", "then", 5.0)])
    save(tmp_path / "small" / "record.json", kept)
    record = Runner(Small(), tmp_path, "commit").run(LONG, 1)
    assert record.counts == {"done": 2} and not record.unfinished
    assert load(tmp_path / "small" / "record.json") == record


def test_no_unit_begins_when_the_time_is_up(tmp_path: Path) -> None:
    record = Runner(Small(), tmp_path, "commit").run(0.0, 1)
    assert record.next_unit == 1 and not record.counts


def test_the_report_has_goals_and_findings(done: tuple[Path, Record]) -> None:
    directory, record = done
    text = (directory / "small" / "report.md").read_text()
    assert "| done | 3 | 3: met |" in text and "| more | 0 | 10: not yet |" in text
    assert "found\n  `do it again`" in text and "Findings: 4." in text
    assert report.clock(3_723.9) == "1:02:03"
    assert record.seconds > 0


def test_words_that_name_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["no-such"]) == 2
    assert "there are crash, " in capsys.readouterr().out
    assert command.main(["list"]) == 0
    listed = capsys.readouterr().out
    assert all(campaign.name in listed for campaign in CAMPAIGNS)


def test_a_campaign_that_cannot_run_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Small, "missing", lambda _self: "install something")
    monkeypatch.setattr(command, "campaigns", lambda: {"small": Small()})
    assert command.main(["small"]) == 2
    assert "install something" in capsys.readouterr().out


def test_one_unit_is_done_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "campaigns", lambda: {"small": Small()})
    assert command.main(["small", "--unit", "1"]) == 0
    assert command.main(["small", "--unit", str(FINDS)]) == 1
    assert "do it again" in capsys.readouterr().out


def test_the_page_has_what_is_published() -> None:
    page = (ROOT / report.PAGE).read_text()
    campaigns = [campaign() for campaign in CAMPAIGNS]
    assert page == report.with_table(page, campaigns), "publish the campaign again"
    assert all(f"| `{campaign.name}` |" in page for campaign in campaigns)


def test_a_published_record_is_gone_on_from(
    done: tuple[Path, Record], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    directory, record = done
    monkeypatch.setattr(command, "campaigns", lambda: {"small": Small()})
    for module in (command, runner):
        monkeypatch.setattr(module, "published", lambda _campaign: tmp_path / "in" / "small.json")
    monkeypatch.setenv(command.DIRECTORY_VARIABLE, str(directory))
    monkeypatch.setattr(report, "PAGE", tmp_path / "page.md")
    (tmp_path / "page.md").write_text(report.BEGIN + report.END)
    assert command.main(["small", "--publish"]) == 1
    assert "| `small` |" in (tmp_path / "page.md").read_text()
    elsewhere = Runner(Small(), tmp_path / "elsewhere", "commit")
    assert elsewhere.record.counts == record.counts and elsewhere.record.next_unit == 7
