"""Chunks arrive once: repeats, rivals, older batches, restarts, and staged batches that crash."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from headrace.client import Client
from headrace.core.clock import SystemClock
from headrace.core.errors import (
    ConfigError,
    PlanNotDeterministic,
    ProducerGap,
    RowsRefused,
    StagedRowsLost,
    TopicFull,
    TopicNotFound,
    Unreachable,
    WriteFenced,
)
from headrace.spark.connection import connect
from headrace.spark.options import Connection, sink_options
from headrace.spark.writing import sending
from headrace.spark.writing.chunks import CHUNK_ROWS_MAX, Chunk, chunks
from headrace.spark.writing.sending import Sender, Sending
from headrace.spark.writing.sink import BatchWriter
from headrace.spark.writing.staging import Staged, Staging
from headrace.testing.process import ServerProcess

ROWS = 5 * CHUNK_ROWS_MAX + 7


def batches(first: int = 0, count: int = ROWS, size: int = 10_000) -> Iterator[pa.RecordBatch]:
    """JSON numbers, so many to a batch."""
    for start in range(first, first + count, size):
        numbers = range(start, min(start + size, first + count))
        yield pa.record_batch({"data": pa.array(map(str, numbers), pa.utf8())})


def stored(client: Client, topic: str) -> list[str]:
    found: list[str] = []
    page = client.diff_arrow(topic)
    while page.table.num_rows:
        found += [value.decode() for value in page.table["data"].to_pylist()]
        page = client.diff_arrow(topic, page.next_from_seq)
    return found


def numbers(count: int = ROWS) -> list[str]:
    return [str(number) for number in range(count)]


def send(client: Client, topic: str, sender: Sender, rows: Iterator[pa.RecordBatch]) -> int:
    return Sending(client, sender, create=True).send_all(chunks(rows, topic))


def test_a_repeat_is_stored_once_whatever_its_batches(client: Client, topic: str) -> None:
    for sender in (Sender("spark:q:0", 3), Sender(key="w/0")):
        name = f"{topic}-{'p' if sender.producer else 'k'}"
        assert send(client, name, sender, batches()) == ROWS
        assert send(client, name, sender, batches(size=333)) == ROWS
        assert stored(client, name) == numbers()
    # A first attempt that got as far as its second chunk.
    once = Sending(client, Sender("p", 0), create=True)
    for chunk in list(chunks(batches(), topic))[:2]:
        once.send(chunk)
    send(client, topic, Sender("p", 0), batches(size=7_000))
    assert stored(client, topic) == numbers()


def test_two_attempts_at_once_store_every_row_once(server: ServerProcess, topic: str) -> None:
    together = threading.Barrier(2)
    failures: list[BaseException] = []

    def meeting(size: int) -> Iterator[pa.RecordBatch]:
        for batch in batches(size=size):
            together.wait(60)  # so that neither is ahead by more than a batch
            yield batch

    def attempt() -> None:
        try:
            with Client(server.url) as own:
                send(own, topic, Sender("spark:q:0", 0), meeting(CHUNK_ROWS_MAX))
        except BaseException as failure:  # noqa: BLE001 - the test's own thread shows it
            failures.append(failure)
            together.abort()

    threads = [threading.Thread(target=attempt) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    with Client(server.url) as client:
        assert stored(client, topic) == numbers()


def test_an_older_batch_is_fenced(client: Client, topic: str) -> None:
    send(client, topic, Sender("p", 7), batches(count=10))
    with pytest.raises(WriteFenced, match=r"batch 6 comes after batch 7.*new checkpoint") as error:
        send(client, topic, Sender("p", 6), batches(count=10))
    assert error.value.detail["written"] == 7
    assert stored(client, topic) == numbers(10)


@pytest.mark.parametrize("sender", [Sender("p", 0), Sender(key="w/0")], ids=["producer", "key"])
@pytest.mark.parametrize(
    ("before", "now"),
    [
        (ROWS, ROWS - 1),  # the last chunk is shorter
        (ROWS, ROWS + 1),
        (CHUNK_ROWS_MAX + 5, ROWS),  # what was the last chunk goes on
        (5, CHUNK_ROWS_MAX),
    ],
)
def test_other_rows_than_before_are_told(
    client: Client, topic: str, sender: Sender, before: int, now: int
) -> None:
    send(client, topic, sender, batches(count=before))
    with pytest.raises(PlanNotDeterministic, match="mode=staged"):
        send(client, topic, sender, batches(count=now))


def test_fewer_chunks_than_before_are_told(client: Client, topic: str) -> None:
    send(client, topic, Sender("p", 0), batches())
    with pytest.raises(PlanNotDeterministic, match=r"has 2 chunks for .* now and had 6"):
        send(client, topic, Sender("p", 0), batches(count=2 * CHUNK_ROWS_MAX))


@pytest.mark.parametrize("sender", [Sender("p", 0), Sender(key="w/0")], ids=["producer", "key"])
def test_as_many_rows_in_another_order_are_told(client: Client, topic: str, sender: Sender) -> None:
    """As behind a shuffle, whose blocks come as they come: full chunks, none the same."""
    other = [*range(7, 2 * CHUNK_ROWS_MAX), *range(7)]
    for written in (1, 2):  # of two chunks, when the first attempt ends
        name = f"{topic}-{written}"
        first = Sending(client, sender, create=True)
        for chunk in list(chunks(batches(count=2 * CHUNK_ROWS_MAX), name))[:written]:
            first.send(chunk)
        again = pa.record_batch({"data": pa.array(map(str, other), pa.large_utf8())})
        with pytest.raises(PlanNotDeterministic, match="other ones than"):
            send(client, name, sender, iter([again]))
        # Rows that are not there any more cannot be told apart, and are no error.
        client.delete_records(name, before_seq=written * CHUNK_ROWS_MAX)
        send(client, name, sender, iter([again]))


def test_what_the_server_refuses_is_named(client: Client, topic: str) -> None:
    large = pa.record_batch({"data": [b"x" * (1 << 20), b"x" * (1 << 20 | 1)]})
    with pytest.raises(RowsRefused, match="a record of 1048577 bytes") as error:
        send(client, topic, Sender("p", 0), iter([large]))
    assert error.value.detail["code"] == "record_too_large"
    with pytest.raises(RowsRefused, match="data of row 1 is not JSON"):
        send(client, topic, Sender("p", 0), iter([pa.record_batch({"data": ["1", "{"]})]))
    assert topic not in [found.topic for found in client.topics(topic)]


def test_a_task_has_a_bounded_number_of_topics(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "TOPICS_PER_TASK_MAX", 2)
    rows = pa.record_batch({"topic": [f"{topic}-{n}" for n in range(3)], "data": ["1"] * 3})
    with pytest.raises(RowsRefused, match="more than 2 topics"):
        Sending(client, Sender("p", 0), create=True).send_all(chunks([rows], None))


def test_a_topic_that_must_exist_is_not_created(client: Client, topic: str) -> None:
    with pytest.raises(Exception, match="does not exist"):
        Sending(client, Sender("p", 0), create=False).send_all(chunks(batches(count=1), topic))
    client.put_topic(topic, {"type": "queue"})
    Sending(client, Sender("p", 0), create=False).send_all(chunks(batches(count=9), topic))
    assert stored(client, topic) == numbers(9)


def test_a_server_that_is_killed_and_comes_back_gets_every_row_once(
    start_server: Callable[..., ServerProcess], topic: str
) -> None:
    server = start_server()
    running = [server]

    def killing() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches(size=CHUNK_ROWS_MAX)):
            yield batch
            if number in (1, 3):
                running[-1].kill()
                # Up again at some moment of the next call.
                timer = threading.Timer(0.3, lambda: running.append(start_server(port=server.port)))
                timer.start()
                timers.append(timer)

    timers: list[threading.Timer] = []
    with connect(Connection(server.url)) as client:
        send(client, topic, Sender("p", 0), killing())
        for timer in timers:
            timer.join()
        send(client, topic, Sender("p", 0), batches())
        assert stored(client, topic) == numbers()
    assert len(running) == 3


def test_back_pressure_is_waited_for(
    start_server: Callable[..., ServerProcess], topic: str
) -> None:
    server = start_server(max_total_bytes=300_000)
    rows = 2 * CHUNK_ROWS_MAX
    with connect(Connection(server.url)) as client:
        client.append("filler", ["x" * 200_000])

        def make_room() -> None:
            with Client(server.url) as own:
                while 'status="429"' not in own.metrics_text():
                    pass
                own.delete_topic("filler")

        thread = threading.Thread(target=make_room)
        thread.start()
        send(client, topic, Sender("p", 0), batches(count=rows))
        thread.join()
        assert stored(client, topic) == numbers(rows)


def test_more_producers_than_a_topic_remembers_are_refused(
    start_server: Callable[..., ServerProcess], topic: str
) -> None:
    server = start_server(producers_per_topic_max=1)
    with connect(Connection(server.url)) as client:
        send(client, topic, Sender("spark:q:0", 0), batches(count=3))
        with pytest.raises(TopicFull, match="PRODUCERS_PER_TOPIC_MAX"):
            send(client, topic, Sender("spark:q:1", 0), batches(count=3))
        send(client, topic, Sender("spark:q:0", 1), batches(3, 3))
        assert stored(client, topic) == numbers(6)


# Staged


class Crash(Exception):
    """As if the driver had died."""


class Crashing(Staging):
    """Stops before the step that is named, at its `count`-th time."""

    at = ""
    count = 1

    def step(self, name: str) -> None:
        if name == self.at:
            self.count -= 1
            if not self.count:
                raise Crash(name)


def table(text: str, rows: int) -> pa.Table:
    """Rows that say which attempt they are of."""
    return pa.table(
        {
            "data": [f'"{text}-{row}"' for row in range(rows)],
            "tag": [None if row % 3 else "third" for row in range(rows)],
            "node": [None] * (rows - 1) + ["last"],
            "meta": ['{"a": 1}'] + [None] * (rows - 1),
        },
        schema=pa.schema([(name, pa.utf8()) for name in ("data", "tag", "node", "meta")]),
    )


def staged_batch(staging: Staging, topics: list[str], attempt: str, rows: int) -> list[Staged]:
    """Two partitions, the first of which ran twice."""
    staging.stage([Chunk(topics[0], table(f"{attempt}-lost", rows))], 0, text=True)
    return [
        staging.stage(
            [Chunk(topic, table(f"{attempt}-{partition}", rows)) for topic in topics],
            partition,
            text=True,
        )
        for partition in (1, 0)
    ]


STEPS = [
    ("decide", 1),
    ("publish", 1),
    ("published a chunk", 1),
    ("published a chunk", 3),
    ("note", 1),
    ("clean", 1),
    ("done", 1),
    ("", 1),
]


@pytest.mark.parametrize(("step", "count"), STEPS, ids=lambda value: str(value).replace(" ", "_"))
@pytest.mark.parametrize("again", STEPS[1:4], ids=lambda value: f"then_{value[0]}{value[1]}")
def test_a_staged_batch_is_published_once_wherever_it_crashes(
    client: Client, topic: str, step: str, count: int, again: tuple[str, int]
) -> None:
    topics = [f"{topic}-a", f"{topic}-b"]
    rows = CHUNK_ROWS_MAX // 2 + 10  # so that two partitions are two chunks

    def run(batch: int, attempt: str, rows: int, at: str = "", count: int = 1) -> bool:
        staging = Crashing(client, topic, "q", batch, create=True)
        staging.at, staging.count = at, count
        messages = staged_batch(staging, topics, attempt, rows)
        try:
            staging.commit(messages)
        except Crash:
            return False
        return True

    assert run(0, "zero", 3)
    run(1, "one", rows, step, count)
    # Another plan, with fewer rows: it counts only if nothing had been decided.
    run(1, "two", rows - 5, *again)
    assert run(1, "three", rows - 9)
    assert run(2, "end", 2)
    for name in topics:
        found = stored(client, name)
        assert found[:6] == [f'"zero-{p}-{row}"' for p in (0, 1) for row in range(3)]
        assert found[-4:] == [f'"end-{p}-{row}"' for p in (0, 1) for row in range(2)]
        chosen = "two" if step == "decide" else "one"
        count = rows - 5 if step == "decide" else rows
        assert found[6:-4] == [f'"{chosen}-{p}-{row}"' for p in (0, 1) for row in range(count)]
    # Only the last decision is left, and what it says was published.
    state = client.topic(f"{topic}.staged-q", touch=False)
    assert state.count == 1
    with pytest.raises(WriteFenced, match="batch 1 comes after batch 2"):
        run(1, "late", 1)
    first = client.diff(topics[0], limit=6).records
    assert [record.tag for record in first] == ["third", None, None] * 2
    assert [record.node for record in first] == [None, None, "last"] * 2
    assert [bytes(record.raw_meta) for record in first] == [b'{"a": 1}', b"null", b"null"] * 2


def test_staged_bytes_stay_bytes(client: Client, topic: str) -> None:
    rows = pa.table({"data": [b"\xff\x00", b""]})
    staging = Staging(client, topic, "q", 0, create=True)
    staging.commit([staging.stage([Chunk(topic, rows)], 0, text=False)])
    page = client.diff_arrow(topic)
    assert page.table["data"].to_pylist() == [b"\xff\x00", b""]
    assert page.table["kind"].to_pylist() == [1, 1]


def test_a_large_decision_is_of_several_records(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.spark.writing.staging.RANGES_PER_RECORD_MAX", 2)
    one: Any = Crashing(client, topic, "q", 0, create=True)
    one.at = "publish"
    rows = [Chunk(topic, pa.table({"data": [str(number)]})) for number in range(7)]
    with pytest.raises(Crash):
        one.commit([one.stage(rows, 0, text=True)])
    two = Staging(client, topic, "q", 0, create=True)
    two.commit([two.stage(rows[:1], 0, text=True)])
    assert stored(client, topic) == numbers(7)


@pytest.mark.parametrize("before_seq", [4, 10], ids=["some", "all"])
def test_staged_rows_that_somebody_deleted_are_told(
    client: Client, topic: str, before_seq: int
) -> None:
    staging = Crashing(client, topic, "q", 0, create=True)
    staging.at = "publish"
    message = staging.stage([Chunk(topic, table("x", 9))], 0, text=True)
    with pytest.raises(Crash):
        staging.commit([message])
    client.delete_records(staging.name, before_seq=before_seq)
    with pytest.raises(StagedRowsLost, match="has no record 1, which batch 0 needs"):
        Staging(client, topic, "q", 0, create=True).commit([message])


def test_a_staging_topic_that_is_made_anew_meanwhile_is_told(client: Client, topic: str) -> None:
    staging = Staging(client, topic, "q", 0, create=True)
    first = staging.stage([Chunk(topic, table("first", 9))], 0, text=True)
    client.delete_topic(staging.name)
    second = staging.stage([Chunk(topic, table("second", 9))], 1, text=True)
    assert first.ranges == second.ranges  # nothing else tells them apart
    for messages in ([first, second], [first]):
        with pytest.raises(StagedRowsLost, match="has no record 1, which batch 0 needs"):
            Staging(client, topic, "q", 0, create=True).commit(messages)
    assert topic not in [found.topic for found in client.topics(topic)]
    assert client.topic(staging.name).config["durability"] == "fsync"


def test_a_decision_of_the_longest_names_fits(client: Client, topic: str) -> None:
    name = topic + '"' * (600 - len(topic))
    staging = Staging(client, topic, "q", 0, create=True)
    staged = staging.stage([Chunk(name, table("x", 2))], 0, text=True)
    staged.ranges *= 1_500
    crashing = Crashing(client, topic, "q", 0, create=True)
    crashing.at = "publish"
    with pytest.raises(Crash):
        crashing.commit([staged])


def test_two_destinations_of_one_id_are_two_writes(server: ServerProcess, client: Client) -> None:
    for name in ("twice-a", "twice-b"):
        given = {"url": server.url, "topic": name, "mode": "staged", "writeId": "w"}
        options = sink_options({**given, "stagingTopic": "twice"}, streaming=False)
        writer = BatchWriter(options, StructType().add("data", "string"), False)
        with connect(options.connection) as own:
            staging = writer._staging(own, "w", 0)
            writer.commit([staging.stage([Chunk(name, table(name, 3))], 0, text=True)])
        assert stored(client, name) == [f'"{name}-{row}"' for row in range(3)]


def test_a_batch_that_failed_leaves_no_staging_topic(server: ServerProcess, client: Client) -> None:
    options = sink_options(
        {"url": server.url, "topic": "given-up", "mode": "staged"}, streaming=False
    )
    writer = BatchWriter(options, StructType().add("data", "string"), False)
    with connect(options.connection) as own:
        staging = writer._staging(own, writer._id, 0)
        message = staging.stage([Chunk("given-up", table("x", 3))], 0, text=True)
        writer.abort([message, None])
        # A task that nobody waits for any more does not bring it back.
        with pytest.raises(TopicNotFound):
            staging._client.append_arrow(staging.name, table("x", 1), create=False)
    assert not list(client.topics("given-up"))


def test_a_key_is_relied_on_only_while_the_topic_knows_it(client: Client, topic: str) -> None:
    client.put_topic(topic, {"idempotency_window_ms": 60_000})
    long_ago, lately = (SystemClock().wall_ms() - ago for ago in (61_000, 1_000))
    send(client, topic, Sender(key="w/0"), batches(count=9))
    send(client, topic, Sender(key="w/0", key_since_ms=lately), batches(count=9))
    with pytest.raises(ConfigError, match=r"ran before, longer ago.*writeId"):
        send(client, topic, Sender(key="w/0", key_since_ms=long_ago), batches(count=9))
    # Also when it becomes late on the way, until the first chunk that nobody sent before.
    for again, rows in ((True, ROWS), (False, CHUNK_ROWS_MAX)):
        name = f"{topic}-{again}"
        client.put_topic(name, {"idempotency_window_ms": 60_000})
        send(client, name, Sender(key="y/0"), batches(count=rows))
        task = Sending(client, Sender(key="y/0", key_since_ms=lately), create=True)
        first, second, third, *_ = chunks(batches(), name)
        task.send(first)
        if not again:
            task.send(second)
        if task._since_ms is not None:
            task._since_ms = long_ago  # as if time had passed
        with pytest.raises(ConfigError) if again else contextlib.nullcontext():
            task.send(second if again else third)
    client.put_topic(topic, {"idempotency_window_ms": 0})
    with pytest.raises(ConfigError, match="a repeat may come later"):
        send(client, topic, Sender(key="x/0"), batches(count=9))
    assert stored(client, topic) == numbers(9)


def test_chunks_that_are_lost_with_the_start_of_a_batch_are_told(
    client: Client, topic: str
) -> None:
    """As after a power failure that took the newest appends of a topic with it."""
    send(client, topic, Sender("p", 6), batches(count=9))
    task = Sending(client, Sender("p", 7), create=True)
    task._numbers[topic] = 2
    with pytest.raises(ProducerGap, match="has lost what this task wrote before"):
        task.send(next(chunks(batches(count=9), topic)))


@pytest.mark.parametrize("rows", [3, 0], ids=["rows", "empty"])
def test_keys_that_may_not_do_all(
    start_server: Callable[..., ServerProcess], topic: str, rows: int
) -> None:
    server = start_server(api_keys="root,stager:read+write+delete:t-,writer:write:t-")
    with Client(server.url, token="stager") as own:
        staging = Staging(own, topic, "q", 0, create=True)
        given = [Chunk(topic, table("x", rows))] if rows else []
        staging.commit([staging.stage(given, 0, text=True)])
        staging.commit([staging.stage([], 0, text=True)])
    # A repeat of one that may not read is known as well; that it is another one is not.
    with Client(server.url, token="writer") as own:
        for sender in (Sender("p", 0), Sender(key="w/0", key_since_ms=SystemClock().wall_ms())):
            for _ in range(2):
                send(own, f"{topic}-{sender.epoch}{sender.key is None}", sender, batches(count=9))
    with Client(server.url, token="root") as root:
        counts = {found.topic: found.count for found in root.topics()}
        assert counts.get(topic, 0) == rows
        assert counts[f"{topic}-0True"] == counts[f"{topic}-0False"] == 9
        assert counts[staging.name] == 1


def test_a_call_under_a_key_is_given_up_before_the_topic_forgets_the_key(
    start_server: Callable[..., ServerProcess], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server()
    first, second = list(chunks(batches(count=2 * CHUNK_ROWS_MAX), topic))
    with connect(Connection(server.url)) as client:
        task = Sending(client, Sender(key="w/0"), create=True)
        task.send(first)
        task.send(second)  # from here on the topic's window is known
        window_ms = client.topic(topic).config["idempotency_window_ms"]
        server.kill()
        # A client's own deadline is ten minutes: by then a repeat would be a second copy.
        monkeypatch.setattr(sending, "WINDOW_MARGIN_MS", window_ms - 100)
        with pytest.raises(Unreachable):
            task.send(first)
