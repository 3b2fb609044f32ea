"""Where things of the lake are and what they are called; docs/formats/lake.md says the same.

Only this file knows the root of a lake: a directory or an object store, as a `Store` for data files
and as an address with options for Delta's log.
"""

from __future__ import annotations

import os.path
import re
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from headrace.core.clock import Random
from headrace.core.errors import ConfigError, UnsupportedFormat
from headrace.storage.fs import RealFilesystem
from headrace.storage.tier import OBJECT_SCHEMES, Store, open_store, redact_url

FORMAT: Final = "1"
PROPERTY_FORMAT: Final = "headrace.format"
PROPERTY_TOPIC: Final = "headrace.topic"
PROPERTY_TOPIC_ID: Final = "headrace.topic_id"
PROPERTY_EPOCH: Final = "headrace.epoch"
PROPERTY_VALUE: Final = "headrace.value"

# In the commit information of each commit of ours.
NOTE_BATCH: Final = "headrace.batch"
NOTE_FIRST: Final = "headrace.first_seq"
NOTE_LAST: Final = "headrace.last_seq"
NOTE_ROWS: Final = "headrace.rows"
NOTE_GAPS: Final = "headrace.gaps"

DIRECTORY: Final = "lake"  # of a data directory
GAPS_SUFFIX: Final = ".gaps"
SLUG_CHARACTERS_MAX: Final = 48
_TABLE: Final = re.compile(r"([0-9]+)-([a-z0-9._-]+)")


class Identity(NamedTuple):
    """One life of one topic: what a table is about."""

    topic: str
    topic_id: int
    epoch: int

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
    return Identity(properties[PROPERTY_TOPIC], int(topic_id), int(epoch))


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


def file_name(batch: str, random: Random) -> str:
    """A data file's name: another for each attempt to write it."""
    return f"{batch}-{random.bytes(8).hex()}.parquet"


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
        return f"Lake({redact_url(self.root)!r})"

    def store(self) -> Store:
        """Where its files are; paths begin with the name of a table."""
        return open_store(self.root)

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
        from headrace.storage.objectstore import parse_store_url

        parsed = parse_store_url(self.root)
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
        from headrace.storage.objectstore import ObjectStore

        return [name for name in ObjectStore(self.root).folders() if is_table(name)]
