"""The manifest of a topic: which sealed files hold its records, so that others can read them there.

Only this file says what such a reader has to know: from which seq on the records are in no file
yet, which rows of the files are dead, what was lost, and where the files lie.  All of it is of one
instant.  The files stay where the manifest says until its pin lapses; a pin can be renewed, and is
in memory only: after a restart a reader that misses a file asks for a new manifest.

It reads no records: only the directories of the files.
"""

from __future__ import annotations

import logging
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Sequence
from itertools import islice
from os.path import abspath
from typing import NamedTuple

import msgspec
from pyroaring import BitMap64

from headrace.api.segments import Erasures, Floors, Manifest, ManifestFile
from headrace.core.errors import NotFound, SegmentCorrupt, Throttled, typed
from headrace.core.runtime import Ticket
from headrace.engine.removal import retention
from headrace.engine.removal.deleted_seqs import DeletedSeqs
from headrace.engine.removal.retention import LANE
from headrace.engine.sealing.sealed_files import SealedFiles
from headrace.engine.state import EngineState
from headrace.engine.topics.topic import Topic
from headrace.storage.files.catalog import runs_in
from headrace.storage.files.tier import COLD
from headrace.storage.segment.format import FORMAT_VERSION
from headrace.storage.segment.reader import Segment
from headrace.storage.segment.run import Run
from headrace.storage.seq_ranges import ranges_of

log = logging.getLogger("headrace.manifest")

# Deletes are listed as ranges up to here; beyond, as a bitmap.
DELETE_RANGES_MAX = 1_000
PIN_BYTES = 16
WORK_LANE = "work"  # of checkpoints: files are removed there and nowhere else


class _Pin:
    """Files that stay for one reader."""

    __slots__ = ("expires_ms", "file_ids", "topic")

    def __init__(self, topic: str, file_ids: Sequence[int]) -> None:
        self.topic = topic
        self.file_ids = file_ids
        self.expires_ms = 0


