"""Reading the log back: torn is not corrupt, corrupt is never shorter, newer is refused."""

from __future__ import annotations

import random

import pytest

from headrace.core.clock import ManualClock, SeededRandom
from headrace.core.errors import UnsupportedFormat, WalCorrupt
from headrace.core.runtime import StepRuntime
from headrace.storage.wal import frame
from headrace.storage.wal.file import discover, file_path, shard_of
from headrace.storage.wal.frame import ENTRY_STATE, PAGE_BYTES, State
from headrace.storage.wal.next_file import FileSequence
from headrace.storage.wal.scan import ShardScan
from headrace.storage.wal.scan_shards import Waiting, scan_all
from headrace.storage.wal.shard import WalShard
from headrace.testing.simdisk import MODES, SimDisk

FILE_BYTES = 64 << 10


class Entry:
    """A commit of one numbered entry."""

    needs_sync: bool

    def __init__(self, number: int, payload: bytes, needs_sync: bool) -> None:
        self.entries = (frame.encode_control(ENTRY_STATE, number, State(payload)),)
        self.needs_sync = needs_sync
        self.acked = False

    def settle(self, error: object) -> None:
        assert error is None
        self.acked = True


def shard_on(
    disk: SimDisk, clock: ManualClock, directory: str = "wal", first_number: int = 1
) -> WalShard:
    numbers = iter(range(first_number, 10_000, 2))
    runtime, random = StepRuntime(clock), SeededRandom(first_number)
    files = FileSequence(
        disk,
        runtime,
        random,
        directory,
        shard_of(directory),
        lambda: next(numbers),
        file_bytes=FILE_BYTES,
    )
    return WalShard(
        disk, runtime, files,
        batch_bytes_max=16 << 10, pending_bytes_max=1 << 20, sync_interval_ms=50,
    )  # fmt: skip


def run(shard: WalShard, ms: int = 0) -> None:
    runtime = shard._runtime
    assert isinstance(runtime, StepRuntime) and isinstance(runtime.clock, ManualClock)
    runtime.run()
    runtime.clock.advance(ms)
    runtime.run()


