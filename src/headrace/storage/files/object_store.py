"""Object stores as places for files, a cold tier's or a lake's: objects, through `pyarrow.fs`.

Only this file talks to an object store.  An object appears under its name whole or not at all:
it is uploaded under a temporary name, measured, and copied within the store, because an upload
of pyarrow cannot be aborted (to close one half-way, or to drop it, completes it).  Each request is
bounded in time and in attempts.  What the store says is translated here: a missing object is
`FileNotFoundError`, anything else `NotReady`, which says what the store is for; no message, and no
`describe`, holds a credential.

It does not verify contents (`tier.copy_and_verify` does), cache, or retry beyond one request.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Literal, NamedTuple, NoReturn, Protocol, cast
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from headrace.core.errors import NotReady
from headrace.storage.files.store import (
    COPY_CHUNK_BYTES,
    SEGMENTS_DIR,
    TEMPORARY_SUFFIX,
    ReadOnlyFile,
    StoredFile,
)
from headrace.storage.files.store_role import COLD_TIER, StoreRole, redact_url
from headrace.storage.fs import File, read_exact

# One request waits at most connect + request seconds, `ATTEMPTS_MAX` times.
CONNECT_TIMEOUT_S = 3.0
# A request that moves less than a byte a second for this long is given up.
REQUEST_TIMEOUT_S = 10.0
ATTEMPTS_MAX = 3
GCS_RETRY_S_MAX = 30
REASON_CHARS_MAX = 300

S3_OPTIONS = frozenset({"endpoint_override", "scheme", "region", "allow_bucket_creation"})
GCS_OPTIONS = frozenset({"endpoint_override", "scheme", "project_id", "anonymous"})


URL_FIX = "write it as s3://bucket/prefix?region=… or gs://bucket/prefix; see docs/operate/tiers.md"


class StoreUrl(NamedTuple):
    """The parts of an object store's URL."""

    scheme: str
    bucket: str
    prefix: str  # without slashes at either end; "" for none
    user: str
    password: str
    options: Mapping[str, str]


def parse_store_url(url: str, role: StoreRole = COLD_TIER) -> StoreUrl:
    """Take the URL apart; `ConfigError` names what is wrong, and never shows a secret.

    >>> parse_store_url("s3://bucket/a/b/?region=eu-west-1")[:3]
    ('s3', 'bucket', 'a/b')
    """
    refused = partial(role.refused, url, URL_FIX)
    parts = urlsplit(url)
    scheme = "gs" if parts.scheme == "gcs" else parts.scheme
    known = S3_OPTIONS if scheme == "s3" else GCS_OPTIONS
    userinfo, _, bucket = parts.netloc.rpartition("@")
    user, _, password = userinfo.partition(":")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    prefix = unquote(parts.path).strip("/")
    if not bucket or ":" in bucket:
        raise refused("it names no bucket (a port belongs in endpoint_override)")
    if {"", ".", ".."} & set(prefix.split("/")) and prefix:
        raise refused("its prefix has an empty or relative part")
    if parts.fragment:
        raise refused("it has a fragment (write # in a password as %23)")
    if scheme == "s3" and bool(user) != bool(password):
        raise refused("an access key and a secret key are given together or not at all")
    if scheme == "gs" and userinfo not in ("", "anonymous"):
        raise refused("Google credentials come from GOOGLE_APPLICATION_CREDENTIALS")
    for name in sorted(options):
        if name not in known:
            raise refused(f"{name!r} is none of its options: {', '.join(sorted(known))}")
    return StoreUrl(scheme, bucket, prefix, unquote(user), unquote(password), options)


def _flag(parsed: StoreUrl, name: str) -> bool:
    value = parsed.options.get(name, "false").lower()
    if value not in ("true", "false"):
        raise ValueError(f"{name} is true or false")
    return value == "true"