class Manifests:
    """Makes manifests of one engine's topics, and keeps their pins."""

    def __init__(self, state: EngineState, files: SealedFiles) -> None:
        self._state = state
        self._files = files
        self._pins: dict[str, _Pin] = {}
        self._making = 0
        self._armed = False

    def __len__(self) -> int:
        """Pins that have not lapsed."""
        return len(self._pins)

    def make(self, name: str) -> Ticket[Manifest]:
        """The manifest of a topic as it is now; its files are pinned."""
        state = self._state
        topic = state.topic(name)
        retention.enforce(state, topic)
        self._drop_lapsed()
        pins_max = state.settings.manifest_pins_max
        if len(self._pins) + self._making >= pins_max:
            raise Throttled(
                f"{len(self._pins)} manifests are in use",
                fix="release those that are done, wait until one lapses, or raise "
                "HEADRACE_MANIFEST_PINS_MAX",
                detail={"limit": "manifest_pins_max", "max": pins_max},
            )
        ticket: Ticket[Manifest] = Ticket(state.runtime)
        seen = _Seen(topic)
        files = [(place, state.catalog.files_of(place.topic_id)) for place in seen.places]
        # All that might be needed, at once: which of them are is known when they have been read.
        held = [file.meta.file_id for _, held_there in files for file in held_there]
        self._files.pins.hold(held)
        self._making += 1

        def done(value: object, error: BaseException | None) -> None:
            self._making -= 1
            try:
                if error is not None:
                    ticket.fail(typed(error))
                else:
                    assert isinstance(value, _Found)
                    ticket.resolve(self._finish(seen, value))
            finally:
                self._let_go(held)

        state.runtime.submit(LANE, lambda: seen.find(files), done)
        return ticket

    def renew(self, name: str, pin: str) -> int:
        """Keep the files of a manifest for another while; returns when its pin lapses."""
        found = self._find(name, pin)
        found.expires_ms = self._state.clock.now_ms() + self._state.settings.manifest_pin_ms
        return found.expires_ms

    def release(self, name: str, pin: str) -> None:
        """The files of a manifest may go."""
        self._find(name, pin)
        self._let_go(self._pins.pop(pin).file_ids)

    def _find(self, name: str, pin: str) -> _Pin:
        self._drop_lapsed()
        found = self._pins.get(pin)
        if found is None or found.topic != name:
            raise NotFound(
                f"no pin {pin[:80]!r} on {name!r}: it has lapsed, or the server has restarted",
                fix="ask for a new manifest and plan again",
                detail={"pin": pin[:80]},
            )
        return found

    def _finish(self, seen: _Seen, found: _Found) -> Manifest:
        state = self._state
        pin = "pin_" + urlsafe_b64encode(state.random.bytes(PIN_BYTES)).rstrip(b"=").decode()
        kept = _Pin(seen.name, tuple(file.file_id for file in found.files))
        pin_ms = state.settings.manifest_pin_ms
        kept.expires_ms = state.clock.now_ms() + pin_ms
        self._pins[pin] = kept
        self._files.pins.hold(kept.file_ids)
        self._arm(pin_ms)
        return Manifest(
            topic=seen.name,
            topic_id=seen.topic_id,
            epoch=seen.epoch,
            head_seq=seen.head,
            earliest_seq=seen.base + 1,
            tail_from_seq=seen.sealed_to + 1,
            floors=seen.floors,
            gaps=seen.gaps,
            files=[self._located(file, segment) for file, segment in found.pairs()],
            pin=pin,
            pin_ms=pin_ms,
            pin_expires_ms=kept.expires_ms,
            deletes=found.deletes,
            deletes_bitmap=found.deletes_bitmap,
            directory=state.identity,
            erased=found.erased,
            content_type=seen.content_type,
        )

    def _located(self, file: ManifestFile, segment: Segment) -> ManifestFile:
        """Where the file is at this moment: from now on its pin keeps it there."""
        tiers = self._state.tiers
        # A file that has moved since has its old copy still, and the new one as well.
        known = self._state.catalog.find(file.file_id)
        meta = segment.meta if known is None else known.meta
        cold = meta.tier == COLD and tiers.cold is not None
        store = tiers.cold if cold and tiers.cold is not None else tiers.hot
        location = store.describe(meta.path)
        if "://" not in location:
            location = abspath(location)
        return msgspec.structs.replace(file, location=location, tier="cold" if cold else "hot")

    # Pins that lapse

    def _drop_lapsed(self) -> None:
        now = self._state.clock.now_ms()
        lapsed = [pin for pin, held in self._pins.items() if held.expires_ms <= now]
        for pin in lapsed:
            self._let_go(self._pins.pop(pin).file_ids)

    def _arm(self, delay_ms: int) -> None:
        """Look again when the next pin may have lapsed."""
        if not self._armed:
            self._armed = True
            self._state.runtime.later(max(1, delay_ms), self._look_again)

    def _look_again(self) -> None:
        self._armed = False
        if self._state.closing:
            return
        self._drop_lapsed()
        if self._pins:
            first = min(held.expires_ms for held in self._pins.values())
            self._arm(first - self._state.clock.now_ms())

    def _let_go(self, file_ids: Sequence[int]) -> None:
        files, state = self._files, self._state
        files.pins.let_go(file_ids)
        if files.waits_for_pins and not state.closing:
            state.runtime.submit(WORK_LANE, files.remove_let_go, _removed)


def _removed(_value: object, error: BaseException | None) -> None:
    if error is not None:
        log.warning("files that nobody needs are still there: %s", error)


class _Found:
    """What the files say, and the bitmap of deletes in the form it is sent in."""

    __slots__ = ("_segments", "deletes", "deletes_bitmap", "erased", "files")

    def __init__(
        self,
        files: list[ManifestFile],
        segments: list[Segment],
        dead: BitMap64,
        erased: DeletedSeqs | None,
    ) -> None:
        self.files = files
        self.erased = None if erased is None else _erasures(erased)
        self._segments = segments
        ranges = list(islice(ranges_of(dead), DELETE_RANGES_MAX + 1))
        self.deletes: list[tuple[int, int]] | None = ranges
        self.deletes_bitmap: str | None = None
        if len(ranges) > DELETE_RANGES_MAX:
            self.deletes = None
            self.deletes_bitmap = b64encode(dead.serialize()).decode()

    def pairs(self) -> list[tuple[ManifestFile, Segment]]:
        return list(zip(self.files, self._segments, strict=True))


