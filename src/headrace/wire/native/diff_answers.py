"""The answer to a diff, as JSON: a page, and how long it took."""

from __future__ import annotations

from headrace.engine.reading.page import Page, Tombstone


class PageAnswer:
    """An answer up to the time that it took: what all diffs are told that were given this page."""

    __slots__ = ("_after", "_before", "_ends", "_records", "count", "tier")

    def __init__(self, begins: str, page: Page, records: bytes) -> None:
        """`begins`: the answer up to the epoch; `records`: those of the page as a JSON array."""
        self.count = page.count
        self.tier = tier_of(page)
        self._before = f'{begins}{page.epoch},"records":'.encode()
        self._records = records
        cursor, head, lost = page.next_from_seq, page.head_seq, page.tombstone
        self._after = (
            f',"next_from_seq":{cursor},"head_seq":{head},"earliest_seq":{page.earliest_seq},'
            f'"caught_up":{"true" if cursor == head else "false"},'
            f'"tombstone":{"null" if lost is None else _tombstone(lost)},"lag":{head - cursor},'
            '"performance":{"server_total_ms":'
        ).encode()
        further = "" if self.tier == "hot" else _further(page)
        self._ends = f',"records_scanned":{page.scanned}{further}}}}}'.encode()

    @property
    def size(self) -> int:
        """How many bytes the records take."""
        return len(self._records)

    def body(self, total: bytes) -> bytes:
        """The answer to a diff that took `total` milliseconds.

        It is joined once: each copy of a page costs as much as reading it.
        """
        return b"".join((self._before, self._records, self._after, total, self._ends))


def tier_of(page: Page) -> str:
    """From how far away records of a page came."""
    return "lake" if page.lake else "cold" if page.cold else "hot"


def _further(page: Page) -> str:
    cold = f',"cold_segments_read":{page.cold}' if page.cold else ""
    return cold + (f',"lake_records_read":{page.lake}' if page.lake else "")


def _tombstone(lost: Tombstone) -> str:
    return (
        f'{{"gap_from":{lost.gap_from},"gap_to":{lost.gap_to},"reason":"{lost.reason}",'
        f'"missed_estimate":{lost.missed_estimate},"earliest_seq":{lost.earliest_seq},'
        f'"head_seq":{lost.head_seq}}}'
    )