def _connect(parsed: StoreUrl) -> pafs.FileSystem:
    """The client of the store.  Nothing is sent yet."""
    options = parsed.options
    if options.get("scheme", "https") not in ("http", "https"):
        raise ValueError("scheme is http or https")
    transport: Literal["http", "https"] = "http" if options.get("scheme") == "http" else "https"
    if parsed.scheme == "gs":
        return pafs.GcsFileSystem(
            anonymous=parsed.user == "anonymous" or _flag(parsed, "anonymous"),
            scheme=transport,
            endpoint_override=options.get("endpoint_override"),
            project_id=options.get("project_id"),
            retry_time_limit=timedelta(seconds=GCS_RETRY_S_MAX),
        )
    return pafs.S3FileSystem(
        access_key=parsed.user or None,
        secret_key=parsed.password or None,
        region=options.get("region"),
        scheme=transport,
        endpoint_override=options.get("endpoint_override"),
        allow_bucket_creation=_flag(parsed, "allow_bucket_creation"),
        # Each `write` returns when its part is with the store, so that memory stays bounded.
        background_writes=False,
        connect_timeout=CONNECT_TIMEOUT_S,
        request_timeout=REQUEST_TIMEOUT_S,
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS_MAX),
    )


class ObjectStore:
    """Sealed files as objects of one bucket, under one prefix."""

    def __init__(self, url: str, role: StoreRole = COLD_TIER) -> None:
        parsed = parse_store_url(url, role)
        self._role = role
        self._password = parsed.password
        self._shown = redact_url(url)
        self._bucket = parsed.bucket
        self._root = "/".join(filter(None, (parsed.bucket, parsed.prefix)))
        try:
            self._creates_bucket = _flag(parsed, "allow_bucket_creation")
            self._fs = _connect(parsed)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise role.refused(url, URL_FIX, self._reason(error)) from None

    def open_read(self, path: str) -> File:
        """A file that asks the store when it is first read, so that opening never waits."""
        return ObjectFile(self, path)

    def put(self, path: str, source: File, size: int) -> None:
        assert size >= 0 and not path.endswith(TEMPORARY_SUFFIX), (path, size)
        temporary = path + TEMPORARY_SUFFIX
        try:
            self._upload(temporary, source, size)
            stored = self.stat(temporary)
            if stored != size:
                self.unreachable(f"it holds {stored} of {size} bytes uploaded", path)
            with self.reaching(path):
                self._fs.copy_file(self._key(temporary), self._key(path))
        finally:
            # What remains after a failure here, or a crash, is swept at the next start.
            with contextlib.suppress(NotReady):
                self.delete(temporary)

    def _upload(self, path: str, source: File, size: int) -> None:
        with self.reaching(path):
            if self._creates_bucket:
                self._fs.create_dir(self._bucket)
            stream = self._fs.open_output_stream(self._key(path))
        try:
            offset = 0
            while offset < size:
                # Outside `reaching`: an error of the local disk is not the store's.
                chunk = read_exact(source, min(COPY_CHUNK_BYTES, size - offset), offset)
                with self.reaching(path):
                    stream.write(chunk)
                offset += len(chunk)
            assert offset == size, (offset, size)
        except BaseException:
            # The first error is the one to report.
            with contextlib.suppress(NotReady):
                self._close_upload(path, stream)
            raise
        self._close_upload(path, stream)

    def _close_upload(self, path: str, stream: pa.NativeFile) -> None:
        # Never left to the destructor, which would wait for the store while it holds the GIL.
        with self.reaching(path):
            stream.close()

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError), self.reaching(path):
            self._fs.delete_file(self._key(path))

    def list(self) -> Sequence[StoredFile]:
        selector = pafs.FileSelector(self._key(SEGMENTS_DIR), allow_not_found=True)
        with self.reaching(SEGMENTS_DIR):
            infos = self._fs.get_file_info(selector)
        return sorted(
            StoredFile(f"{SEGMENTS_DIR}/{info.base_name}", info.size)
            for info in infos
            if info.type == pafs.FileType.File
        )

    def folders(self) -> Sequence[str]:
        """The names of all directories at the top."""
        selector = pafs.FileSelector(self._root, allow_not_found=True)
        with self.reaching(""):
            infos = self._fs.get_file_info(selector)
        return sorted(info.base_name for info in infos if info.type == pafs.FileType.Directory)

    def describe(self, path: str) -> str:
        base, mark, query = self._shown.partition("?")
        joined = "/".join(filter(None, (base.rstrip("/"), path)))
        return f"{joined}{mark}{query}"

    def stat(self, path: str) -> int | None:
        """The size of the object, None when there is none."""
        with self.reaching(path):
            info = self._fs.get_file_info(self._key(path))
        return info.size if info.type == pafs.FileType.File else None

    def open_object(self, path: str) -> _RangedObject:
        """Ask the store for the object; `FileNotFoundError` when the bucket has none."""
        try:
            with self.reaching(path):
                return cast(_RangedObject, self._fs.open_input_file(self._key(path)))
        except FileNotFoundError:
            self.missing(path)

    def missing(self, path: str) -> NoReturn:
        """Raise for an absent object: `NotReady` if in truth the whole bucket is absent.

        A store answers both alike, and a mistyped bucket must not read as lost data.
        """
        with self.reaching(path):
            bucket = self._fs.get_file_info(self._bucket)
        if bucket.type == pafs.FileType.NotFound and not self._creates_bucket:
            self.unreachable(f"bucket {self._bucket!r} does not exist", path)
        raise FileNotFoundError(f"{self.describe(path)} does not exist")

    @contextlib.contextmanager
    def reaching(self, path: str) -> Iterator[None]:
        """Translate what pyarrow raises about the store."""
        try:
            yield
        except FileNotFoundError:
            raise FileNotFoundError(f"{self.describe(path)} does not exist") from None
        except (OSError, pa.ArrowException) as error:
            self.unreachable(self._reason(error), path)

    def unreachable(self, why: str, path: str) -> NoReturn:
        where, role = self.describe(path), self._role
        raise NotReady(
            f"{role.name} did not answer for {where}: {why}",
            fix="check the network, the endpoint, the bucket and the credentials in the"
            f" environment; {role.meanwhile}, and the same call may succeed later",
            detail={"reason": role.unreachable, "file": where},
        ) from None

    def _key(self, path: str) -> str:
        assert path and not path.startswith("/") and ".." not in path.split("/"), path
        return f"{self._root}/{path}"

    def _reason(self, error: Exception) -> str:
        reason = " ".join(str(error).split())[:REASON_CHARS_MAX]
        return reason.replace(self._password, "***") if self._password else reason


