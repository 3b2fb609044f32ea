"""A client of the native API, synchronous and for asyncio, on HTTP/1.1.

`Client` and `AsyncClient` have the same calls; the first is generated from the second.  `models.py`
has what they send and answer with, `calls.py` the requests, `retry.py` when to try again.  Errors
are those of core/errors.py, by their code.  No package is needed that the server does not need;
pyarrow is imported by the calls that speak Arrow, and asyncio by who asks for `AsyncClient`.
"""

from typing import TYPE_CHECKING

from headrace.client._sync.client import Client as Client
from headrace.client.job_models import Claimed as Claimed
from headrace.client.job_models import Job as Job
from headrace.client.message import Response as Response
from headrace.client.models import Appended as Appended
from headrace.client.models import ArrowPage as ArrowPage
from headrace.client.models import Draft as Draft
from headrace.client.models import Page as Page
from headrace.client.models import Producer as Producer
from headrace.client.models import Record as Record
from headrace.client.models import Tombstone as Tombstone
from headrace.client.models import TopicState as TopicState

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
