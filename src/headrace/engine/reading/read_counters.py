"""What reads took from the cold tier and from the archive, counted for the metrics."""

from __future__ import annotations


class ReadCounters:
    """What reads took from further away than the hot files."""

    __slots__ = ("archive_errors", "archive_reads", "archive_records", "cold_records")

    def __init__(self) -> None:
        self.cold_records = 0  # records that the cold tier had
        self.archive_reads = 0  # reads of the archive, the records they took, those that failed
        self.archive_records = 0
        self.archive_errors = 0

    def page(self, cold: int, archived: int) -> None:
        """Count the records of a page that came from the cold tier and from the archive."""
        self.cold_records += cold
        self.archive_records += archived

    def archive(self) -> None:
        """Count a read of the archive."""
        self.archive_reads += 1

    def archive_failed(self) -> None:
        """Count a read of the archive that failed."""
        self.archive_errors += 1
