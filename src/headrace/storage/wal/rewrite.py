"""Rewriting a damaged log: what is whole is kept, losses are announced, the old files stay aside.

Only this file writes log files beside the engine's own `WalShard`.  A log is rewritten into *one*
new file that begins where the first damaged file began.  It gets its name only when it is whole and
durable; after that the old files are set aside as `*.broken`.  An interruption between the two
leaves a file that overlaps others, which nothing else does: the next repair finishes the work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge
from typing import NamedTuple

from headrace.core.clock import Clock, Random
from headrace.storage.epochs import epoch_of
from headrace.storage.fs import File, Filesystem, parent, write_all
from headrace.storage.tools.lost_seqs import RECOVERED_NAME, LogHeads, Lost
from headrace.storage.wal.audit import (
    Damage,
    LogFile,
    Survey,
    WholeBatch,
    read_stretch,
    walk_shard,
)
from headrace.storage.wal.file import discover, file_path, shard_of
from headrace.storage.wal.frame import (
    BATCH_HEADER_BYTES,
    ENTRY_GAP,
    ENTRY_TOPIC_CREATE,
    ENTRY_TOPIC_DELETE,
    FORMAT_VERSION,
    PAGE_BYTES,
    FileHeader,
    Gap,
    TopicCreate,
    TopicDelete,
    encode_batch_header,
    encode_control,
    encode_file_header,
    split_entries,
)

BATCH_BYTES_TARGET = 1 << 20
# A damaged stretch larger than this is not looked into: everything in it counts as unknown.
STRETCH_BYTES_MAX = 64 << 20
PLACEHOLDER_NAME = "headrace-repair"


class LogWriter:
    """One log file, written front to back; `finish` makes it durable and gives it its name.

    No batch claims that a part of its own file is durable before it is: the last one, written
    after a sync, closes the window.
    """

    def __init__(self, fs: Filesystem, directory: str, header: FileHeader, base: int) -> None:
        assert header.version == FORMAT_VERSION and base >= 0, (header, base)
        self.path = file_path(directory, header.file_no)
        self.base = base
        self.entries = 0
        self._fs = fs
        self._header = header
        self._salt = header.salt
        self._temporary = f"{self.path}.tmp"
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._offset = PAGE_BYTES
        self._ordinal = 0
        fs.mkdir(directory)
        fs.unlink(self._temporary)
        self._file: File = fs.create(self._temporary)

    def add(self, entry: bytes) -> None:
        assert len(entry) % 8 == 0, len(entry)
        self._pending.append(entry)
        self._pending_bytes += len(entry)
        self.entries += 1
        if self._pending_bytes >= BATCH_BYTES_TARGET:
            self._batch(self.base)

    def finish(self) -> int:
        """Durable under its name on return; the position where it ends."""
        if self._pending or not self._ordinal:
            self._batch(self.base)
        self._file.sync()
        made_bytes = self._offset + -self._offset % PAGE_BYTES + BATCH_HEADER_BYTES
        page = encode_file_header(self._header._replace(made_bytes=made_bytes))
        write_all(self._file, [page], 0)
        # The window is closed on a page of its own, so that tearing it spoils nothing synced.
        end = self.base + self._offset
        self._offset += -self._offset % PAGE_BYTES
        self._batch(end)
        self._file.sync()
        self._file.close()
        self._fs.rename(self._temporary, self.path)
        self._fs.sync_dir(parent(self.path))
        return self.base + self._offset

    def abort(self) -> None:
        self._file.close()
        self._fs.unlink(self._temporary)

    def _batch(self, durable: int) -> None:
        body, count = b"".join(self._pending), len(self._pending)
        self._pending, self._pending_bytes = [], 0
        position = self.base + self._offset
        header = encode_batch_header(self._salt, position, durable, self._ordinal, body, count)
        write_all(self._file, [header, body] if body else [header], self._offset)
        self._offset += BATCH_HEADER_BYTES + len(body)
        self._ordinal += 1


@dataclass
class LogRepair:
    """What was done to one shard's log."""

    directory: str
    path: str = ""  # the new file, "" when none was needed
    set_aside: list[str] = field(default_factory=list)  # where the old files are now
    batches_kept: int = 0
    unreached: bool = False  # how much is gone is not known


