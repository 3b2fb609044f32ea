"""How many bytes a client's machine has acknowledged: what of an answer has really gone.

A kernel takes megabytes for a client at once, and tells that there is room again only when about a
third of them have gone.  Until then what waits in this process says nothing: a client that takes
40 KB each second would look stuck for a minute.  Only this file asks the kernel.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Final

# `tcpi_bytes_acked` of Linux's `struct tcp_info`, since 4.1.
_OFFSET: Final = 120
_END: Final = _OFFSET + 8


def acknowledged_bytes(transport: asyncio.BaseTransport | None) -> int:
    """Return how many bytes of a connection its client has acknowledged; 0 where that is unknown.

    Elsewhere than on Linux a client is slow when what waits in this process does not change.

    >>> acknowledged_bytes(None)
    0
    """
    if transport is None or sys.platform != "linux":
        return 0
    sock = transport.get_extra_info("socket")
    if sock is None:
        return 0
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _END)
    except (OSError, ValueError):
        return 0  # it is closed, or speaks no TCP
    return int.from_bytes(info[_OFFSET:_END], sys.byteorder)
