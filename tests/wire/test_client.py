"""The client against a real server: every call, in both its forms."""

from __future__ import annotations

import asyncio
import threading

import pyarrow as pa
import pytest
import uvloop

from headrace.client import AsyncClient, Client, Draft, Producer, Record, Tombstone
from headrace.core.errors import (
    EpochMismatch,
    HeadMismatch,
    InvalidRequest,
    NotAQueue,
    NotFound,
    ProducerFenced,
    ProducerGap,
    RouterCycle,
    RouterNotFound,
    TopicFull,
    TopicNotEmpty,
    TopicNotFound,
)


@pytest.fixture
def client(server):
    with Client(server.url) as client:
        yield client


def test_append_and_diff(client, topic) -> None:
    drafts = [{"n": 1}, Draft("two", tag="t", node="n", meta={"m": 1}), None]
    appended = client.append(topic, drafts, return_seqs=True)
    assert (appended.created, appended.seqs, appended.head_seq) == (True, [1, 2, 3], 3)
    assert appended.performance["server_total_ms"] > 0
    page = client.diff(topic)
    assert [record.data for record in page.records] == [{"n": 1}, "two", None]
    two = page.records[1]
    assert (two.tag, two.node, two.meta, bytes(two.raw)) == ("t", "n", {"m": 1}, b'"two"')
    assert (page.records[0].tag, page.records[0].meta) == (None, None)
    assert page.caught_up and page.epoch == client.topic(topic).epoch
    assert [record.seq for record in client.diff(topic, 1, node="n").records] == [3]
    assert [record.seq for record in client.diff(topic, last=1).records] == [3]
    assert client.diff(topic, from_ts=0, limit=1).next_from_seq == 1


def test_how_far_a_topic_is_archived(client, topic) -> None:
    client.put_topic(topic, {"cap_records": 1, "retain_until_archived": True})
    client.append(topic, [1, 2, 3])
    epoch = client.topic(topic).epoch
    assert client.archived(topic, epoch, 1).archived_seq == 1
    state = client.topic(topic)
    assert (state.archived_seq, state.overtaken_seq, state.earliest_seq) == (1, 0, 2)
    with pytest.raises(EpochMismatch) as caught:
        client.archived(topic, epoch + 1, 1)
    assert caught.value.detail["epoch"] == epoch


def test_conditions(client, topic) -> None:
    client.append(topic, [1], expected_head_seq=0)
    with pytest.raises(HeadMismatch) as caught:
        client.append(topic, [1], expected_head_seq=0)
    assert caught.value.detail["head_seq"] == 1
    with pytest.raises(TopicNotFound):
        client.append(f"{topic}-no", [1], create=False)
    client.append(f"{topic}-2", [1], config={"cap_records": 1, "discard": "reject"})
    with pytest.raises(TopicFull):
        client.append(f"{topic}-2", [1])


def test_keys_and_producers(client, topic) -> None:
    assert not client.append(topic, [1], idempotency_key="k").deduped
    assert client.append(topic, [1], idempotency_key="k").deduped
    assert not client.append(topic, [1], producer=Producer("p", 1, 0)).deduped
    assert client.append(topic, [1, 1], producer=Producer("p", 1, 1)).first_seq == 3
    repeat = client.append(topic, [1], producer=Producer("p", 1, 0))
    assert (repeat.deduped, repeat.first_seq, repeat.last_seq, repeat.count) == (True, 2, 2, 1)
    assert (repeat.head_seq, repeat.producer_seq) == (2, 1)
    with pytest.raises(ProducerGap):
        client.append(topic, [1], producer=Producer("p", 1, 5))
    with pytest.raises(ProducerFenced):
        client.append(topic, [1], producer=Producer("p", 0, 0))
    for number in range(2, 18):
        client.append_arrow(topic, pa.table({"data": ["1"]}), producer=Producer("p", 1, number))
    old = client.append_arrow(topic, pa.table({"data": ["1"]}), producer=Producer("p", 1, 1))
    assert (old.deduped, old.first_seq, old.last_seq, old.count) == (True, None, None, None)
    assert old.head_seq == client.topic(topic).head_seq == 20
    assert client.append(topic, [1], producer=Producer("p", 1, 2)).first_seq == 5


