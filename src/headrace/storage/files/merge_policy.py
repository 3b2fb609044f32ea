"""Which sealed files to merge, rewrite or drop: the policy, and the plan it makes.

Only this file decides that.  It is pure: it sees numbers about files, never the files, so that a
month of a server's life can be simulated in a second.  The rules it owns:

- Shared files are kept in creation order, and only neighbours are merged, so that for every topic
  the seq ranges of different files never overlap.  The output takes its inputs' place.
- A level holds fewer than `fan_in` mergeable files.  A file larger than half the bound on outputs
  is full and is left alone.  An older file counts as at least the level of every newer one, so
  that a file left small between larger ones is merged with them and never stranded.
- A topic gets files of its own only while it holds a fair part of everything alive, so that the
  number of files does not grow with the number of topics.
- A file less than half alive is rewritten, a file wholly dead is dropped.
- Cold files and busy files are never merged, and nothing is merged across them.

It does not read rows (see `merge_run`), count what is alive (see `catalog`), or unlink anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

from headrace.storage.segment.format import SegmentMeta

MIB = 1 << 20
# A topic that has files of its own keeps them until it holds less than half of what it takes to
# get them, so that one near the line does not leave its rows now here, now there.
OWN_SHARE_SLACK = 2

MERGE = "merge"
REWRITE = "rewrite"
DROP = "drop"


@dataclass(frozen=True)
class MergePolicy:
    """The settings of the plan.

    >>> MergePolicy().fan_in
    8
    """

    fan_in: int = 8  # files of a level that make one of the next
    shared_bytes_max: int = 512 * MIB  # no merge is planned whose output would be larger
    own_rows_min: int = 10_000  # rows in a job's inputs that earn a topic a file of its own
    own_bytes_min: int = 4 * MIB  # or bytes
    own_bytes_max: int = 64 * MIB  # a topic's own file is not made larger
    own_topics_max: int = 64  # only topics with at least 1/64 of all live bytes qualify
    dead_fraction: float = 0.5  # a file with more than this dead is rewritten
    step_bytes: int = 4 * MIB  # a merge writes so much at a time, tens of milliseconds

    def __post_init__(self) -> None:
        assert self.fan_in >= 2, self.fan_in
        assert self.shared_bytes_max > 0 and self.own_bytes_max > 0, self
        assert self.own_rows_min > 0 and self.own_bytes_min > 0, self
        assert self.own_topics_max > 0, self.own_topics_max
        assert 0.0 < self.dead_fraction <= 1.0, self.dead_fraction
        assert self.step_bytes > 0, self.step_bytes


class TopicShare(NamedTuple):
    """One topic's part of one file: what of it is alive, and the seqs it spans, dead or alive."""

    rows: int
    bytes: int
    first_seq: int
    last_seq: int


class TopicShares(Protocol):
    """Access to the topics of one file without a Python object for each."""

    def of(self, topic_id: int) -> TopicShare | None: ...  # None: the file has no such topic
    def heavy(self, bytes_min: int) -> Iterable[int]: ...  # topics with that many live bytes


class FileStats(NamedTuple):
    """A live file and how much of it is alive.  `live_rows` is 0 only if every row is dead."""

    meta: SegmentMeta
    live_rows: int
    live_bytes: int  # data and meta bytes of the live rows
    topics: TopicShares

    @property
    def live_size(self) -> int:
        """What the file would take on disk without its dead rows."""
        if self.live_rows >= self.meta.rows:
            return self.meta.size
        around = max(0, self.meta.size - self.meta.payload_bytes)
        return self.live_bytes + around * self.live_rows // max(1, self.meta.rows)


@dataclass(frozen=True)
class MergeJob:
    """Replace `inputs` by what is alive in them.

    Rows of `own_topics` go to files of their own, all others to one shared file.  The outputs
    may be none.  `reason` is one of "merge", "rewrite" and "drop", for logs and metrics.
    """

    inputs: tuple[int, ...]
    own_topics: frozenset[int]
    level: int
    reason: str


def order_of(meta: SegmentMeta) -> int:
    """The place of a shared file in creation order: its own id, or that of its oldest input."""
    return meta.order or meta.file_id


def plan(
    files: Sequence[FileStats], policy: MergePolicy, busy: Collection[int] = frozenset()
) -> list[MergeJob]:
    """What to do now, in the order to do it; doing only a first part of the list is fine.

    `files` must be all live files, hot and cold: a file left out would be merged across.  The
    ids of files another job is working on go into `busy`.  No file is in two jobs.
    """
    topology = _Topology(files)
    big = _big_topics(files, topology.owners, policy)
    jobs: list[MergeJob] = []
    taken: set[int] = set(busy)
    for file in files:
        if file.live_rows == 0 and file.meta.file_id not in taken:
            jobs.append(MergeJob((file.meta.file_id,), frozenset(), file.meta.level, DROP))
            taken.add(file.meta.file_id)
    for line in topology.lines():
        bytes_max = policy.own_bytes_max if line[0].meta.owner else policy.shared_bytes_max
        for level, group in _groups(line):
            for window in _windows(group, policy.fan_in, bytes_max, taken, topology):
                jobs.append(_job(window, level + 1, MERGE, big, topology.owners, policy))
                taken.update(jobs[-1].inputs)
    for file in files:
        if file.meta.file_id in taken or file.meta.tier:
            continue
        if file.live_size < (1.0 - policy.dead_fraction) * file.meta.size:
            jobs.append(_job([file], file.meta.level, REWRITE, big, topology.owners, policy))
    return jobs


