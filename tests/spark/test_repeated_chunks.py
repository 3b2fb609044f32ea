"""A chunk that is sent again is compared with what is stored for it, as long as that is known."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from headrace.client import Client
from headrace.core.errors import PlanNotDeterministic
from headrace.spark.connection import connect
from headrace.spark.options import Connection
from headrace.spark.writing.chunks import Chunk
from headrace.spark.writing.sending import Sender, Sending
from headrace.spark.writing.staging import Staging
from headrace.testing.process import ServerProcess

OTHER_ROWS = "other ones than when it was written before"


def chunks(topic: str, digits: str) -> list[Chunk]:
    """Chunks of a row each."""
    return [Chunk(topic, pa.table({"data": [digit]})) for digit in digits]


def send(client: Client, topic: str, digits: str) -> None:
    Sending(client, Sender("p", 0), create=True).send_all(chunks(topic, digits))


def stored(client: Client, topic: str) -> str:
    return "".join(str(record.data) for record in client.diff(topic).records)


def test_a_chunk_before_the_newest_is_compared_too(client: Client, topic: str) -> None:
    for _ in range(2):
        send(client, topic, "012")
    for digits, number in (("912", 0), ("092", 1), ("019", 2)):
        again = Sending(client, Sender("p", 0), create=True)
        *same, other = chunks(topic, digits)[: number + 1]
        for chunk in same:
            again.send(chunk)
        with pytest.raises(PlanNotDeterministic, match=OTHER_ROWS):
            again.send(other)
    assert stored(client, topic) == "012"


def test_chunks_whose_seqs_are_forgotten_are_stored_once(
    start_server: Callable[..., ServerProcess], topic: str
) -> None:
    server = start_server(appends_per_producer_max=1)
    with connect(Connection(server.url)) as client:
        for _ in range(2):
            send(client, topic, "01234")
        # What they were is not known any more; of the newest it is, and so is how many there were.
        send(client, topic, "91234")
        with pytest.raises(PlanNotDeterministic, match=OTHER_ROWS):
            send(client, topic, "01239")
        with pytest.raises(PlanNotDeterministic, match=r"has 4 chunks for .* now and had 5"):
            send(client, topic, "0123")
        assert stored(client, topic) == "01234"
        # A batch that was published is known to be, though its decision is not found any more.
        for _ in range(2):
            staging = Staging(client, topic, "q", 0, create=True)
            staging.commit([staging.stage(chunks(topic, "56"), 0, text=True)])
        assert stored(client, topic) == "0123456"