def payload(number: int, size: int) -> bytes:
    return b"%06d" % number * (size // 6 + 1)


def write_log(disk: SimDisk, count: int, size: int = 900, *, every: int = 1) -> list[Entry]:
    """A log of `count` synced entries, `every` so many in a group, idle window closed."""
    shard = shard_on(disk, ManualClock())
    shard.start(0, [])
    entries = []
    for number in range(count):
        entry = Entry(number, payload(number, size), True)
        entries.append(entry)
        shard.stage(entry)
        if number % every == every - 1:
            run(shard)
    run(shard, 100)
    run(shard, 100)
    assert all(entry.acked for entry in entries)
    return entries


def scan(
    disk: SimDisk, starts: dict[str, int] | None = None, **how: int
) -> tuple[list[int], dict[str, ShardScan]]:
    found: list[int] = []

    def on_entry(kind: int, entry: bytes) -> None:
        number, state = frame.decode_control(entry, State)
        assert kind == ENTRY_STATE and state.state.startswith(b"%06d" % number)
        found.append(number)

    scans = scan_all(disk, discover(disk), starts or {}, on_entry, **how)  # type: ignore[arg-type]
    return found, scans


def paths(disk: SimDisk) -> list[str]:
    return [file_path("wal", number) for number in discover(disk)["wal"]]


# What was written comes back


def test_an_empty_directory_is_an_empty_log() -> None:
    assert scan(SimDisk()) == ([], {})


@pytest.mark.parametrize("every", [1, 3, 50])
def test_entries_come_back_in_order_over_many_files(every: int) -> None:
    disk = SimDisk()
    write_log(disk, 100, every=every)
    found, scans = scan(disk)
    assert found == list(range(100))
    result = scans["wal"]
    assert result.bytes_dropped == 0 and result.boot_id == disk.boot_id()
    assert len(paths(disk)) > 2


@pytest.mark.parametrize("lost", [False, True])
def test_a_shard_that_waits_for_another_is_left_alone(lost: bool) -> None:
    """What an entry of one shard waits for is read before more is put aside than allowed."""
    disk = SimDisk()
    for number in range(2):
        shard = shard_on(disk, ManualClock(), f"wal/shard-{number:02d}", first_number=1 + number)
        shard.start(0, [])
        for n in range(0 if lost and number else 40):
            shard.stage(Entry(2 * n + number, payload(2 * n + number, 900), True))
            run(shard)
    waiting, aside, applied, most = Waiting(3_000), [], [], 0

    def on_entry(kind: int, entry: bytes) -> None:
        """The n-th entry of the first shard needs the n-th of the second."""
        nonlocal most
        number = frame.decode_control(entry, State)[0]
        if number % 2 or number + 1 in applied:
            applied.append(number)
            if number - 1 in aside:
                aside.remove(number - 1)
                applied.append(number - 1)
                waiting.bytes -= 900
        else:
            aside.append(number)
            waiting.bytes += 900
            most = max(most, len(aside))

    scan_all(disk, discover(disk), {}, on_entry, waiting=waiting)
    assert sorted(applied + aside) == ([*range(0, 80, 2)] if lost else [*range(80)])
    assert (most, len(aside)) == ((40, 40) if lost else (4, 0))


@pytest.mark.parametrize("window_bytes", [64, 4_096, 5_000, 1 << 20])
def test_the_window_bounds_memory_and_changes_nothing(window_bytes: int) -> None:
    disk = SimDisk()
    write_log(disk, 30, size=3_000)
    assert scan(disk, window_bytes=window_bytes)[0] == list(range(30))


def test_a_scan_changes_nothing_on_disk() -> None:
    disk = SimDisk()
    write_log(disk, 30)
    before, position = disk.contents(), disk.position
    scan(disk)
    assert disk.contents() == before and disk.position == position


def test_files_of_several_shards_are_read_in_the_order_of_their_numbers() -> None:
    disk, clock = SimDisk(), ManualClock()
    shards = [shard_on(disk, clock, f"wal/shard-0{n}", n + 1) for n in range(2)]
    for shard in shards:
        shard.start(0, [])
    for number in range(40):
        shards[number % 2].stage(Entry(number, payload(number, 3_000), True))
        for shard in shards:
            run(shard)
    found, scans = scan(disk)
    assert sorted(found) == list(range(40)) and sorted(scans) == ["wal/shard-00", "wal/shard-01"]
    for parity in (0, 1):
        mine = [number for number in found if number % 2 == parity]
        assert mine == sorted(mine)


def test_a_scan_from_a_position_delivers_what_is_after_it() -> None:
    disk = SimDisk()
    write_log(disk, 60)
    positions = {}
    for path in paths(disk):
        data = disk.contents()[path]
        for at in range(PAGE_BYTES, len(data), 8):
            batch = frame.decode_batch_header(data, at)
            if batch is not None and batch.entries:
                number = int.from_bytes(data[at + frame.BATCH_HEADER_BYTES + 8 :][:8], "little")
                positions[number] = batch.position
    for number in (0, 1, 17, 30, 59):
        assert scan(disk, {"wal": positions[number]})[0] == list(range(number, 60))


def test_a_log_that_is_not_there_is_refused() -> None:
    disk = SimDisk()
    write_log(disk, 5)
    end = scan(disk)[1]["wal"].end
    assert scan(disk, {"wal": end})[0] == []
    with pytest.raises(WalCorrupt) as caught:
        scan(SimDisk(), {"wal": end})
    assert caught.value.fix and caught.value.detail["directory"] == "wal"


def test_a_log_that_begins_after_the_start_is_refused() -> None:
    disk = SimDisk()
    write_log(disk, 60, size=2_000)
    disk.unlink(paths(disk)[0])
    for start in ({}, {"wal": 0}, {"wal": 8_192}):
        with pytest.raises(WalCorrupt):
            scan(disk, start)


# Torn


@pytest.mark.parametrize("mode", MODES)
def test_no_power_loss_is_ever_called_corrupt(mode: str) -> None:
    """Every crash point: what was acknowledged is there, in order, and nothing is made up."""
    disk, clock = SimDisk(), ManualClock()
    shard = shard_on(disk, clock)
    shard.start(0, [])
    entries = []
    for number in range(24):
        entry = Entry(number, payload(number, 700 * (number % 5)), number % 3 != 1)
        entries.append(entry)
        shard.stage(entry)
        if number % 4 == 3:
            run(shard, 60)
        acked = [e for e in entries if e.acked and e.needs_sync]
        disk.mark(len(acked) and entries.index(acked[-1]) + 1)
    for crash in disk.images([mode], seed=11):  # type: ignore[list-item]
        promised = max([0, *(m for m in disk.marks_until(crash.position) if isinstance(m, int))])
        found, _ = scan(crash.disk)
        assert found == list(range(len(found)))
        assert len(found) >= promised, (crash.position, mode)


def test_a_torn_tail_ends_the_log_and_is_counted() -> None:
    """L5: a torn tail is the end of the log."""
    disk = SimDisk()
    write_log(disk, 5)
    path = paths(disk)[0]
    data = disk.contents()[path]
    end = (
        max(at for at in range(PAGE_BYTES, len(data), 8) if frame.decode_batch_header(data, at))
        + 56
    )
    for junk in (b"\1", b"garbage" * 100, frame.BATCH_MAGIC, data[PAGE_BYTES : PAGE_BYTES + 56]):
        torn = disk.copy()
        torn.overwrite(path, end, junk)
        found, scans = scan(torn)
        assert found == list(range(5)) and scans["wal"].bytes_dropped > 0


def test_a_log_goes_on_after_a_torn_tail() -> None:
    """A later file that begins where the torn one ends was written by a recovery."""
    disk = SimDisk()
    write_log(disk, 5)
    path = paths(disk)[0]
    data = disk.contents()[path]
    last = max(at for at in range(PAGE_BYTES, len(data), 8) if frame.decode_batch_header(data, at))
    disk.overwrite(path, last + 3, b"?")  # the empty batch that closes the window
    end = scan(disk)[1]["wal"].end
    disk.settle()
    for name in paths(disk)[1:]:
        disk.unlink(name)
    shard = shard_on(disk, ManualClock(), first_number=101)
    shard.start(end, [*Entry(5, payload(5, 10), True).entries])
    assert scan(disk)[0] == [0, 1, 2, 3, 4, 5]


def test_a_batch_of_another_salt_is_not_believed() -> None:
    """What an earlier use of the disk left behind cannot come alive."""
    disk = SimDisk()
    write_log(disk, 3)
    path = paths(disk)[0]
    data = disk.contents()[path]
    batches = [
        (at, b) for at in range(0, len(data), 8) if (b := frame.decode_batch_header(data, at))
    ]
    at, last = batches[-1]
    (body,) = Entry(77, payload(77, 10), True).entries
    position = last.position + 56
    stale = frame.encode_batch_header(
        last.salt ^ 1, position, last.durable, last.ordinal + 1, body, 1
    )
    disk.overwrite(path, at + 56, stale + body)
    assert scan(disk)[0] == [0, 1, 2]
    again = frame.encode_batch_header(last.salt, position, last.durable, last.ordinal + 1, body, 1)
    disk.overwrite(path, at + 56, again + body)
    assert scan(disk)[0] == [0, 1, 2, 77], "the salt was all that was wrong with it"


def test_data_that_looks_like_a_header_is_data() -> None:
    disk, clock = SimDisk(), ManualClock()
    shard = shard_on(disk, clock)
    shard.start(0, [])
    trap = frame.encode_batch_header(1, 1 << 40, 1 << 39, 0, b"", 0)
    for number in range(4):
        lead = b"%06d" % number + b"__"
        shard.stage(Entry(number, lead + trap * 20 + frame.BATCH_MAGIC * 50, True))
        run(shard, 100)
    assert scan(disk)[0] == [0, 1, 2, 3]


# Corrupt


def noticed(disk: SimDisk, expected: list[int]) -> bool:
    """True when the damage is refused; False when nothing was lost by it.  Else an error."""
    refused: WalCorrupt | None = None
    try:
        found, _ = scan(disk)
    except WalCorrupt as error:
        refused = error
    if refused is None:
        assert found == expected, "fewer entries, and nobody was told"
        return False
    assert refused.fix and refused.code == "wal_corrupt" and refused.detail
    return True


def acknowledged_spans(disk: SimDisk) -> list[tuple[str, int, int]]:
    """(path, offset, length) of the bytes of every batch, but the last, which closes the log."""
    spans = []
    for path in paths(disk):
        data = disk.contents()[path]
        for at in range(PAGE_BYTES, len(data), 8):
            batch = frame.decode_batch_header(data, at)
            if batch is not None:
                spans.append((path, at, frame.BATCH_HEADER_BYTES + batch.body_bytes))
    return spans[:-1]


@pytest.mark.parametrize("every", [1, 7])
def test_every_flip_in_acknowledged_bytes_is_noticed(every: int) -> None:
    """L5: damage below what is known to be durable is refused."""
    disk = SimDisk()
    write_log(disk, 70, size=500, every=every)
    spans = acknowledged_spans(disk)
    dice = random.Random(every)
    for _ in range(500):
        path, at, length = dice.choice(spans)
        image = disk.copy()
        image.flip(path, 8 * at + dice.randrange(8 * length))
        assert noticed(image, list(range(70))), (path, at, length)


def test_flips_anywhere_else_lose_nothing() -> None:
    """File headers, padding between groups, zeros not yet used: noticed or harmless."""
    disk = SimDisk()
    write_log(disk, 40, size=500)
    dice = random.Random(5)
    refused = 0
    for _ in range(400):
        image = disk.copy()
        path = dice.choice(paths(disk))
        image.flip(path, dice.randrange(8 * len(disk.contents()[path])))
        refused += noticed(image, list(range(40)))
    assert refused


def test_a_flip_in_the_header_of_a_used_file_is_noticed() -> None:
    disk = SimDisk()
    write_log(disk, 40, size=2_000)
    used = {path for path, _, _ in acknowledged_spans(disk)}
    assert len(used) >= 2
    for path in used:
        for bit in (3, 8 * 9, 8 * 13 + 1, 8 * 70, 8 * 4_000):
            image = disk.copy()
            image.flip(path, bit)
            assert noticed(image, list(range(40))), (path, bit)


@pytest.mark.parametrize("damage", ["unlink", "empty", "half", "zero", "zero page"])
def test_a_spoilt_file_is_noticed(damage: str) -> None:
    disk = SimDisk()
    write_log(disk, 60, size=2_000)
    used = sorted({path for path, _, _ in acknowledged_spans(disk)})
    for path in used:
        image = disk.copy()
        size = len(image.contents()[path])
        if damage == "unlink":
            image.unlink(path)
        elif damage == "empty":
            image.truncate_to(path, 0)
        elif damage == "half":
            image.truncate_to(path, size // 2)
        elif damage == "zero":
            image.zero(path, 0, size)
        else:
            image.zero(path, 2 * PAGE_BYTES, PAGE_BYTES)
        if path != used[-1]:
            assert noticed(image, list(range(60))), (path, damage)
        elif damage in ("half", "zero page"):
            noticed(image, list(range(60)))
        # A last file that is gone as a whole leaves no trace in the log.


def test_swapped_files_are_noticed() -> None:
    disk = SimDisk()
    write_log(disk, 60, size=2_000)
    used = sorted({path for path, _, _ in acknowledged_spans(disk)})
    image = disk.copy()
    image.swap(used[0], used[1])
    assert noticed(image, list(range(60)))


def test_an_error_names_the_file_the_offset_and_the_way_out() -> None:
    disk = SimDisk()
    write_log(disk, 20)
    path, at, _ = acknowledged_spans(disk)[9]
    disk.flip(path, 8 * (at + 60))
    with pytest.raises(WalCorrupt) as caught:
        scan(disk)
    error = caught.value
    assert disk.describe(path) in str(error) and "check --repair" in error.fix
    assert error.detail["file"] == path
    offset = error.detail["offset"]
    assert isinstance(offset, int) and at - PAGE_BYTES <= offset <= at


# Newer


def test_a_newer_log_file_is_refused_by_name() -> None:
    disk = SimDisk()
    write_log(disk, 3)
    path = paths(disk)[0]
    header = frame.decode_file_header(disk.contents()[path][:PAGE_BYTES], path)
    assert header is not None
    disk.overwrite(
        path, 0, frame.encode_file_header(header._replace(version=frame.FORMAT_VERSION + 1))
    )
    with pytest.raises(UnsupportedFormat, match="wal-") as caught:
        scan(disk)
    assert caught.value.fix


def test_an_entry_of_an_unknown_type_is_refused_by_name() -> None:
    disk, clock = SimDisk(), ManualClock()
    shard = shard_on(disk, clock)
    shard.start(0, [])
    entry = Entry(0, payload(0, 10), True)
    entry.entries = (bytes([200]) + entry.entries[0][1:],)
    shard.stage(entry)
    run(shard)
    with pytest.raises(UnsupportedFormat, match="200"):
        scan(disk)


# Files of no use


def test_prepared_files_that_were_never_used_are_of_no_use() -> None:
    disk = SimDisk()
    write_log(disk, 3)
    _, scans = scan(disk)
    assert scans["wal"].useless == paths(disk)[1:]
    assert len(scans["wal"].useless) == 1