def test_bytes_go_by_arrow_and_come_back_as_bytes(client, topic) -> None:
    payloads = [b"\x00\xff", b"", b'{"x":1}']
    metas = [None, '{"m":1}', "[2]"]
    client.append_arrow(topic, pa.table({"data": payloads, "meta": metas}))
    records = client.diff(topic).records
    assert [record.data for record in records] == payloads
    encoded = {"$encoding": "base64"}
    assert [record.meta for record in records] == [
        encoded,
        {"m": 1, **encoded},
        {"$meta": [2], **encoded},
    ]
    assert client.diff_arrow(topic).table["data"].to_pylist() == payloads


def test_topics(client, topic) -> None:
    put = client.put_topic(f"{topic}-a", {"durability": "fsync"})
    assert put.created and put.config["durable"] is True
    client.put_topic(f"{topic}-b")
    client.append(f"{topic}-b", [1])
    assert [found.topic for found in client.topics(topic)] == [f"{topic}-a", f"{topic}-b"]
    page = client.topics_page(topic, page_size=1)
    assert page.next_cursor is not None
    rest = client.topics_page(topic, cursor=page.next_cursor)
    assert [found.count for found in rest.topics] == [1]
    with pytest.raises(TopicNotEmpty):
        client.delete_topic(f"{topic}-b", if_empty=True)
    assert client.delete_topic(f"{topic}-b").deleted
    assert not client.delete_topic(f"{topic}-b").deleted
    with pytest.raises(TopicNotFound):
        client.topic(f"{topic}-b")
    state = client.topic(f"{topic}-a", touch=False)
    assert (state.last_read_ts, state.next_seq, state.type) == (None, 1, "log")


def test_delete_records(client, topic) -> None:
    client.append(topic, [Draft(n, tag=f"t{n}") for n in range(5)])
    assert client.delete_records(topic, before_seq=3).deleted == 2
    assert client.delete_records(topic, match="t4").count == 2
    assert client.delete_records(topic, match=["tag", "Glob", "t*"]).count == 0
    with pytest.raises(InvalidRequest):
        client.delete_records(topic)


def test_follow(client, topic) -> None:
    client.append(topic, range(2_500), config={"cap_records": 2_400})
    found = list(client.follow(topic, to_head=True))
    assert isinstance(found[0], Tombstone) and found[0].gap_to == 100
    assert [record.seq for record in found[1:]] == list(range(101, 2_501))


def test_follow_waits(client, topic) -> None:
    client.put_topic(topic)

    def write() -> None:
        for n in range(50):
            client.append(topic, [n])

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    for record in client.follow(topic):
        assert isinstance(record, Record)
        seen.append(record.data)
        if len(seen) == 50:
            break
    writer.join()
    assert seen == list(range(50))


def test_follow_notices_a_new_topic_of_the_same_name(client, topic) -> None:
    client.append(topic, [1, 2])
    following = client.follow(topic, wait_ms=1)
    assert [next(following).seq, next(following).seq] == [1, 2]
    client.delete_topic(topic)
    client.append(topic, ["a", "b", "c"])
    gap = next(following)
    assert isinstance(gap, Tombstone) and gap.reason == "recreated"
    assert [next(following).data for _ in range(3)] == ["a", "b", "c"]


def test_long_poll(client, topic) -> None:
    client.put_topic(topic)
    timer = threading.Timer(0.05, lambda: client.append(topic, [1]))
    timer.start()
    assert client.diff(topic, wait_ms=20_000).records[0].data == 1
    timer.join()


def test_probes(client) -> None:
    assert client.health().status == "ok"
    assert client.ready().status == "ready"
    assert client.metrics()["topics"] >= 0
    assert "headrace_topics " in client.metrics_text()
    assert client.request("GET", "/nowhere").status == 404


def test_arrow(client, topic) -> None:
    table = pa.table(
        {
            "data": pa.array(['{"n": 1}', "2", "null"], pa.string()),
            "tag": pa.array(["a", None, "c"], pa.string()),
            "node": pa.array([None, "x", None], pa.string()),
            "meta": pa.array(['{"m":1}', None, None], pa.string()),
        }
    )
    assert client.append_arrow(topic, table, idempotency_key="k").count == 3
    assert client.append_arrow(topic, table, idempotency_key="k").deduped
    records = client.diff(topic).records
    assert [record.data for record in records] == [{"n": 1}, 2, None]
    assert [record.tag for record in records] == ["a", None, "c"]
    assert (records[1].node, records[0].meta) == ("x", {"m": 1})
    page = client.diff_arrow(topic, 1)
    assert page.table.column("seq").to_pylist() == [2, 3]
    assert [bytes(v) for v in page.table.column("data").to_pylist()] == [b"2", b"null"]
    assert (page.next_from_seq, page.head_seq, page.caught_up, page.lag) == (3, 3, True, 0)
    assert (page.tombstone, page.epoch) == (None, client.topic(topic).epoch)