class _RangedObject(Protocol):
    """What is used of pyarrow's open file."""

    def read_at(self, nbytes: int, offset: int) -> bytes: ...
    def size(self) -> int: ...
    def close(self) -> None: ...


class ObjectFile(ReadOnlyFile):
    """One object, read by ranges.  Usable from several threads at once."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        self.path = path
        self._store = store
        self._lock = threading.Lock()
        self._object: _RangedObject | None = None
        self._size = -1
        self._closed = False

    def _opened(self) -> _RangedObject:
        with self._lock:
            if self._closed:
                raise ValueError(f"{self.path} is closed")
            if self._object is None:
                self._object = self._store.open_object(self.path)
                with self._store.reaching(self.path):
                    self._size = self._object.size()
            assert self._size >= 0, self._size
            return self._object

    def pread(self, length: int, offset: int) -> bytes:
        assert length >= 0 and offset >= 0, (length, offset)
        source = self._opened()
        wanted = min(length, self._size - offset)
        if wanted <= 0:
            return b""
        try:
            with self._store.reaching(self.path):
                return source.read_at(wanted, offset)
        except NotReady:
            # The client words a vanished object like a broken connection, so ask which it is.
            if self._store.stat(self.path) is None:
                self._store.missing(self.path)
            raise

    def pread_nowait(self, length: int, offset: int) -> bytes | None:
        """Always None: an object is a network away."""
        return None

    def size(self) -> int:
        self._opened()
        return self._size

    def close(self) -> None:
        with self._lock:
            source, self._object = self._object, None
            self._closed = True
        if source is not None:
            source.close()
