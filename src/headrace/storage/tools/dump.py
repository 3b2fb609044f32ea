"""Showing what the files of a data directory hold, as one mapping of plain values a line.

For people and scripts; read-only, takes no lock, and goes on after damage, which it shows as lines
of its own.  The names of the fields are those of docs/formats/.  It decides nothing: `check.py`
says what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import msgspec

from headrace.core.errors import CorruptionError, HeadraceError, InvalidRequest, TopicNotFound
from headrace.storage.block import ENTRY_APPEND, decode_block
from headrace.storage.files.block_cache import BlockCache
from headrace.storage.files.store import DirectoryStore, Store
from headrace.storage.files.tier import Tiers
from headrace.storage.fs import Filesystem, read_exact, read_file
from headrace.storage.identity import SCRUB_PATH
from headrace.storage.segment.format import SegmentMeta
from headrace.storage.segment.reader import Segment, find_meta
from headrace.storage.segment.run import run_of
from headrace.storage.snapshot.chains import read_latest, snapshot_path
from headrace.storage.snapshot.format import decode
from headrace.storage.snapshot.key_files import HEADER, TRAILER, KeyFileMeta, decode_keys
from headrace.storage.snapshot.state import SnapshotState, TopicState
from headrace.storage.tools.check_segments import CACHE_BYTES
from headrace.storage.tools.dump_lines import (
    Line,
    file_line,
    plain_value,
    record_line,
    scrub_lines,
    seq_ranges,
    topic_line,
)
from headrace.storage.tools.examination import replayed_files
from headrace.storage.wal.audit import ANYWHERE, Damage, WholeBatch, walk_shard
from headrace.storage.wal.file import file_path, index_of
from headrace.storage.wal.frame import (
    ENTRY_ARCHIVED,
    ENTRY_FLOOR,
    ENTRY_FORWARD,
    ENTRY_GAP,
    ENTRY_QUEUE,
    ENTRY_RECORDS_DELETE,
    ENTRY_RESERVE,
    ENTRY_ROUTER,
    ENTRY_ROUTER_DELETE,
    ENTRY_STATE,
    ENTRY_TOPIC_CONFIG,
    ENTRY_TOPIC_CREATE,
    ENTRY_TOPIC_DELETE,
    PAGE_BYTES,
    Archived,
    Control,
    Floor,
    Forward,
    Gap,
    QueueEvent,
    RecordsDelete,
    Reserve,
    RouterDelete,
    RouterPut,
    State,
    TopicConfig,
    TopicCreate,
    TopicDelete,
    decode_control,
    decode_file_header,
    entry_topic,
    split_entries,
)
from headrace.storage.wal.mark import marked_directory, read_mark

ROWS_PER_READ = 1000

_CONTROLS: dict[int, tuple[str, type[Control]]] = {
    ENTRY_TOPIC_CREATE: ("topic_create", TopicCreate),
    ENTRY_TOPIC_CONFIG: ("topic_config", TopicConfig),
    ENTRY_TOPIC_DELETE: ("topic_delete", TopicDelete),
    ENTRY_RECORDS_DELETE: ("records_delete", RecordsDelete),
    ENTRY_FLOOR: ("floor", Floor),
    ENTRY_RESERVE: ("reserve", Reserve),
    ENTRY_GAP: ("gap", Gap),
    ENTRY_STATE: ("state", State),
    ENTRY_QUEUE: ("queue", QueueEvent),
    ENTRY_ROUTER: ("router", RouterPut),
    ENTRY_ROUTER_DELETE: ("router_delete", RouterDelete),
    ENTRY_FORWARD: ("forward", Forward),
    ENTRY_ARCHIVED: ("archived", Archived),
}
_LOG = re.compile(r"(?P<directory>wal(?:/shard-[0-9]+)?)/wal-(?P<number>[0-9]{16})\.log")
_SNAPSHOT = re.compile(r"meta/snapshot-(?P<number>[0-9]{16})\.bin")
_KEYS = re.compile(r"meta/keys-(?P<number>[0-9]{16})\.bin")
_SEGMENT = re.compile(r"segments/seg-(?P<number>[0-9]{16})\.arrow")


def dump(
    fs: Filesystem,
    paths: Sequence[str] = (),
    *,
    topic: str | None = None,
    records: bool = False,
    cold: Store | None = None,
) -> Iterator[Line]:
    """Lines of these files, or of everything that the newest snapshot and the log hold.

    With `topic` only what is about that topic; with `records` each record too.
    """
    dumper = _Dumper(fs, cold, records)
    if topic is not None:
        dumper.choose(topic)
    if paths:
        for path in paths:
            yield from dumper.file(path)
    else:
        yield from dumper.everything()


class _Dumper:
    def __init__(self, fs: Filesystem, cold: Store | None, records: bool) -> None:
        self._fs = fs
        self._tiers = Tiers(DirectoryStore(fs), cold)
        self._records = records
        self._only: set[int] | None = None
        self._names: dict[int, str] = {}
        self._state: SnapshotState | None = None
        try:
            loaded = read_latest(fs)
        except HeadraceError:
            loaded = None  # Said by the lines of the file itself.
        if loaded is not None:
            self._state = loaded.state
            self._names = {t.id: t.name for t in loaded.state.topics.values()}

    def choose(self, topic: str) -> None:
        """Only lines about the topics that have, or had, this name."""
        for directory, numbers in replayed_files(self._fs, self._state).items():
            for _ in self._log(directory, numbers):
                """Names are learnt on the way."""
        self._only = {i for i, name in self._names.items() if name == topic}
        if not self._only:
            raise TopicNotFound.named(topic)

    def everything(self) -> Iterator[Line]:
        state = self._state
        if state is not None:
            yield from self._snapshot_state(state)
            for meta in state.files.values():
                yield from self._segment(meta)
            for key_file in state.key_files:
                yield from self._keys(key_file.path, key_file)
        for directory, numbers in sorted(replayed_files(self._fs, state).items()):
            start = state.positions.get(directory, 0) if state is not None else 0
            # What is before the start is in the sealed files.
            holder = index_of(self._fs, directory, numbers, start)
            yield from self._log(directory, numbers[holder:], start)
        if self._only is None:
            yield from scrub_lines(self._fs)

    def file(self, path: str) -> Iterator[Line]:
        """Lines of one file, named relative to the data directory."""
        if not self._fs.exists(path):
            raise InvalidRequest(
                f"{self._fs.describe(path)} does not exist",
                fix="name a file relative to the data directory, such as wal/wal-….log",
            )
        if match := _LOG.fullmatch(path):
            yield from self._log(match["directory"], [int(match["number"])])
        elif match := _SNAPSHOT.fullmatch(path):
            yield from self._snapshot_file(int(match["number"]))
        elif _KEYS.fullmatch(path):
            yield from self._keys(path, None)
        elif _SEGMENT.fullmatch(path):
            yield from self._found_segment(path)
        elif directory := marked_directory(path):
            mark, problem = read_mark(self._fs, directory)
            if problem:
                yield {"type": "damage", "file": path, "why": problem}
            if mark is not None:
                yield {"type": "mark", "file": path, "log": directory, **mark._asdict()}
        elif path == SCRUB_PATH:
            yield from scrub_lines(self._fs)
        else:
            raise InvalidRequest(
                f"{self._fs.describe(path)} is no log, mark, snapshot, key file, segment or scrub",
                fix="name one of those; docs/formats/ has the tree",
            )

    def _wanted(self, topic_id: int) -> bool:
        return self._only is None or topic_id in self._only

    # Snapshots

    def _snapshot_file(self, number: int) -> Iterator[Line]:
        path = snapshot_path(number)
        file = self._fs.open_read(path)
        try:
            name = self._fs.describe(path)
            found = decode(partial(read_exact, file), file.size(), name)
        except (CorruptionError, EOFError) as error:
            yield {"type": "damage", "file": path, "why": str(error)}
            return
        finally:
            file.close()
        change, header = found.change, found.header
        yield {
            "type": "snapshot", "file": path, "number": header.number,
            "kind": "delta" if header.base_number else "full", "base_number": header.base_number,
            "file_hash": f"{found.file_hash:016x}", "created_ms": change.created_ms,
            "clean": change.clean, "generation": change.generation,
            "next_topic_id": change.next_topic_id, "next_file_id": change.next_file_id,
            "positions": change.positions, "topics_removed": sorted(change.topics_removed),
            "files_removed": sorted(change.files_removed),
        }  # fmt: skip
        yield from self._listed(
            path, change.topics.values(), change.files.values(), change.key_files, change.extra
        )

    def _snapshot_state(self, state: SnapshotState) -> Iterator[Line]:
        path = snapshot_path(state.number)
        yield {
            "type": "snapshot", "file": path, "number": state.number, "kind": "state",
            "created_ms": state.created_ms, "clean": state.clean, "generation": state.generation,
            "next_topic_id": state.next_topic_id, "next_file_id": state.next_file_id,
            "positions": state.positions, "boot_id": state.boot_id.hex(),
        }  # fmt: skip
        yield from self._listed(
            path, state.topics.values(), state.files.values(), state.key_files, state.extra
        )

    def _listed(
        self,
        path: str,
        topics: Iterable[TopicState],
        files: Iterable[SegmentMeta],
        key_files: Iterable[KeyFileMeta],
        extra: dict[str, bytes],
    ) -> Iterator[Line]:
        for topic in topics:
            if self._wanted(topic.id):
                yield topic_line(path, topic)
        if self._only is not None:
            return
        for meta in files:
            yield {"type": "listed_segment", "file": path, **msgspec.to_builtins(meta)}
        for key_file in key_files:
            fields = {n: getattr(key_file, n) for n in KeyFileMeta.__struct_fields__}
            yield {"type": "listed_key_file", "file": path, **fields}
        for name, value in extra.items():
            yield {"type": "extra", "file": path, "name": name, "bytes": len(value)}

    # The log

    def _log(self, directory: str, numbers: list[int], start: int = 0) -> Iterator[Line]:
        for number in numbers:
            if self._only is None:
                yield self._log_file(file_path(directory, number))
            for item in walk_shard(self._fs, directory, [number], ANYWHERE):
                if isinstance(item, WholeBatch):
                    if item.header.position >= start:
                        yield from self._batch(item)
                elif isinstance(item, Damage):
                    yield file_line("damage", item._asdict())
                elif item.torn_bytes:
                    yield file_line("torn", item._asdict())

    def _log_file(self, path: str) -> Line:
        file = self._fs.open_read(path)
        try:
            page, size = file.pread(PAGE_BYTES, 0), file.size()
        finally:
            file.close()
        line: Line = {"type": "wal_file", "file": path, "size": size}
        header = decode_file_header(page, self._fs.describe(path))
        if header is None:
            return line | {"header": None}
        salt, boot_id = f"{header.salt:08x}", header.boot_id.hex()
        return line | header._asdict() | {"salt": salt, "boot_id": boot_id}

    def _batch(self, item: WholeBatch) -> Iterator[Line]:
        header = item.header
        if self._only is None:
            yield {
                "type": "batch", "file": item.path, "offset": item.offset,
                "position": header.position, "durable": header.durable,
                "ordinal": header.ordinal, "entries": header.entries,
                "body_bytes": header.body_bytes, "salt": f"{header.salt:08x}",
            }  # fmt: skip
        for kind, entry in split_entries(item.body, header.entries, item.path):
            topic_id = entry_topic(entry)
            if kind == ENTRY_TOPIC_CREATE:
                self._names[topic_id] = decode_control(entry, TopicCreate)[1].name
            if self._wanted(topic_id):
                yield from self._entry(item.path, kind, topic_id, entry)

    def _entry(self, path: str, kind: int, topic_id: int, entry: bytes) -> Iterator[Line]:
        topic = self._names.get(topic_id)
        line: Line = {"type": "entry", "file": path, "topic_id": topic_id, "topic": topic}
        if kind != ENTRY_APPEND:
            name, shape = _CONTROLS[kind]
            control = decode_control(entry, shape)[1]
            fields = {n: plain_value(getattr(control, n)) for n in control.__struct_fields__}
            if isinstance(control, RecordsDelete):
                fields["seqs"] = seq_ranges(control.seqs)
            elif isinstance(control, Forward):
                fields["skip"] = seq_ranges(control.skip)
            yield line | {"kind": name} | fields
            return
        block = decode_block(entry)
        yield line | {
            "kind": "append", "first_seq": block.first_seq, "last_seq": block.last_seq,
            "count": block.count, "ts": block.ts, "arrived_ms": block.arrived_ms,
            "reserved_to": block.reserved_to, "bytes": block.bytes,
            "sidecar_bytes": len(block.sidecar),
        }  # fmt: skip
        if self._records:
            for record in block.rows(0, block.count).records():
                yield record_line(record, path, topic_id, topic)

    # Sealed files and key files

    def _found_segment(self, path: str) -> Iterator[Line]:
        file = self._fs.open_read(path)
        try:
            meta = find_meta(file)
        except (CorruptionError, EOFError) as error:
            yield {"type": "damage", "file": path, "why": str(error)}
            return
        finally:
            file.close()
        yield from self._segment(meta)

    def _segment(self, meta: SegmentMeta) -> Iterator[Line]:
        path = meta.path
        try:
            segment = Segment(meta, self._tiers.open(meta), BlockCache(CACHE_BYTES))
        except HeadraceError as error:
            yield {"type": "damage", "file": path, "why": str(error)}
            return
        try:
            directory = segment.directory()
            if self._only is None:
                columns = segment.index().file_columns
                fields = msgspec.to_builtins(meta)
                yield {"type": "segment", "file": path, **fields, "columns": columns}
            for topic_id in directory.topic_ids:
                if self._wanted(topic_id):
                    yield from self._run(segment, topic_id)
        except (CorruptionError, FileNotFoundError) as error:
            yield {"type": "damage", "file": path, "why": str(error)}
        finally:
            segment.close()

    def _run(self, segment: Segment, topic_id: int) -> Iterator[Line]:
        run = run_of(segment, topic_id)
        assert run is not None
        path, topic = segment.meta.path, self._names.get(topic_id)
        yield {
            "type": "run", "file": path, "topic_id": topic_id, "topic": topic,
            "first_seq": run.first_seq, "last_seq": run.last_seq, "rows": run.count,
            "bytes": run.bytes, "min_ts": run.min_ts, "max_ts": run.max_ts, "dense": run.dense,
        }  # fmt: skip
        if not self._records:
            return
        for start in range(0, run.count, ROWS_PER_READ):
            rows = run.rows(start, min(start + ROWS_PER_READ, run.count))
            for record in rows.records():
                yield record_line(record, path, topic_id, topic)

    def _keys(self, path: str, meta: KeyFileMeta | None) -> Iterator[Line]:
        try:
            data = read_file(self._fs, path)
            rows = decode_keys(data, meta or _key_meta(data), self._fs.describe(path))
        except (CorruptionError, FileNotFoundError, EOFError) as error:
            yield {"type": "damage", "file": path, "why": str(error)}
            return
        if self._only is None:
            yield {"type": "key_file", "file": path, "rows": len(rows)}
        for row in rows:
            if self._wanted(row.topic_id):
                fields = row._asdict() | {"key": row.key.hex()}
                topic = self._names.get(row.topic_id)
                yield {"type": "key", "file": path, "topic": topic, **fields}


def _key_meta(data: bytes) -> KeyFileMeta:
    """What a snapshot would list of a key file, from the file alone."""
    if len(data) < HEADER.size + TRAILER.size:
        raise EOFError(f"{len(data)} bytes are too few for a key file")
    _, _, _, file_id, rows, _, newest_ms = HEADER.unpack_from(data)
    (stored,) = TRAILER.unpack_from(data, len(data) - TRAILER.size)
    return KeyFileMeta(file_id, rows, newest_ms, len(data), stored)