class Epochs(NamedTuple):
    """What new topics in a repaired log need to know."""

    generation: int
    topic_id_max: int

    def of(self, topic_id: int) -> int:
        return epoch_of(self.generation, topic_id)


class Stretch(NamedTuple):
    """What one damaged stretch of log took, and what is written in its place."""

    lost: list[Lost]
    recovered: list[int]  # topics whose creation it took, and of which records follow


def log_losses(
    fs: Filesystem, surveys: Mapping[str, Survey], starts: Mapping[str, int], heads: LogHeads
) -> dict[str, list[Stretch]]:
    """What each damaged stretch of each shard took, in order; `heads` is left as after the log.

    All shards are gone through together, oldest file first, as recovery does.
    """
    walks = [_needed(fs, found, starts.get(found.directory)) for found in surveys.values()]
    directories = []
    for item in merge(*walks, key=lambda item: item.path.rpartition("/")[2]):
        if isinstance(item, Damage):
            directories.append(parent(item.path))
            stored = read_stretch(fs, item, STRETCH_BYTES_MAX)
            heads.damaged(item.length, stored, item.batches)
        else:
            for kind, entry in split_entries(item.body, item.header.entries, item.path):
                heads.apply(kind, entry)
    losses: dict[str, list[Stretch]] = {directory: [] for directory in surveys}
    lost = heads.finish()
    for directory, took, recovered in zip(directories, lost, heads.recovered, strict=True):
        losses[directory].append(Stretch(took, recovered))
    return losses


def _needed(fs: Filesystem, found: Survey, start: int | None) -> Iterator[WholeBatch | Damage]:
    """Batches from the replay position on, and promised damage between them."""
    numbers = [file.number for file in found.files]
    notes = Survey(found.directory, mark=found.mark)
    for item in walk_shard(fs, found.directory, numbers, start, notes):
        if isinstance(item, WholeBatch):
            if item.header.position >= (start or 0):
                yield item
        elif isinstance(item, Damage) and matters(found, item, start):
            yield item


def in_the_way(found: Survey, damage: Damage, start: int | None) -> bool:
    """Whether the log cannot be replayed because of a damaged stretch."""
    return damage.position + damage.length > (start or 0) and found.promised(damage)


def matters(found: Survey, damage: Damage, start: int | None) -> bool:
    """Whether acknowledged entries that replay needs were in a damaged stretch.

    The page before the first batch of a file holds no entry.
    """
    is_file_header = damage.offset == 0 and damage.stored == PAGE_BYTES
    return in_the_way(found, damage, start) and not is_file_header


def repair_shard(
    fs: Filesystem,
    found: Survey,
    start: int | None,
    stretches: list[Stretch],
    epochs: Epochs,
    random: Random,
    clock: Clock,
) -> LogRepair:
    """Make a damaged log whole again; `stretches` is what `log_losses` said of this shard."""
    done = LogRepair(found.directory)
    if found.overlaps:
        _finish_interrupted(fs, found, done)
        return done
    done.unreached = found.end_unknown or (start is not None and found.reach < start)
    base, old = _extent(found, start)
    writer = LogWriter(fs, found.directory, _header_for(fs, found, random, clock), base)
    try:
        done.batches_kept = _copy(fs, found, start, stretches, epochs, writer)
        if stretches:
            _move_topic_ids(writer, epochs, clock)
        writer.finish()
    except BaseException:
        writer.abort()
        raise
    done.path = writer.path
    done.set_aside = [set_aside(fs, path) for path in (*(f.path for f in old), *found.others)]
    fs.sync_dir(found.directory)
    return done


