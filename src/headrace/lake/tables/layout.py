"""Where things of the lake are and what they are called; docs/formats/lake.md says the same.

Only this file knows the root of a lake: a directory or an object store, as a `Store` for data files
and as an address with options for Delta's log.
"""

from __future__ import annotations

import contextlib
import os.path
import re
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from xxhash import xxh3_64_hexdigest

from headrace.core.clock import Random
from headrace.core.errors import ConfigError, UnsupportedFormat
from headrace.storage.files.store import OBJECT_SCHEMES, Store, open_store
from headrace.storage.files.store_role import StoreRole, redact_url
from headrace.storage.fs import RealFilesystem

if TYPE_CHECKING:
    from headrace.api.segments import Manifest

FORMAT: Final = "1"
PROPERTY_FORMAT: Final = "headrace.format"
PROPERTY_TOPIC: Final = "headrace.topic"
PROPERTY_TOPIC_ID: Final = "headrace.topic_id"
PROPERTY_EPOCH: Final = "headrace.epoch"
PROPERTY_DIRECTORY: Final = "headrace.directory"
PROPERTY_VALUE: Final = "headrace.value"

# In the commit information of each commit of ours.
NOTE_BATCH: Final = "headrace.batch"
NOTE_FIRST: Final = "headrace.first_seq"
NOTE_LAST: Final = "headrace.last_seq"
NOTE_ROWS: Final = "headrace.rows"
NOTE_GAPS: Final = "headrace.gaps"
NOTE_ACTIONS: Final = "headrace.actions"

DIRECTORY: Final = "lake"  # of a data directory
LOG: Final = "_delta_log"  # of a table: Delta's
# The newest files of a log that are made durable together; a writer that died left fewer undone.
LOG_FILES_SETTLED: Final = 16
GAPS_SUFFIX: Final = ".gaps"
SLUG_CHARACTERS_MAX: Final = 48
_TABLE: Final = re.compile(r"([0-9]+)-([a-z0-9._-]+)")
_DATA_FILE: Final = re.compile(r"[0-9a-z]+-[0-9a-f]{16}-([0-9a-f]{16})\.parquet")
_ROLE: Final = StoreRole("the lake", "HEADRACE_LAKE", "lake_unreachable", "what is committed stays")


class Identity(NamedTuple):
    """One life of one topic: what a table is about."""

    topic: str
    topic_id: int
    epoch: int
    directory: str = ""  # the name of the server's data directory; empty: it is not known

    @classmethod
    def of(cls, manifest: Manifest) -> Identity:
        """That of the topic which a manifest is about."""
        return cls(manifest.topic, manifest.topic_id, manifest.epoch, manifest.directory)

    def agrees(self, other: Identity) -> bool:
        """Whether both are the same life of the same topic, as far as is known."""
        return self[:3] == other[:3] and (
            self.directory == other.directory or not (self.directory and other.directory)
        )

    @property
    def table(self) -> str:
        """The name of its table.

        >>> Identity("Orders/EU", 7, 7).table
        '7-orders-eu'
        """
        return f"{self.epoch}-{slug_of(self.topic)}"

    @property
    def app_id(self) -> str:
        """Under which its watermark is committed."""
        return f"headrace:{self.topic_id}:{self.epoch}"

    @property
    def gaps_app_id(self) -> str:
        return f"{self.app_id}:gaps"

    @property
    def compact_app_id(self) -> str:
        return f"{self.app_id}:compact"

    def properties(self, value_ddl: str | None) -> dict[str, str]:
        """Those of its table; `value_ddl` are the fields of the column `value`."""
        found = {
            PROPERTY_FORMAT: FORMAT,
            PROPERTY_TOPIC: self.topic,
            PROPERTY_TOPIC_ID: str(self.topic_id),
            PROPERTY_EPOCH: str(self.epoch),
        }
        if self.directory:
            found[PROPERTY_DIRECTORY] = self.directory
        return found if value_ddl is None else found | {PROPERTY_VALUE: value_ddl}


def identity_of(properties: dict[str, str], table: str) -> Identity:
    """What a table is about, by its properties; `UnsupportedFormat` if it is not one of ours."""
    found = properties.get(PROPERTY_FORMAT)
    if found != FORMAT:
        what = "is no table of a lake" if found is None else f"has format {found}"
        raise UnsupportedFormat(
            f"{table} {what}; this version reads format {FORMAT}",
            fix="run the version of Headrace that wrote it, or name another lake",
            detail={"table": table},
        )
    topic_id, epoch = properties[PROPERTY_TOPIC_ID], properties[PROPERTY_EPOCH]
    directory = properties.get(PROPERTY_DIRECTORY, "")
    return Identity(properties[PROPERTY_TOPIC], int(topic_id), int(epoch), directory)


