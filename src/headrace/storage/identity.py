"""The identity of a data directory: a name it keeps for life, in a file of three lines.

    headrace-directory 1
    <32 hex digits>
    <XXH3-64 of the two lines before, 16 hex digits>

A cold tier remembers whose it is by it.  A restored directory is another one.
"""

from __future__ import annotations

import re
from typing import Final

from xxhash import xxh3_64_hexdigest

from headrace.core.errors import CorruptionError
from headrace.storage.wal.frame import refuse_newer

IDENTITY_PATH: Final = "meta/owner"
# What a server keeps for itself beside its records; no tool reads it.
OWN_FILES: Final = ("meta/subscription-keys",)
# When each file was last verified (storage/scrub/progress_file.py).
SCRUB_PATH: Final = "meta/scrub"
FORMAT_VERSION: Final = 1
_LINES = re.compile(rb"(headrace-directory (\d+)\n([0-9a-f]{32})\n)([0-9a-f]{16})\n")


def encode_identity(name: str) -> bytes:
    """
    >>> encode_identity("0" * 32).splitlines()[0]
    b'headrace-directory 1'
    """
    assert len(name) == 32, name
    lines = f"headrace-directory {FORMAT_VERSION}\n{name}\n".encode()
    return lines + xxh3_64_hexdigest(lines).encode() + b"\n"


def decode_identity(data: bytes, path: str) -> str:
    """The name, from a file that is whole."""
    match = _LINES.fullmatch(data)
    if match is None or xxh3_64_hexdigest(match[1]).encode() != match[4]:
        raise CorruptionError(
            f"{path} is damaged",
            fix="put it back from a backup; with no cold tier it may also be removed",
            detail={"file": path},
        )
    refuse_newer(path, int(match[2]), FORMAT_VERSION)
    return match[3].decode("ascii")
