"""`/v1/metrics`: how much of an account, a basin or a stream is used, as far as it was counted.

Figures are counted since the start of the server (`usage.py`), minutes of them for three hours.
What a range has no figure of, it has no value of.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final, Literal, NamedTuple

from headrace.core.runtime import Ticket
from headrace.engine.engine import Engine
from headrace.wire.exchange import Exchange
from headrace.wire.failures import answering, failed
from headrace.wire.routes import READ, Route
from headrace.wire.s2.access import Access
from headrace.wire.s2.basin_storage import BasinStorage
from headrace.wire.s2.catalog.catalog import Catalog
from headrace.wire.s2.errors import bad_path, bad_query, invalid
from headrace.wire.s2.names import basin_name
from headrace.wire.s2.requests import answer_json, query_fields, whole_name, whole_number
from headrace.wire.s2.usage import (
    APPENDED_BYTES,
    APPENDS,
    HOUR_S,
    MINUTE_S,
    OP,
    READ_BYTES,
    READS,
    STORAGE,
    STREAMING,
    UNARY,
)

ACCOUNT = "/v1/metrics"
BASIN = "/v1/metrics/{basin}"
STREAM = "/v1/metrics/{basin}/{stream}"

DAY_S: Final = 86_400
RANGE_S_MAX: Final = 90 * DAY_S
AHEAD_S_MAX: Final = 60
U32_MAX: Final = (1 << 32) - 1

Interval = Literal["minute", "hour", "day"]
Unit = Literal["bytes", "operations", "usd"]
Values = list[tuple[int, float]]
SECONDS: Final[Mapping[str, int]] = {"minute": MINUTE_S, "hour": HOUR_S, "day": DAY_S}

ALL_INTERVALS: Final = ("hour", "minute", "day")
# The sets of each level, with their intervals; the first is the default.
ACCOUNT_SETS: Final[Mapping[str, tuple[str, ...]]] = {
    "active-basins": (),
    "account-ops": ALL_INTERVALS,
    "estimated-billable-usage": ("hour", "day"),
}
BASIN_SETS: Final[Mapping[str, tuple[str, ...]]] = {
    "storage": ("hour",),
    "append-ops": ("minute", "hour", "day"),
    "append-throughput": ("minute", "hour", "day"),
    "read-ops": ("minute", "hour", "day"),
    "read-throughput": ("minute", "hour", "day"),
    "basin-ops": ALL_INTERVALS,
}
STREAM_SETS: Final[Mapping[str, tuple[str, ...]]] = {"storage": ("minute",)}


class Asked(NamedTuple):
    """Which figures are asked for, of which time."""

    set: str
    interval: Interval | None
    start: int
    end: int

    @property
    def seconds(self) -> int:
        """How long an interval is."""
        return SECONDS[self.interval or "hour"]


class MetricsApi:
    """The calls about what is used."""

    def __init__(self, engine: Engine, catalog: Catalog, access: Access) -> None:
        self._clock = engine.clock
        self._catalog = catalog
        self._usage = catalog.usage
        self._access = access
        self.storage = BasinStorage(engine, catalog)

    def account(self, exchange: Exchange) -> None:
        """Tell what the account uses."""
        caller = self._access.caller(exchange)
        caller.allow("account-metrics")
        asked = self._asked(exchange, ACCOUNT_SETS)
        if asked.set == "active-basins":
            seen = [name for name in self._active(asked) if caller.may_see_basin(name)]
            _answer(exchange, [_label("active_basins", seen)])
        elif asked.set == "account-ops":
            _answer(exchange, self._ops(asked, None))
        else:
            # Nobody is billed for a server of their own.
            _answer(exchange, [_accumulation("total", "usd", asked, [])])

    def basin(self, exchange: Exchange) -> None:
        """Tell what a basin uses; one that is not there uses nothing."""
        caller = self._access.caller(exchange)
        basin = basin_name(exchange.params[0], bad_path)
        caller.allow("basin-metrics", basin)
        asked = self._asked(exchange, BASIN_SETS)
        match asked.set:
            case "storage":
                done = partial(self._measured, exchange, basin, asked)
                self.storage.of(basin).when_done(answering(exchange, done))
            case "append-ops":
                _answer(exchange, self._classes(asked, basin, APPENDS, "operations"))
            case "append-throughput":
                _answer(exchange, self._classes(asked, basin, APPENDED_BYTES, "bytes"))
            case "read-ops":
                _answer(
                    exchange,
                    [
                        self._sum(asked, basin, READS + how, how, "operations")
                        for how in (STREAMING, UNARY)
                    ],
                )
            case "read-throughput":
                _answer(exchange, [self._sum(asked, basin, READ_BYTES, "read", "bytes")])
            case _:
                _answer(exchange, self._ops(asked, basin))

    def stream(self, exchange: Exchange) -> None:
        """Tell what a stream holds now."""
        caller = self._access.caller(exchange)
        basin = basin_name(exchange.params[0], bad_path)
        stream = whole_name(caller, exchange.params[1], bad_path)
        caller.allow("stream-metrics", basin, stream)
        asked = self._asked(exchange, STREAM_SETS)
        minute = self._now_s() // MINUTE_S * MINUTE_S
        size = self.storage.of_stream(basin, stream)
        # What a stream held earlier is not kept: there may be any number of streams.
        covered = asked.start <= minute + MINUTE_S and minute <= asked.end
        values: Values = [(minute, float(size))] if size is not None and covered else []
        _answer(exchange, [_gauge(STORAGE, values)])

    def _measured(self, exchange: Exchange, basin: str, asked: Asked, ticket: Ticket[int]) -> None:
        if not failed(exchange, ticket):
            points = self._usage.points(basin, STORAGE, HOUR_S, asked.start, asked.end)
            _answer(exchange, [_gauge(STORAGE, [(at, float(size)) for at, size in points])])

    def _active(self, asked: Asked) -> list[str]:
        found = set(self._usage.basins_with("", asked.start, asked.end))
        for basin in self._catalog.basins_after("", ""):
            if basin.created_ms // 1_000 <= asked.end and self.storage.has_stream(basin.name):
                found.add(basin.name)
        return sorted(found)

    def _ops(self, asked: Asked, basin: str | None) -> list[object]:
        whats = self._usage.counted(basin, OP, asked.start, asked.end)
        return [
            self._sum(asked, basin, what, what.removeprefix(OP), "operations") for what in whats
        ]

    def _classes(self, asked: Asked, basin: str, start_with: str, unit: Unit) -> list[object]:
        whats = self._usage.counted(basin, start_with, asked.start, asked.end)
        return [
            self._sum(asked, basin, what, what.removeprefix(start_with), unit) for what in whats
        ]

    def _sum(self, asked: Asked, basin: str | None, what: str, name: str, unit: Unit) -> object:
        points = self._usage.points(basin, what, asked.seconds, asked.start, asked.end)
        return _accumulation(name, unit, asked, [(at, float(count)) for at, count in points])

    # What is asked for

    def _asked(self, exchange: Exchange, sets: Mapping[str, tuple[str, ...]]) -> Asked:
        fields = query_fields(exchange)
        name = fields.get("set", "")
        if name not in sets:
            raise bad_query(f"set is {name[:80]!r}, not one of {', '.join(sets)}")
        interval = fields.get("interval")
        if interval is not None and interval not in SECONDS:
            raise bad_query(f"interval is {interval[:80]!r}, not one of {', '.join(SECONDS)}")
        start, end = (whole_number(fields, field, U32_MAX) for field in ("start", "end"))
        if start is None or end is None:
            raise invalid("start and end are required")
        if start > end:
            raise invalid("start must not be after end")
        if end > self._now_s() + AHEAD_S_MAX:
            raise invalid("end must not be in the future")
        if end - start > RANGE_S_MAX:
            raise invalid("the range must not be longer than 90 days")
        allowed = sets[name]
        if interval is not None and interval not in allowed:
            raise invalid(f"{name} has no figures by {interval}")
        chosen = interval or (allowed[0] if allowed else None)
        return Asked(name, chosen, start, end)  # type: ignore[arg-type]

    def _now_s(self) -> int:
        return self._clock.now_ms() // 1_000


def _accumulation(name: str, unit: Unit, asked: Asked, values: Values) -> object:
    told = {"name": name, "unit": unit, "interval": asked.interval, "values": values}
    return {"accumulation": told}


def _gauge(name: str, values: Values) -> object:
    return {"gauge": {"name": name, "unit": "bytes", "values": values}}


def _label(name: str, values: list[str]) -> object:
    return {"label": {"name": name, "values": values}}


def _answer(exchange: Exchange, values: list[object]) -> None:
    answer_json(exchange, 200, {"values": values})


def metric_routes(api: MetricsApi) -> list[Route]:
    """The rows of metrics."""
    read = frozenset({READ})
    return [
        Route("GET", ACCOUNT, api.account, read, "What the account uses"),
        Route("GET", BASIN, api.basin, read, "What a basin uses"),
        Route("GET", STREAM, api.stream, read, "What a stream holds"),
    ]