def test_arrow_in_many_batches(client, topic) -> None:
    table = pa.table({"data": pa.array([b"%d" % n for n in range(20_000)], pa.binary())})
    batches = pa.Table.from_batches(table.to_batches(max_chunksize=3_000))
    producer = Producer("spark", 0, 0)
    assert client.append_arrow(topic, batches, producer=producer).last_seq == 20_000
    assert client.append_arrow(topic, batches, producer=producer).deduped
    page = client.diff_arrow(topic, limit=65_536)
    assert page.table.num_rows == 20_000
    assert page.table.column("seq").to_pylist() == list(range(1, 20_001))


def test_conditions_of_an_arrow_append(client, topic) -> None:
    table = pa.table({"data": [b"1", b"2"]})
    with pytest.raises(TopicNotFound):
        client.append_arrow(topic, table, create=False)
    assert client.append_arrow(topic, table, create=True, expected_head_seq=0).created
    with pytest.raises(HeadMismatch):
        client.append_arrow(topic, table, expected_head_seq=1)
    assert client.append_arrow(topic, table, create=False, expected_head_seq=2).last_seq == 4


def test_an_arrow_page_announces_loss(client, topic) -> None:
    client.append(topic, range(5), config={"cap_records": 2})
    page = client.diff_arrow(topic)
    assert page.tombstone is not None
    assert (page.tombstone.gap_from, page.tombstone.gap_to, page.tombstone.reason) == (1, 3, "cap")
    assert page.table.num_rows == 2


def test_bad_arrow_is_refused(client, topic) -> None:
    with pytest.raises(InvalidRequest):
        client.append_arrow(topic, pa.table({"wrong": [1]}))
    with pytest.raises(InvalidRequest):
        client.append_arrow(topic, pa.table({"data": pa.array(["{"], pa.string())}))
    with pytest.raises(TopicNotFound):
        client.topic(topic)


def test_routers(client, topic) -> None:
    a, b, name = f"{topic}-a", f"{topic}-b", f"{topic}-a->{topic}-b"
    client.append(a, [Draft(1, tag="x1"), Draft(2, tag="y"), Draft(3, tag="x3")])
    put = client.put_router(name, a, b, filter=("tag", "Glob", "x*"), backfill=1)
    assert (put.router, put.created, put.source, put.dest) == (name, True, a, b)
    assert (put.filter, put.guarantee) == (["tag", "Glob", "x*"], "at_least_once")
    assert [record.data for record in client.diff(b).records] == [3]
    found = client.router(name)
    assert (found.forwarded_total, found.filter, found.preserve_tag) == (1, put.filter, True)
    again = client.put_router(name, a, b, preserve_tag=False, guarantee="exactly_once")
    assert (again.created, again.preserve_tag, again.filter) == (False, False, None)
    for n in range(3):
        client.put_router(f"{topic}:{n}", a, f"{topic}-{n}")
    assert [router.router for router in client.routers(f"{topic}:")] == [
        f"{topic}:{n}" for n in range(3)
    ]
    assert [router.guarantee for router in client.routers(source=a, dest=b)] == ["exactly_once"]
    page = client.routers_page(topic, source=a, page_size=3)
    assert (len(page.routers), page.next_cursor is None) == (3, False)
    rest = client.routers_page(topic, source=a, cursor=page.next_cursor)
    assert (len(rest.routers), rest.next_cursor) == (1, None)
    with pytest.raises(RouterCycle) as caught:
        client.put_router(f"{topic}-back", b, a)
    assert caught.value.detail["cycle"] == [b, a, b]
    assert client.delete_router(name).deleted is True
    assert client.delete_router(name).deleted is False
    with pytest.raises(RouterNotFound):
        client.router(name)
    assert client.delete_topic(a).routers_removed == [f"{topic}:{n}" for n in range(3)]


