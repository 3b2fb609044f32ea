"""A client of the native API, synchronous and for asyncio, on HTTP/1.1.

`Client` and `AsyncClient` have the same calls; the first is generated from the second.  `calls.py`
has the requests, `retry.py` when to try again, api/ the structs that they send and answer with.
Errors are those of core/errors.py, by their code.  No package is needed that the server does not
need; pyarrow is imported by the calls that speak Arrow, and asyncio only with `AsyncClient`.
"""

from typing import TYPE_CHECKING

from headrace.api.queues import Claimed as Claimed
from headrace.api.queues import Job as Job
from headrace.api.records import Appended as Appended
from headrace.api.records import Draft as Draft
from headrace.api.records import Page as Page
from headrace.api.records import Producer as Producer
from headrace.api.records import Record as Record
from headrace.api.records import Tombstone as Tombstone
from headrace.api.topics import TopicState as TopicState
from headrace.client._sync.client import Client as Client
from headrace.client.arrow_pages import ArrowPage as ArrowPage
from headrace.client.message import Response as Response

if TYPE_CHECKING:
    from headrace.client._async.client import AsyncClient as AsyncClient

__all__ = [
    "Appended",
    "ArrowPage",
    "AsyncClient",
    "Claimed",
    "Client",
    "Draft",
    "Job",
    "Page",
    "Producer",
    "Record",
    "Response",
    "Tombstone",
    "TopicState",
]


def __getattr__(name: str) -> object:
    if name == "AsyncClient":
        from headrace.client._async.client import AsyncClient

        return AsyncClient
    raise AttributeError(f"module 'headrace.client' has no attribute {name!r}")