def _extent(found: Survey, start: int | None) -> tuple[int, list[LogFile]]:
    """Where the new file begins, and the files it replaces."""
    bad = [d.position for d in found.damages if in_the_way(found, d, start)]
    bad += [file.base for file in found.cut if file.base is not None]
    cut = min(bad, default=found.end)
    if start is not None and (cut < start or found.reach < start):
        # Nothing before the replay position is needed, and the new file cannot leave a gap.
        return start, list(found.files)
    base = cut
    number = None
    for file in found.files:
        if file.base is not None and (file.end > cut or file.is_cut):
            base, number = min(file.base, cut), file.number
            break
    old = [file for file in found.files if number is not None and file.number >= number]
    if start is not None and base < start:
        return start, list(found.files)
    return base, old


def _header_for(fs: Filesystem, found: Survey, random: Random, clock: Clock) -> FileHeader:
    """A new header that keeps the boot id of the last file: who lost power stays known.

    Where the end of the log is gone, so may be what was not synced yet: as after a power loss.
    """
    headers = [file.header for file in found.files if file.header is not None and file.batches]
    ended = found.mark is None or found.mark.durable <= found.end
    whole = ended and not found.cut and not found.absent and not found.others
    boot_id = headers[-1].boot_id if headers and whole else bytes(16)
    number, answered = next_log_number(fs), 0
    if found.mark is not None:
        number, answered = max(number, found.mark.file_no + 1), found.mark.number
    return FileHeader(
        FORMAT_VERSION, random.u32(), number, clock.wall_ms(), shard_of(found.directory), boot_id,
        marks_answered=answered,
    )  # fmt: skip


def next_log_number(fs: Filesystem) -> int:
    """Higher than that of any log file of any shard."""
    return max((n for numbers in discover(fs).values() for n in numbers), default=0) + 1


def _copy(
    fs: Filesystem,
    found: Survey,
    start: int | None,
    stretches: list[Stretch],
    epochs: Epochs,
    writer: LogWriter,
) -> int:
    """Whole batches from the new file's base on, and a gap for what is lost between them."""
    kept = stretch = 0
    for item in _needed(fs, found, start):
        if isinstance(item, Damage):
            for topic_id in stretches[stretch].recovered:
                name = f"{RECOVERED_NAME}-{topic_id}"
                create = TopicCreate(name, epochs.of(topic_id), b"{}", 0, 0)
                writer.add(encode_control(ENTRY_TOPIC_CREATE, topic_id, create))
            for lost in stretches[stretch].lost:
                gap = Gap(lost.first, lost.last)
                writer.add(encode_control(ENTRY_GAP, lost.topic_id, gap))
            stretch += 1
        elif item.header.position >= writer.base:
            for _, entry in split_entries(item.body, item.header.entries, item.path):
                writer.add(entry)
            kept += 1
    assert stretch == len(stretches), (stretch, len(stretches))
    return kept


def _move_topic_ids(writer: LogWriter, epochs: Epochs, clock: Clock) -> None:
    """No id that the damage may have held is given out again: a topic comes and goes above it."""
    topic_id = epochs.topic_id_max + 1
    epoch = epochs.of(topic_id)
    name = f"{PLACEHOLDER_NAME}-{topic_id}"
    create = TopicCreate(name, epoch, b"{}", 0, clock.wall_ms())
    writer.add(encode_control(ENTRY_TOPIC_CREATE, topic_id, create))
    writer.add(encode_control(ENTRY_TOPIC_DELETE, topic_id, TopicDelete(epoch)))


def _finish_interrupted(fs: Filesystem, found: Survey, done: LogRepair) -> None:
    """The new file is whole and in place: only the old ones are still there."""
    done.path = max(
        (file for file in found.files if file.batches), key=lambda file: file.number
    ).path
    done.set_aside = [set_aside(fs, file.path) for file in found.overlaps]
    fs.sync_dir(found.directory)


def set_aside(fs: Filesystem, path: str) -> str:
    """Give a file a name under which nothing reads it; the caller syncs its directory."""
    target = broken_path(fs, path)
    fs.rename(path, target)
    return target


def broken_path(fs: Filesystem, path: str) -> str:
    """The first free of `<path>.1.broken`, `<path>.2.broken`, ….

    Not plain `<path>.broken`: a snapshot of that name still has a meaning at the next start.
    """
    number = 1
    while fs.exists(f"{path}.{number}.broken"):
        number += 1
    return f"{path}.{number}.broken"
