"""`GET /v0/storage/scrub`: when each file was last verified, and which are damaged.

Files hold the records of many topics, so a key that may see some names only is refused.
"""

from __future__ import annotations

from itertools import islice

from headrace.api.storage import ScrubbedFile, ScrubPage
from headrace.core.errors import Forbidden
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.storage.files.tier import COLD
from headrace.storage.scrub.checking import ScrubTarget
from headrace.storage.scrub.progress_file import FileProgress
from headrace.wire.exchange import Exchange
from headrace.wire.native.answers import Timing, answer_object, encode
from headrace.wire.native.topics import page_size_of, read_cursor, write_cursor
from headrace.wire.queries import query_of
from headrace.wire.routes import READ, Route


class ScrubApi:
    """The state of the scrub over HTTP."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self._scrub = engine.scrub

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET", "/v0/storage/scrub", self._page, frozenset({READ}),
                "When each file was last verified, and which are damaged",
                response=ScrubPage, query=("page_size", "cursor"), name_param=False,
            ),
        ]  # fmt: skip

    def _page(self, exchange: Exchange) -> None:
        if exchange.key is not None and exchange.key.has_prefixes:
            raise Forbidden(
                "files hold the records of all topics, and this key has prefixes",
                fix="use a key without prefixes",
            )
        query, scrub = query_of(exchange), self._scrub
        size = page_size_of(query.get("page_size", ""), self._settings)
        after = read_cursor(query.get("cursor", ""))
        files = scrub.files()
        if after:
            files = ((row, target) for row, target in files if _place(row) > after)
        page = list(islice(files, size + 1))
        fields: dict[str, object] = {
            "enabled": scrub.on,
            "bytes_per_second": scrub.bytes_per_second,
            "interval_ms": scrub.interval_ms,
            "total": scrub.files_count,
            "damaged": scrub.damaged_files,
            "files": [self._file(row, target) for row, target in page[:size]],
        }
        if len(page) > size:
            fields["next_cursor"] = write_cursor(_place(page[size - 1][0]))
        timing = Timing(exchange, self._engine.runtime.clock)
        answer_object(exchange, 200, encode(fields), timing)

    def _file(self, row: FileProgress, target: ScrubTarget | None) -> ScrubbedFile:
        meta = target.segment if target is not None else None
        tier = "" if meta is None else "cold" if meta.tier == COLD else "hot"
        why = self._scrub.why(row)
        return ScrubbedFile(row.path, row.verified_ms or None, row.damaged, tier, why)


def _place(row: FileProgress) -> str:
    """Where a file is in the list, as text whose order is that of the list."""
    return f"{row.kind}-{row.file_id:020d}"
