"""How a micro-batch is cut into tasks: by seqs, and by a number that its offset keeps.

The rule it owns: a batch that is planned again, by another process, after files were sealed or
merged, on a machine with other processors, has the same records in the same task.  A sink that
writes each record once knows what it has written by the number of the task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.spark.reading.manifests import ROW_BYTES
from headrace.spark.reading.parts import Gap, Slice
from headrace.spark.reading.planning import tasks_for
from headrace.spark.reading.spans import Span
from headrace.spark.reading.topics import TopicHead


def tasks_of(
    spans: Iterable[Span],
    heads: Mapping[str, TopicHead],
    min_partitions: int | None,
    processors: int,
) -> int:
    """How many tasks a batch is worth now; its offset keeps the answer."""
    seqs = size = 0
    for span in spans:
        head = heads[span.topic]
        live = span._replace(first=max(span.first, head.earliest)).length
        seqs += span.length
        size += live * (head.row_bytes + ROW_BYTES)
    return max(1, min(seqs, tasks_for(size, min_partitions, processors)))


def cut_by_seqs(
    spans: Sequence[Span], slices: Iterable[Slice], count: int
) -> list[tuple[Slice, ...]]:
    """`count` parts with about as many seqs each; one may be empty, so that each keeps its number.

    A gap is not cut, and belongs to the part of its first seq.
    """
    parts: list[list[Slice]] = [[] for _ in range(count if spans else 0)]
    total = sum(span.length for span in spans)
    places, before = {}, 0  # of each span's first seq, if the spans lay one after the other
    for span in spans:
        places[span.topic] = before - span.first
        before += span.length
    for one in slices:
        place, first = places[one.span.topic], one.span.first
        while first <= one.span.last:
            part = (place + first) * count // total
            last = min(one.span.last, -(-(part + 1) * total // count) - 1 - place)
            if isinstance(one, Gap):
                parts[part].append(one)
                break
            parts[part].append(one.cut(first, last))
            first = last + 1
    return [tuple(part) for part in parts]
