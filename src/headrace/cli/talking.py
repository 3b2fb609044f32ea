"""How a verb talks to a server: the client of its options, and its answers as JSON."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.cli.options import server_of

if TYPE_CHECKING:
    from headrace.client import Client

# A server that does not answer for so long is an error: somebody is waiting.
DEADLINE_MS = 10_000


@contextlib.contextmanager
def client_of(options: argparse.Namespace) -> Iterator[Client]:
    """A client of the server that the options name (`options.add_server`)."""
    from headrace.client import Client

    server = server_of(options)
    with Client(
        server.url, token=server.token, tls=server.ca_file, deadline_ms=DEADLINE_MS
    ) as client:
        yield client


def builtins(answer: object) -> Any:
    """An answer of the client as what JSON has."""
    import msgspec

    return msgspec.to_builtins(answer)