def slug_of(topic: str) -> str:
    """A topic's name as a part of a path.

    >>> slug_of("Orders/EU: west"), slug_of("日本")
    ('orders-eu-west', 'topic')
    """
    plain = re.sub(r"[^a-z0-9._-]+", "-", topic.lower())
    return plain[:SLUG_CHARACTERS_MAX].strip("-.") or "topic"


def is_table(name: str) -> bool:
    """Whether a directory of a lake is a topic's table, by its name.

    >>> is_table("7-orders"), is_table("7-orders.gaps"), is_table("tmp")
    (True, False, False)
    """
    return _TABLE.fullmatch(name) is not None and not name.endswith(GAPS_SUFFIX)


def new_batch(random: Random) -> str:
    """The name of a batch that nobody else has."""
    return random.bytes(8).hex()


def file_name(batch: str, random: Random, content: bytes) -> str:
    """A data file's name: another for each attempt to write it, and with the hash of its bytes."""
    return f"{batch}-{random.bytes(8).hex()}-{xxh3_64_hexdigest(content)}.parquet"


def is_whole(path: str, content: bytes) -> bool:
    """Whether these are the bytes that a data file was named for.

    >>> from headrace.core.clock import SeededRandom
    >>> name = file_name("b", SeededRandom(7), b"rows")
    >>> is_whole(f"day=2026-01-31/{name}", b"rows"), is_whole(name, b"cows")
    (True, False)
    """
    return hash_named(path) == xxh3_64_hexdigest(content)


def hash_named(path: str) -> str | None:
    """The hash of its bytes in the name of a data file; None where it is no such name."""
    named = _DATA_FILE.fullmatch(path.rpartition("/")[2])
    return None if named is None else named[1]


class Lake:
    """A lake by its root.  It travels to tasks, so it can be pickled.

    >>> Lake("s3://bucket/lake?region=eu-west-1").uri("7-orders")
    's3://bucket/lake/7-orders'
    """

    def __init__(self, root: str) -> None:
        scheme, separator, _ = root.partition("://")
        self.is_remote = bool(separator) and scheme != "file"
        if separator and scheme not in (*OBJECT_SCHEMES, "file"):
            raise ConfigError(
                f"a lake cannot be at {redact_url(root)!r}",
                fix="set HEADRACE_LAKE to a directory, s3://bucket/prefix or gs://bucket/prefix",
            )
        if scheme == "file" and separator:
            root = unquote(urlsplit(root).path)
        self.root = root if self.is_remote else os.path.abspath(root)

    def __repr__(self) -> str:
        return f"Lake({self.shown!r})"

    @property
    def shown(self) -> str:
        """Where it is, for a person; without secrets."""
        return redact_url(self.root)

    def store(self) -> Store:
        """Where its files are; paths begin with the name of a table."""
        return open_store(self.root, _ROLE)

    def uri(self, table: str) -> str:
        """The address of a table, as Delta readers take it."""
        if not self.is_remote:
            return os.path.join(self.root, table)
        parts = urlsplit(self.root)
        bucket = parts.netloc.rpartition("@")[2]
        prefix = unquote(parts.path).strip("/")
        return "/".join(filter(None, (f"{parts.scheme}://{bucket}", prefix, table)))

    def options(self) -> dict[str, str] | None:
        """What Delta needs to know beside the address."""
        if not self.is_remote:
            return None
        from headrace.storage.files.object_store import parse_store_url

        parsed = parse_store_url(self.root, _ROLE)
        if parsed.scheme != "s3":
            return {}
        found = {"aws_conditional_put": "etag"}
        if parsed.user:
            found |= {"aws_access_key_id": parsed.user, "aws_secret_access_key": parsed.password}
        if "region" in parsed.options:
            found["aws_region"] = parsed.options["region"]
        if "endpoint_override" in parsed.options:
            scheme = parsed.options.get("scheme", "https")
            found["aws_endpoint_url"] = f"{scheme}://{parsed.options['endpoint_override']}"
            found["aws_allow_http"] = str(scheme == "http").lower()
        return found

    def tables(self) -> list[str]:
        """The names of all its tables."""
        if not self.is_remote:
            return [name for name in RealFilesystem(self.root).listdir("") if is_table(name)]
        from headrace.storage.files.object_store import ObjectStore

        return [name for name in ObjectStore(self.root, _ROLE).folders() if is_table(name)]

    def settle(self, table: str) -> None:
        """From now on what Delta has committed to a table survives a power loss.

        delta-rs leaves that to the operating system; an object store sees to it by itself.
        """
        if self.is_remote:
            return
        fs, log = RealFilesystem(self.root), f"{table}/{LOG}"
        for name in fs.listdir(log)[-LOG_FILES_SETTLED:]:  # `_last_checkpoint` is the last
            with contextlib.suppress(FileNotFoundError):  # what another writer has under way
                file = fs.open_read(f"{log}/{name}")
                try:
                    file.sync()
                finally:
                    file.close()
        for directory in (log, table, ""):
            fs.sync_dir(directory)
