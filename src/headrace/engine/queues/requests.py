"""What is asked of a queue: nodes, jobs, lease ids and times, checked before anything changes."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from headrace.core import limits
from headrace.core.errors import BatchTooLarge, InvalidRequest

LEASE_PREFIX = "lease_"
TOKEN_MASK = (1 << 64) - 1
_NEXT_ID = f",{LEASE_PREFIX}"


def lease_ids(token: int, seqs: Sequence[int]) -> list[str]:
    """Return the lease ids of the jobs of one claim, as they are given out.

    >>> lease_ids(0xF8, [7, 8])
    ['lease_00000000000000ff', 'lease_0000000000000100']
    """
    if not seqs:
        return []
    first, last = token + seqs[0], token + seqs[-1]
    numbers: Iterable[int] = range(first, last + 1)
    if last > TOKEN_MASK or last - first != len(seqs) - 1:
        numbers = [(token + seq) & TOKEN_MASK for seq in seqs]
    # All of them in a few calls: to format one takes as long as to pack and split eight.
    digits = struct.pack(f">{len(seqs)}Q", *numbers).hex(",", 8)
    return f"{LEASE_PREFIX}{digits.replace(',', _NEXT_ID)}".split(",")


def parse_lease_id(text: str) -> int | None:
    """Return the number of a lease id as it was given out; the empty string stands for none.

    >>> parse_lease_id("lease_00000000000000ff"), parse_lease_id("")
    (255, None)
    """
    if text == "":
        return None
    digits = text[len(LEASE_PREFIX) :] if isinstance(text, str) else ""
    # What `int` takes beyond digits is no lease id.
    if text[: len(LEASE_PREFIX)] == LEASE_PREFIX and len(digits) <= 16 and digits.isalnum():
        try:
            return int(digits, 16)
        except ValueError:
            pass
    raise InvalidRequest(f"lease id {text!r}", fix="send the lease_id of a claim")


def check_node(node: str, bytes_max: int) -> None:
    """Raise unless this can be the name of a node."""
    length = len(node.encode(errors="replace")) if isinstance(node, str) else 0
    if not 1 <= length <= bytes_max:
        raise InvalidRequest(f"node has {length} bytes", fix=f"use 1 to {bytes_max}")


def check_jobs(
    node: str, node_bytes_max: int, seqs: Sequence[int], lease_ids: Sequence[str] | None
) -> list[int | None] | None:
    """Return the numbers of the lease ids sent with these jobs; raise what is wrong with a call."""
    ids = None if lease_ids is None else [parse_lease_id(text) for text in lease_ids]
    check_node(node, node_bytes_max)
    if len(seqs) > limits.claims_per_request_max:
        raise BatchTooLarge(
            f"{len(seqs)} seqs in one call",
            fix=f"send at most {limits.claims_per_request_max} at a time",
            detail={"seqs": len(seqs), "max": limits.claims_per_request_max},
        )
    if ids is not None and len(ids) != len(seqs):
        raise InvalidRequest(
            f"{len(ids)} lease_ids for {len(seqs)} seqs", fix="send one for each seq, or none"
        )
    return ids


def check_ms(what: str, value: int) -> int:
    """Return a time in milliseconds, or raise what is wrong with it."""
    if not limits.is_seq(value):
        raise InvalidRequest(f"{what} is {value!r}", fix="send a number of milliseconds")
    return value


def clamped_lease(lease_ms: int) -> int:
    """Return the lease time that is given to who asks for this one."""
    return min(max(check_ms("lease_ms", lease_ms), limits.lease_ms_min), limits.lease_ms_max)
