"""The rows of the route table for the records of streams: append, read, tail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.wire.exchange import Exchange
from headrace.wire.routes import READ, WRITE, Route
from headrace.wire.s2.append import AppendApi
from headrace.wire.s2.append_session import AppendSessions
from headrace.wire.s2.data_requests import DataRequests, append_handling, read_handling
from headrace.wire.s2.read import ReadApi
from headrace.wire.s2.tail import TailApi

RECORDS: Final = "/v1/streams/{stream}/records"
TAIL: Final = f"{RECORDS}/tail"
QUERY: Final = ("seq_num", "timestamp", "tail_offset", "clamp", "count", "bytes", "until", "wait")


def data_routes(data: DataRequests, sessions: AppendSessions) -> list[Route]:
    """The rows for the records of streams."""
    appends = AppendApi(data)
    reads, tails = ReadApi(data), TailApi(data)

    def append_turn(exchanges: Sequence[Exchange]) -> None:
        calls = [exchange for exchange in exchanges if not exchange.streamed]
        for exchange in exchanges:
            if exchange.streamed:
                try:
                    sessions.open(exchange)
                except Exception as error:  # noqa: BLE001 - whatever it is, the client hears of it
                    exchange.fail(error)
        if calls:
            appends.append_turn(calls)

    def append(exchange: Exchange) -> None:
        append_turn((exchange,))

    read, write = frozenset({READ}), frozenset({WRITE})
    return [
        Route(
            "POST", RECORDS, append, write, "Append records, or open an append session",
            handling=append_handling, turn_handler=append_turn, name_param=False,
        ),
        Route(
            "GET", RECORDS, reads.get, read, "Read records, at once or as they come",
            query=QUERY, handling=read_handling, name_param=False,
        ),
        Route("GET", TAIL, tails.check, read, "Where a stream ends", name_param=False),
    ]  # fmt: skip
