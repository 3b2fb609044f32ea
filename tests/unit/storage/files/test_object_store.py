"""The object store against a server that speaks the S3 protocol on a loopback port."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import boto3
import pyarrow.fs as pafs
import pytest

from headrace.core.errors import ConfigError, NotReady
from headrace.storage.block import Batch
from headrace.storage.block_encoding import encode_block
from headrace.storage.files import object_store as objectstore
from headrace.storage.files.block_cache import BlockCache
from headrace.storage.files.object_store import ObjectStore, parse_store_url
from headrace.storage.files.store import BytesFile, DirectoryStore, StoredFile, open_store
from headrace.storage.files.tier import Tiers
from headrace.storage.fs import RealFilesystem, read_exact, read_file
from headrace.storage.segment.format import SegmentMeta, segment_path
from headrace.storage.segment.reader import Segment
from headrace.storage.segment.writer import SegmentWriter, batch_of_blocks
from tests.support.object_stores import s3_thread

BUCKET = "headrace-test"
SECRET = "open-sesame"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_thread("test-key", SECRET) as address:
        yield address


def url_of(endpoint: str, prefix: str, more: str = "", bucket: str = BUCKET) -> str:
    query = f"endpoint_override={endpoint}&scheme=http&region=us-east-1{more}"
    return f"s3://{bucket}/{prefix}?{query}"


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return f"tier/{abs(hash(request.node.nodeid))}"


@pytest.fixture
def store(endpoint: str, prefix: str) -> ObjectStore:
    opened = open_store(url_of(endpoint, prefix, "&allow_bucket_creation=true"))
    assert isinstance(opened, ObjectStore)
    return opened


def put(store: ObjectStore, path: str, data: bytes) -> None:
    store.put(path, BytesFile(path, data), len(data))


def keys(endpoint: str, prefix: str) -> list[str]:
    client = boto3.client("s3", endpoint_url=f"http://{endpoint}", region_name="us-east-1")
    found = client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
    return [item["Key"] for item in found if not item["Key"].endswith("/")]


@pytest.mark.parametrize("size", [0, 1, 3_000_000, 11_000_000])
def test_put_gives_back_the_same_bytes(
    store: ObjectStore, endpoint: str, prefix: str, size: int
) -> None:
    data = os.urandom(size)
    put(store, "segments/a", data)
    assert store.list() == [StoredFile("segments/a", size)]
    assert keys(endpoint, prefix) == [f"{prefix}/segments/a"]
    file = store.open_read("segments/a")
    assert file.size() == size
    assert read_exact(file, size, 0) == data
    file.close()


def test_reads_are_ranges_and_stop_at_the_end(store: ObjectStore) -> None:
    put(store, "segments/a", b"0123456789")
    file = store.open_read("segments/a")
    assert file.pread(3, 4) == b"456"
    assert file.pread(30, 8) == b"89"
    assert file.pread(1, 10) == file.pread(1, 99) == file.pread(0, 0) == b""
    assert file.pread_nowait(3, 4) is None
    with pytest.raises(OSError, match="read-only"):
        file.pwritev([b"x"], 0)
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.pread(1, 0)


def test_reads_from_several_threads(store: ObjectStore) -> None:
    data = os.urandom(400_000)
    put(store, "segments/a", data)
    file = store.open_read("segments/a")
    got: dict[int, bytes] = {}

    def read(part: int) -> None:
        got[part] = read_exact(file, 100_000, part * 100_000)

    threads = [threading.Thread(target=read, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert b"".join(got[part] for part in range(4)) == data
    file.close()


def test_a_missing_object_is_file_not_found_and_its_delete_is_fine(store: ObjectStore) -> None:
    put(store, "segments/there", b"x")
    store.delete("segments/a")
    file = store.open_read("segments/a")
    with pytest.raises(FileNotFoundError):
        file.pread(1, 0)
    with pytest.raises(FileNotFoundError):
        file.size()


def test_an_object_that_vanishes_while_open_is_file_not_found(store: ObjectStore) -> None:
    put(store, "segments/a", b"0123456789")
    file = store.open_read("segments/a")
    assert file.pread(1, 0) == b"0"
    store.delete("segments/a")
    with pytest.raises(FileNotFoundError):
        file.pread(1, 1)


class FailingFile(BytesFile):
    """A source whose disk fails half-way."""

    def pread(self, length: int, offset: int) -> bytes:
        if offset > 0:
            raise OSError(errno.EIO, "the local disk failed")
        return super().pread(length, offset)


def test_a_source_that_fails_half_way_leaves_the_old_object(
    store: ObjectStore, endpoint: str, prefix: str
) -> None:
    put(store, "segments/a", b"old")
    data = bytes(objectstore.COPY_CHUNK_BYTES * 3)
    with pytest.raises(OSError, match="the local disk failed"):
        store.put("segments/a", FailingFile("a", data), len(data))
    assert keys(endpoint, prefix) == [f"{prefix}/segments/a"]
    assert store.open_read("segments/a").pread(10, 0) == b"old"


def test_a_sweep_sees_its_own_prefix_only(
    store: ObjectStore, endpoint: str, prefix: str, tmp_path: Path
) -> None:
    neighbour = ObjectStore(url_of(endpoint, prefix + "-other"))
    for path in (segment_path(1), segment_path(2), segment_path(1) + ".tmp"):
        # Straight to the store: `put` never leaves a temporary name.
        store._upload(path, BytesFile(path, b"x"), 1)
    put(neighbour, segment_path(2), b"x")
    tiers = Tiers(DirectoryStore(RealFilesystem(tmp_path)), store)
    tiers.claim("mine", 0)
    assert len(tiers.sweep({1})) == 2
    assert store.list() == [StoredFile(segment_path(1), 1)]
    assert neighbour.list() == [StoredFile(segment_path(2), 1)]
    tiers.claim("mine", 1)
    with pytest.raises(ConfigError, match="another data directory"):
        tiers.claim("theirs", 1)


def write_segment(fs: RealFilesystem, file_id: int) -> SegmentMeta:
    data = [b'{"row":%d,"pad":"%s"}' % (n, b"x" * 90) for n in range(3_000)]
    block = encode_block(Batch(data), 7, 1, 1_000, 1_000)
    hints = {"payload_bytes_hint": sum(map(len, data)), "rows_hint": 3_000, "topics_hint": 1}
    writer = SegmentWriter(fs, file_id, 7, 0, 1_000, columns=None, **hints)
    writer.add(batch_of_blocks([(7, block, 0, 3_000)]))
    return writer.finish()


def test_relocation_to_an_object_store(
    store: ObjectStore, endpoint: str, prefix: str, tmp_path: Path
) -> None:
    fs = RealFilesystem(tmp_path)
    fs.mkdir("segments")
    meta = write_segment(fs, 1)
    original = read_file(fs, meta.path)
    tiers = Tiers(DirectoryStore(fs), store)
    moved = tiers.relocate(meta)
    assert tiers.drop_hot_copies([moved]) == [meta.path]
    assert keys(endpoint, prefix) == [f"{prefix}/{meta.path}"]
    segment = Segment(moved, tiers.open(moved), BlockCache(1 << 20))
    segment.verify()
    assert segment.read(0, 1_000) == original[:1_000]
    segment.close()
    tiers.delete(moved)
    assert keys(endpoint, prefix) == []


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objectstore, "CONNECT_TIMEOUT_S", 1.0)
    monkeypatch.setattr(objectstore, "REQUEST_TIMEOUT_S", 1.0)
    monkeypatch.setattr(objectstore, "ATTEMPTS_MAX", 1)


def assert_unreachable(store: ObjectStore, caught: pytest.ExceptionInfo[NotReady]) -> None:
    assert caught.value.detail["reason"] == "cold_unreachable"
    assert caught.value.retryable
    assert "check the network" in caught.value.fix
    assert SECRET not in str(caught.value) + repr(caught.value.detail) + store.describe("x")


@pytest.mark.usefixtures("impatient")
def test_a_store_that_is_down_is_not_ready(endpoint: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{unused.getsockname()[1]}"
        store = ObjectStore(url_of(nobody, "p").replace("s3://", f"s3://key:{SECRET}@"))
        file = store.open_read("segments/a")
        for call in (
            lambda: file.pread(1, 0),
            file.size,
            store.list,
            lambda: store.delete("segments/a"),
            lambda: put(store, "segments/a", b"x"),
        ):
            with pytest.raises(NotReady) as caught:
                call()
            assert_unreachable(store, caught)


@pytest.mark.usefixtures("impatient")
def test_a_store_that_accepts_and_never_answers_is_given_up(endpoint: str) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        store = ObjectStore(url_of(f"127.0.0.1:{silent.getsockname()[1]}", "p"))
        with pytest.raises(NotReady) as caught:
            store.open_read("segments/a").size()
        assert_unreachable(store, caught)


def test_a_bucket_that_does_not_exist_is_not_lost_data(endpoint: str) -> None:
    store = ObjectStore(url_of(endpoint, "p", bucket="headrace-mistyped"))
    with pytest.raises(NotReady, match="headrace-mistyped") as caught:
        store.open_read("segments/a").pread(1, 0)
    assert_unreachable(store, caught)
    with pytest.raises(NotReady):
        put(store, "segments/a", b"x")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("s3://", "no bucket"),
        ("s3://bucket:9000/p", "endpoint_override"),
        ("s3://bucket/a/../b", "relative"),
        ("s3://only-a-key@bucket/p", "together"),
        ("s3://bucket/p?secret_key=open-sesame", "'secret_key' is none of its options"),
        ("s3://bucket/p?scheme=ftp", "http or https"),
        ("s3://bucket/p?allow_bucket_creation=maybe", "true or false"),
        ("s3://k:open-sesame@bucket/p#x", "fragment"),
        ("gs://user:open-sesame@bucket/p", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("gs://bucket/p?region=x", "'region' is none of its options"),
    ],
)
def test_a_url_that_cannot_be_is_refused_without_its_secrets(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        open_store(url)
    assert SECRET not in str(caught.value) + repr(caught.value.detail)


def test_the_url_is_taken_apart() -> None:
    parsed = parse_store_url("s3://key:a%2Fb@bucket/x/y/?region=eu-west-1")
    assert parsed == ("s3", "bucket", "x/y", "key", "a/b", {"region": "eu-west-1"})
    assert parse_store_url("gcs://bucket").prefix == ""


def test_describe_names_the_object_and_no_secret() -> None:
    store = ObjectStore(f"s3://key:{SECRET}@bucket/p/?region=eu-west-1")
    assert store.describe("segments/a") == "s3://***@bucket/p/segments/a?region=eu-west-1"
    assert ObjectStore("s3://bucket?region=x").describe("a") == "s3://bucket/a?region=x"


def test_a_google_store_is_opened_without_a_request() -> None:
    store = open_store("gs://anonymous@bucket/p?endpoint_override=127.0.0.1:1&scheme=http")
    assert isinstance(store, ObjectStore)
    assert isinstance(store._fs, pafs.GcsFileSystem)
    assert store.describe("segments/a").startswith("gs://***@bucket/p/segments/a")