def _job(
    inputs: list[FileStats],
    level: int,
    reason: str,
    big: frozenset[int],
    owners: frozenset[int],
    policy: MergePolicy,
) -> MergeJob:
    ids = tuple(file.meta.file_id for file in inputs)
    owner = inputs[0].meta.owner
    if owner:
        return MergeJob(ids, frozenset((owner,)), level, reason)
    own = set()
    for topic_id in big:
        shares = [share for file in inputs if (share := file.topics.of(topic_id)) is not None]
        rows = sum(share.rows for share in shares)
        enough = topic_id in owners or rows >= policy.own_rows_min
        enough = enough or sum(share.bytes for share in shares) >= policy.own_bytes_min
        if rows and enough:
            own.add(topic_id)
    return MergeJob(ids, frozenset(own), level, reason)


def _big_topics(
    files: Sequence[FileStats], owners: frozenset[int], policy: MergePolicy
) -> frozenset[int]:
    """The topics that hold at least 1/own_topics_max of all live bytes.

    Such a topic holds at least that part of some one file, so only those are looked at.
    """
    total = sum(file.live_bytes for file in files)
    candidates = set(owners)
    for file in files:
        if file.live_bytes:
            candidates.update(file.topics.heavy(-(-file.live_bytes // policy.own_topics_max)))
    big = set()
    for topic_id in candidates:
        slack = OWN_SHARE_SLACK if topic_id in owners else 1
        shares = (file.topics.of(topic_id) for file in files)
        held = sum(share.bytes for share in shares if share is not None)
        if held and held * policy.own_topics_max * slack >= total:
            big.add(topic_id)
    assert len(big) <= policy.own_topics_max * OWN_SHARE_SLACK, len(big)
    return frozenset(big)


class _Topology:
    """The order of files, and for topics with files of their own, the order of their rows."""

    def __init__(self, files: Sequence[FileStats]) -> None:
        self._files = files
        self.owners = frozenset(file.meta.owner for file in files if file.meta.owner)
        # (topic, file) -> the file that holds the topic's rows just before that file's.
        self._before: dict[tuple[int, int], int] = {}
        self._owners_in: dict[int, list[int]] = {file.meta.file_id: [] for file in files}
        assert len(self._owners_in) == len(files), "a file is listed twice"
        for topic_id in self.owners:
            self._link(topic_id)

    def _link(self, topic_id: int) -> None:
        spans = []
        for file in self._files:
            share = file.topics.of(topic_id)
            if share is not None:
                spans.append((share.first_seq, share.last_seq, file.meta.file_id))
                self._owners_in[file.meta.file_id].append(topic_id)
        spans.sort()
        for (_, last_seq, before), (first_seq, _, file_id) in pairwise(spans):
            assert last_seq < first_seq, (topic_id, before, file_id)
            self._before[topic_id, file_id] = before

    def lines(self) -> Iterator[list[FileStats]]:
        """The shared files in creation order, then each topic's own files in seq order."""
        lines: dict[int, list[FileStats]] = {}
        for file in self._files:
            lines.setdefault(file.meta.owner, []).append(file)
        for owner in sorted(lines):
            yield sorted(lines[owner], key=self._own_place if owner else self._shared_place)

    def _shared_place(self, file: FileStats) -> int:
        return order_of(file.meta)

    def _own_place(self, file: FileStats) -> int:
        share = file.topics.of(file.meta.owner)
        assert share is not None, file.meta
        return share.first_seq

    def continues(self, window: Sequence[FileStats], file: FileStats) -> bool:
        """Whether no other file holds rows between those of `window` and those of `file`.

        Neighbours among the shared files can have a topic's own file between them, when
        everything else that was alive there has gone; and the other way round.
        """
        ids = {member.meta.file_id for member in window}
        held = {topic_id for file_id in ids for topic_id in self._owners_in[file_id]}
        file_id = file.meta.file_id
        return all(
            self._before.get((topic_id, file_id)) in ids
            for topic_id in self._owners_in[file_id]
            if topic_id in held
        )


def _groups(line: list[FileStats]) -> list[tuple[int, list[FileStats]]]:
    """Cut a line into neighbours of one level, oldest first.

    A file counts as at least the level of every newer one, so levels only fall along a line.
    """
    groups: list[tuple[int, list[FileStats]]] = []
    for file in reversed(line):
        if groups and file.meta.level <= groups[-1][0]:
            groups[-1][1].append(file)
        else:
            groups.append((file.meta.level, [file]))
    groups.reverse()
    for _, group in groups:
        group.reverse()
    return groups


def _windows(
    group: list[FileStats],
    fan_in: int,
    bytes_max: int,
    taken: Collection[int],
    topology: _Topology,
) -> Iterator[list[FileStats]]:
    """The merges of one level: none until it holds `fan_in` files that can be merged."""

    def mergeable(file: FileStats) -> bool:
        return (
            file.meta.tier == 0
            and file.meta.file_id not in taken
            and 2 * file.live_size <= bytes_max
        )

    waiting = sum(map(mergeable, group))
    start = 0
    while waiting >= fan_in:
        window: list[FileStats] = []
        size = 0
        for file in group[start : start + fan_in]:
            size += file.live_size
            if not mergeable(file) or size > bytes_max or not topology.continues(window, file):
                break
            window.append(file)
        if len(window) >= 2:
            yield window
        waiting -= len(window)
        start += max(1, len(window))
