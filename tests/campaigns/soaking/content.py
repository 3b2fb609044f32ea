"""What the records of the soak hold: decided by who wrote them and by their number, so that each is
known again without being kept."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

PADDING_MAX = 400
_TEXT_BYTES = 4096
_FORM = re.compile(rb'\{"n":(\d+),"of":"([^"]+)"')


@lru_cache(maxsize=4096)
def _text(of: str) -> str:
    """Text that compresses badly, and differs from writer to writer."""
    found = b""
    while len(found) < _TEXT_BYTES // 2:
        found += hashlib.sha256(f"{of}/{len(found)}".encode()).digest()
    return found.hex()


def payload(of: str, n: int) -> bytes:
    """Record number `n` of a writer, as JSON; these very bytes come back."""
    length = n * 7919 % PADDING_MAX
    start = n * 104729 % (_TEXT_BYTES - PADDING_MAX)
    return f'{{"n":{n},"of":"{of}","pad":"{_text(of)[start : start + length]}"}}'.encode()


def origin(data: bytes) -> tuple[str, int]:
    """The writer and the number that a record names; ("", 0): it is none of ours."""
    found = _FORM.match(data)
    return (found[2].decode(), int(found[1])) if found else ("", 0)