def test_the_manifest(client, topic) -> None:
    client.append(topic, [1, 2, 3])
    manifest = client.segments(topic)
    assert (manifest.epoch, manifest.head_seq) == (client.topic(topic).epoch, 3)
    pin = client.renew_pin(topic, manifest.pin)
    assert pin.pin_expires_ms >= manifest.pin_expires_ms
    assert client.release_pin(topic, manifest.pin).released
    with pytest.raises(NotFound):
        client.renew_pin(topic, manifest.pin)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_both_forms_are_the_same(server, topic, run) -> None:
    async def main() -> list[object]:
        async with AsyncClient(server.url) as client:
            await asyncio.gather(*(client.append(topic, [n]) for n in range(50)))
            found = [record.data async for record in client.follow(topic, to_head=True)]
            assert [t.topic async for t in client.topics(topic)] == [topic]
            table = pa.table({"data": pa.array(["1"])})
            assert (await client.append_arrow(topic, table)).first_seq == 51
            assert (await client.diff_arrow(topic, 50)).table.num_rows == 1
            return found

    assert sorted(run(main())) == list(range(50))


def test_threads_share_a_client(server, topic) -> None:
    with Client(server.url, connections_max=4) as client:
        threads = [
            threading.Thread(target=lambda: [client.append(topic, [1]) for _ in range(25)])
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.topic(topic).head_seq == 200


def test_a_restart_in_the_middle(servers, tmp_path) -> None:
    """Keyed appends go on over a restart of the server, each stored once."""
    data = tmp_path / "data"
    first = servers.start(data)
    with Client(first.url, deadline_ms=20_000) as client:
        done = []

        def write() -> None:
            for n in range(200):
                client.append("t", [n], config={"durability": "fsync"})
                done.append(n)

        writer = threading.Thread(target=write)
        writer.start()
        while len(done) < 50:
            pass
        first.kill()
        servers.start(data, port=first.port)
        writer.join()
        found = [record.data for record in client.follow("t", to_head=True)]
    assert found == list(range(200))


def test_queues(client, topic) -> None:
    dead = f"{topic}-dead"
    client.put_topic(topic, {"type": "queue", "max_deliveries": 2, "dead_letter": dead})
    client.append(topic, [Draft({"n": 1}, tag="a", meta={"m": 1}), {"n": 2}, {"n": 3}, {"n": 4}])
    claimed = client.claim(topic, "w", 3, lease_ms=60_000)
    first, second, third = claimed.jobs
    assert (claimed.ready, first.seq, first.data, first.tag) == (1, 1, {"n": 1}, "a")
    assert (first.meta, first.deliveries, first.lease_id[:6]) == ({"m": 1}, 1, "lease_")
    assert client.topic(topic).queue.in_flight == 3
    extended = client.extend(topic, "w", [first, second], 600_000)
    assert (extended.extended, sorted(extended.deadlines)) == (2, [1, 2])
    assert extended.deadlines[1] > first.deadline
    assert client.ack(topic, "other", [first]).skipped == [1]
    acked = client.ack(topic, "w", [second, 9])
    assert (acked.acked, acked.skipped, acked.ready, acked.in_flight) == (1, [9], 1, 2)
    nacked = client.nack(topic, "w", [first, 3])
    assert (nacked.nacked, nacked.ready, nacked.in_flight) == (2, 3, 0)
    assert client.ack(topic, "w", [third]).skipped == [3]
    assert [job.deliveries for job in client.claim(topic, "w", 2).jobs] == [2, 2]
    # The lease that has been given back is another one, though the node holds the job again.
    assert client.ack(topic, "w", [third]).skipped == [3]
    assert client.nack(topic, "w", [1, 3]).nacked == 2
    assert [job.seq for job in client.claim(topic, "w", 5).jobs] == [4]
    assert client.topic(topic).queue.dead_lettered == 2
    redriven = client.redrive(dead, match="a", meta={"m": 1}, to=topic, limit=1)
    assert (redriven.moved, redriven.next_from_seq, redriven.done) == (1, 1, False)
    assert client.redrive(dead, from_seq=redriven.next_from_seq).moved == 1
    assert [job.data for job in client.claim(topic, "w", 5).jobs] == [{"n": 1}, {"n": 3}]
    assert client.nack(topic, "w", [4], delay_ms=600_000).ready == 0
    with pytest.raises(NotAQueue):
        client.claim(dead, "w")


def test_queues_with_asyncio(server, topic) -> None:
    async def main() -> list[int]:
        async with AsyncClient(server.url) as client:
            await client.put_topic(topic, {"type": "queue"})
            await client.append(topic, list(range(40)))
            claims = [client.claim(topic, f"w{n}", 10) for n in range(4)]
            claimed = await asyncio.gather(*claims)
            acks = [client.ack(topic, f"w{n}", claimed[n].jobs) for n in range(4)]
            return [acked.acked for acked in await asyncio.gather(*acks)]

    assert asyncio.run(main()) == [10, 10, 10, 10]
