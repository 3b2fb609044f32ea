"""A client of the server that the options name, as planner and executors use it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from headrace.client import Client
from headrace.core.errors import HeadraceError, NotFound
from headrace.spark.options import Connection

# One task reads or writes one thing at a time.
CONNECTIONS_MAX = 4


def connect(connection: Connection, *, starting: bool = False) -> Client:
    """Return a client, which the caller closes.

    `starting`: it is for a query that has done nothing yet, and had better fail soon.
    """
    return Client(
        connection.url,
        token=connection.token,
        tls=connection.ca_file,
        deadline_ms=connection.start_timeout_ms if starting else connection.retry_timeout_ms,
        connections_max=CONNECTIONS_MAX,
    )


def give_back(client: Client, pins: Iterable[tuple[str, str]]) -> None:
    """Release pins (topic, pin).

    One that cannot be released lapses by itself: after a failure the others are not tried.
    """
    with contextlib.suppress(HeadraceError):
        for topic, pin in pins:
            with contextlib.suppress(NotFound):
                client.release_pin(topic, pin)
