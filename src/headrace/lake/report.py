"""Telling the server how far the lake is, so that retention need not overtake it."""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from headrace.client import Client
from headrace.client.answers import failure

# Of a server that has no such route.
_UNKNOWN = (404, 405)


def report(client: Client, topic: str, epoch: int, to_seq: int) -> bool:
    """Say that everything to `to_seq` is in the lake; False where the server takes no such report.

    A server that cannot be reached, or refuses it, is an error.
    """
    answer = client.request(
        "POST",
        f"/v0/topics/{quote(topic, safe='')}/archived",
        headers={"content-type": "application/json"},
        body=msgspec.json.encode({"epoch": epoch, "to_seq": to_seq}),
    )
    if answer.status in _UNKNOWN:
        return False
    if answer.status >= 300:
        raise failure(answer)
    return True
