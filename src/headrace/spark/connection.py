"""A client of the server that the options name, as planner and executors use it."""

from __future__ import annotations

from headrace.client import Client
from headrace.spark.options import Connection

# One task reads or writes one thing at a time.
CONNECTIONS_MAX = 4


def connect(connection: Connection) -> Client:
    """A client; whoever asks for it closes it."""
    return Client(
        connection.url,
        token=connection.token,
        tls=connection.ca_file,
        deadline_ms=connection.retry_timeout_ms,
        connections_max=CONNECTIONS_MAX,
    )
