"""What is kept of a topic elsewhere, in a lake say: how the engine asks for it.

Only the shape is here: the engine does not know a lake, and a lake does not know the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import pyarrow as pa


class ArchivedTopic(NamedTuple):
    """One life of one topic of one data directory."""

    topic: str
    topic_id: int
    epoch: int
    directory: str


class ArchivedPart(NamedTuple):
    """Seqs `first` to `last`: rows, or a loss and its reason.

    Rows have the columns of a page (`storage/segment/page_columns.py`); of these seqs, those that
    are no row were deleted.
    """

    first: int
    last: int
    rows: pa.RecordBatch | None
    reason: str = ""


class Archive(Protocol):
    """A place that keeps what topics let go.  It may wait, so the loop thread never asks it."""

    def parts(self, kept: ArchivedTopic, first: int, last: int) -> Iterator[ArchivedPart]:
        """All seqs from `first` to `last`, in order, each in one part.

        What should be there and is not is an error, `LakeCorrupt` or `LakeUnavailable`.
        """
        ...