def _erasures(erased: DeletedSeqs) -> Erasures:
    tags = [(tag, prefix, last) for (tag, prefix), last in erased.tags.items()]
    seqs = b64encode(erased.seqs.serialize()).decode()
    return Erasures(erased.since, erased.below, seqs, tags)


class _Place(NamedTuple):
    """Whose files hold the sealed records of a topic, up to which seq."""

    topic_id: int
    last: int


def _places_of(topic: Topic) -> tuple[list[_Place], int]:
    """Where the sealed records of a topic are, oldest first, and the last of them.

    What a fork inherits is sealed when its owner's is; what follows an unsealed one is not listed.
    """
    places = []
    for owner, _, last in topic.shares:
        if last <= topic.base:
            continue
        sealed_to = min(owner.sealed_to, last)
        places.append(_Place(owner.id, sealed_to))
        if sealed_to < last:
            return places, sealed_to
    places.append(_Place(topic.id, topic.sealed_to))
    return places, topic.sealed_to


class _Seen:
    """A topic at one instant."""

    def __init__(self, topic: Topic) -> None:
        self.name = topic.name
        self.topic_id = topic.id
        self.epoch = topic.epoch
        self.content_type = None if topic.stream is None else topic.stream.content_type
        self.head = topic.head
        self.base = topic.base
        self.places, sealed_to = _places_of(topic)
        self.sealed_to = max(sealed_to, topic.base)
        self.floors = Floors(
            topic.cap_floor, topic.ttl_floor, topic.crash_floor, topic.trim_floor,
            topic.delete_floor,
        )  # fmt: skip
        self.gaps = sorted([*topic.gaps, *topic.trims])
        self._holes = BitMap64() if topic.holes is None else topic.holes.copy()
        self._erased = None if topic.deleted is None else topic.deleted.copy()

    def find(self, held: Sequence[tuple[_Place, Sequence[Segment]]]) -> _Found:
        """Off the loop: the files with rows that were live, and which of their rows were not."""
        found, segments = [], []
        cursor = self.base
        files = [file for _, files_there in held for file in files_there]
        for place, files_there in held:
            for run in runs_in(files_there, place.topic_id):
                if run.last_seq <= self.base or run.first_seq > place.last:
                    continue
                self._refuse_missing(files, cursor + 1, run.first_seq - 1)
                found.append(_file_of(run, place))
                segments.append(run.segment)
                cursor = min(run.last_seq, place.last)
        self._refuse_missing(files, cursor + 1, self.sealed_to)
        dead = self._holes
        dead.remove_range(self.sealed_to + 1, self.head + 2)
        for first, last in self.gaps:
            dead.remove_range(first, last + 1)
        return _Found(found, segments, dead, self._erased)

    def _refuse_missing(self, files: Sequence[Segment], first: int, last: int) -> None:
        """Live records that no file has must not be taken for deleted ones."""
        first = max(first, self.base + 1)
        if last < first or last - first + 1 == self._holes.range_cardinality(first, last + 1):
            return
        problems = [file.problem for file in files if file.problem is not None]
        why = problems[0].message if problems else "no file has them"
        raise SegmentCorrupt(
            f"seqs {first} to {last} of {self.name!r} cannot be found: {why}",
            fix="run `headrace check`, then restore the file from a backup or the cold tier",
            detail={"topic": self.name, "first_seq": first, "last_seq": last},
        )


def _file_of(run: Run, place: _Place) -> ManifestFile:
    """A file's rows of a topic; those above what is sealed, or inherited, do not count."""
    meta = run.segment.meta
    rows, last_seq = run.count, run.last_seq
    if last_seq > place.last:
        rows, last_seq = run.row_of(place.last + 1), place.last
    return ManifestFile(
        file_id=meta.file_id,
        location="",
        tier="",
        format=FORMAT_VERSION,
        size=meta.size,
        footer_offset=meta.footer_offset,
        hash=f"{meta.footer_hash:016x}",
        owner=meta.owner,
        topics=meta.topics,
        rows=meta.rows,
        first_row=run.first_row,
        row_count=rows,
        first_seq=run.first_seq,
        last_seq=last_seq,
        min_ts=run.min_ts,
        max_ts=run.max_ts,
        bytes=run.bytes,
        topic_id=place.topic_id,
    )
