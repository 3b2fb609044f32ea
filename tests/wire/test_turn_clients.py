"""Clients that leave while their requests wait for the end of a turn, which is held for others."""

from __future__ import annotations

import json
import socket
import struct

import pytest

from tests.support import turn_modes
from tests.support.pipelined import pipelined
from tests.support.servers import Servers

LEAVERS, ROOM = 40, 4
RESET = struct.pack("ii", 1, 0)  # a close that the other side sees as an error
BODY = b'{"records":[{"data":1}]}'
REQUEST = (
    b"POST /v0/topics/t HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer k1\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)


def last_seqs(connection: socket.socket, count: int) -> list[int]:
    """Send so many appends at once; the seqs that they were given."""
    found = pipelined(connection, [REQUEST] * count)
    assert {answer.status for answer in found} <= {b"HTTP/1.1 200", b"HTTP/1.1 201"}, found
    return [json.loads(answer.body)["last_seq"] for answer in found]


@pytest.mark.parametrize("reset", [False, True])
def test_those_who_stay_are_answered_and_every_slot_is_given_back(
    servers: Servers, reset: bool
) -> None:
    server = servers.start(
        variables={turn_modes.VARIABLE: turn_modes.FORCED},
        api_keys="k1:read+write+admin",
        max_inflight_per_key=ROOM,
    )
    address = (server.host, server.port)
    with socket.create_connection(address, timeout=30) as stays:
        seqs = []
        for _ in range(LEAVERS):
            with socket.create_connection(address) as leaves:
                if reset:
                    leaves.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                leaves.sendall(REQUEST)
            seqs += last_seqs(stays, 1)
        # The last who left may still be there.
        last = last_seqs(stays, ROOM - 1)
    assert seqs == sorted(set(seqs)) and seqs[-1] < last[0]
    assert last[-1] <= 2 * LEAVERS + len(last), "nothing is there twice"
