"""What the tools make of the scrub's memory (native §10d): it is known, and no loss if damaged."""

from __future__ import annotations

from headrace.storage.identity import SCRUB_PATH
from headrace.storage.scrub.progress_file import SEGMENT, FileProgress, write_progress
from headrace.storage.tools.check import check
from headrace.storage.tools.dump import dump
from headrace.testing.simdisk import SimDisk
from tests.support.scrubbing import flip


def test_check_and_dump_know_it() -> None:
    disk = SimDisk()
    disk.mkdir("meta")
    write_progress(disk, [FileProgress(SEGMENT, 7, False, 1, 2, 0)])
    assert [finding.code for finding in check(disk).findings if SCRUB_PATH in finding.file] == []
    shown = {
        "type": "scrubbed_file", "file": SCRUB_PATH,
        "path": "segments/seg-0000000000000007.arrow",
        "damaged": False, "seen_ms": 1, "verified_ms": 2, "offset": 0,
    }  # fmt: skip
    assert list(dump(disk, [SCRUB_PATH])) == [shown]
    assert shown in list(dump(disk))
    flip(disk, SCRUB_PATH, 30)
    report = check(disk)
    assert report.ok
    (finding,) = [finding for finding in report.findings if SCRUB_PATH in finding.file]
    assert (finding.severity, finding.code) == ("warning", "scrub_damaged")
    assert [line["type"] for line in dump(disk, [SCRUB_PATH])] == ["damage"]
