"""What `dump` shows of every kind of file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.core.errors import InvalidRequest, TopicNotFound
from headrace.storage.block import Batch
from headrace.storage.tools.dump import dump
from headrace.testing.simdisk import SimDisk

Lab = Any  # the fixture of conftest.py


@pytest.fixture
def disk(lab: Lab) -> SimDisk:
    engine = lab.start(SimDisk())
    batch = Batch(
        [b'{"id":1}', b"\xff\xfe"],
        tags=["x", None],
        nodes="n",
        metas=[b'{"m":1}', None],
        headers=[[(b"name", b"\x80")], None],
    )
    engine.append("orders", batch).result()
    engine.append("keyed", [{"a": 1}], idempotency_key="k").result()
    engine.checkpoint().result()
    engine.append("orders", [{"id": 3}]).result()
    engine.append("orders", [{"id": 4}]).result()
    engine.delete("orders", before_seq=2).result()
    engine.delete("orders", match="x").result()
    engine.archives.told("orders", engine.topic("orders").epoch, 3).result()
    engine.put_topic("late", {"ttl_ms": 5}).result()
    engine.delete_topic("keyed").result()
    killed: SimDisk = lab.killed(engine)
    return killed


def of_type(lines: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["type"] == kind]


def test_every_line_is_json_and_names_its_file(disk: SimDisk) -> None:
    lines = list(dump(disk, records=True))
    assert [json.loads(json.dumps(line)) == line for line in lines] or lines
    assert all(line["file"] in disk.contents() for line in lines)
    assert not of_type(lines, "damage")
    kinds = {line["type"] for line in lines}
    assert kinds == {
        "snapshot", "topic", "listed_segment", "listed_key_file", "extra", "segment", "run",
        "record", "key_file", "key", "wal_file", "batch", "entry",
    }  # fmt: skip


def test_records_of_a_segment_and_of_the_log(disk: SimDisk) -> None:
    records = of_type(list(dump(disk, records=True, topic="orders")), "record")
    assert [record["seq"] for record in records] == [1, 2, 3, 4]
    first, second = records[:2]
    assert (first["data"], first["tag"], first["node"]) == ('{"id":1}', "x", "n")
    assert first["meta"] == '{"m":1}'
    assert first["headers"] == [{"name": "name", "value_base64": "gA=="}]
    assert second["data_base64"] == "//4=" and "tag" not in second and "meta" not in second
    assert records[0]["file"].startswith("segments/") and records[3]["file"].startswith("wal/")


def test_entries_of_the_log(disk: SimDisk) -> None:
    entries = of_type(list(dump(disk)), "entry")
    kinds = [entry["kind"] for entry in entries]
    assert {"append", "records_delete", "topic_create", "topic_delete"} <= set(kinds)
    (created,) = (entry for entry in entries if entry["kind"] == "topic_create")
    assert created["name"] == created["topic"] == "late"
    assert json.loads(created["config"])["ttl_ms"] == 5
    floor = next(entry for entry in entries if entry["kind"] == "records_delete")
    assert floor["floor"] == 1
    archived = next(entry for entry in entries if entry["kind"] == "archived")
    assert (archived["topic"], archived["to_seq"]) == ("orders", 3)
    appended = next(entry for entry in entries if entry["kind"] == "append")
    assert (appended["first_seq"], appended["count"]) == (3, 1)


def test_one_topic_only(disk: SimDisk) -> None:
    lines = list(dump(disk, topic="orders", records=True))
    assert {line["topic"] for line in lines if "topic" in line} == {"orders"}
    with pytest.raises(TopicNotFound):
        list(dump(disk, topic="nobody"))


def test_files_one_by_one(disk: SimDisk) -> None:
    first = {
        "meta/snapshot": "snapshot", "meta/keys": "key_file", "segments/": "segment",
        "wal/": "wal_file",
    }  # fmt: skip
    for path in disk.contents():
        for prefix, kind in first.items():
            if path.startswith(prefix):
                assert next(iter(dump(disk, [path])))["type"] == kind
    with pytest.raises(InvalidRequest, match="does not exist"):
        list(dump(disk, ["wal/nothing.log"]))
    with pytest.raises(InvalidRequest, match="no log, mark, snapshot"):
        list(dump(disk, ["meta/owner"]))


def test_damage_is_a_line_and_the_rest_goes_on(lab: Lab) -> None:
    disk = lab.world().disk.copy()
    whole = len(of_type(list(dump(disk, records=True)), "record"))
    lab.damage(disk, lab.used_log(disk), lab.batch_of(disk, b"a 84") + 80)
    lines = list(dump(disk, records=True))
    (damaged,) = of_type(lines, "damage")
    assert damaged["file"] == lab.used_log(disk)
    assert len(of_type(lines, "record")) == whole - 1


@pytest.mark.parametrize("prefix", ["meta/snapshot", "meta/keys", "segments/"])
def test_damaged_files_say_so(disk: SimDisk, lab: Lab, prefix: str) -> None:
    path = next(name for name in disk.contents() if name.startswith(prefix))
    lab.damage(disk, path, 60)
    lines = list(dump(disk, [path], records=True))
    assert of_type(lines, "damage")[0]["file"] == path
    disk.truncate_to(path, 7)
    assert of_type(list(dump(disk, [path])), "damage")


def test_a_file_of_marks_is_shown(lab: Lab) -> None:
    disk = lab.world().disk.copy()
    (line,) = dump(disk, ["meta/mark-wal.bin"])
    assert (line["type"], line["log"]) == ("mark", "wal") and line["durable"] > 0
    disk.truncate_to("meta/mark-wal.bin", 9_000)
    assert [line["type"] for line in dump(disk, ["meta/mark-wal.bin"])] == ["damage", "mark"]
