"""`/v0/pipelines`: computations that a server keeps and a worker runs with Spark.

What a pipeline may be is said by `pipelines/registry/declaration.py` and
`pipelines/registry/sql_check.py`, how it is kept by `pipelines/registry/store.py`; here is how it
looks in JSON, and which names a key has to be allowed: its own, and those of every topic and table.
The order of the refusals of a PUT: the body, the name, what is declared, the key's names, the SQL,
the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from headrace.api import pipelines as api
from headrace.api.pipelines import Declaration
from headrace.core.errors import Forbidden, InvalidRequest, Throttled
from headrace.core.limits import claims_per_request_max, pipelines_max, topic_name_bytes_max
from headrace.core.runtime import Ticket
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.engine.queues.requests import parse_lease_id
from headrace.metrics.holders import Holder
from headrace.metrics.pipelines import watch_pipelines
from headrace.metrics.requests import Metrics
from headrace.pipelines.registry.declaration import (
    check_declaration,
    check_pipeline_name,
    is_stream_name,
)
from headrace.pipelines.registry.sql_check import SqlFacts, check_sql
from headrace.pipelines.registry.store import (
    DeclaredPipeline,
    LeasedPipeline,
    PipelineStore,
    PipelineView,
)
from headrace.wire.bodies import decode
from headrace.wire.exchange import Exchange, Key
from headrace.wire.failures import failed
from headrace.wire.native.answers import Timing, answer_object, encode
from headrace.wire.native.pipeline_bodies import declaration_of, report_of
from headrace.wire.native.request_checks import check_u64
from headrace.wire.native.topics import page_size_of, read_cursor, write_cursor
from headrace.wire.queries import query_of
from headrace.wire.routes import ADMIN, DELETE, READ, WRITE, Route

T = TypeVar("T")

# SQL is parsed beside the loop: it may take some ten milliseconds.
PARSING_LANE: Final = "pipelines"
# Declarations that wait for that.
PARSING_MAX: Final = 64

_PUT: Final = msgspec.json.Decoder(api.PipelineBody)
_CLAIM: Final = msgspec.json.Decoder(api.ClaimPipelinesBody)
_REPORT: Final = msgspec.json.Decoder(api.ReportBody)
_RELEASE: Final = msgspec.json.Decoder(api.ReleaseBody)


class PipelinesApi:
    """Pipelines over HTTP; they are called the same in both vocabularies."""

    def __init__(self, engine: Engine, settings: Settings, metrics: Metrics) -> None:
        self._engine = engine
        self._settings = settings
        self._store = PipelineStore(engine)
        self._parsing = 0
        watch_pipelines(metrics.registry, engine, self._store)
        metrics.sources.holders.add(
            Holder(
                "pipeline", "Declarations of pipelines, and the last report of each worker.",
                "`pipelines_max`, `pipeline_bytes_max`, `pipelines_bytes_max`",
                2 * settings.pipeline_bytes_max,
                settings.pipelines_bytes_max + pipelines_max * settings.pipeline_bytes_max,
                lambda: len(self._store), lambda: self._store.bytes,
            )
        )  # fmt: skip

    def routes(self) -> list[Route]:
        root = "/v0/pipelines"
        one = root + "/{pipeline}"
        admin, read, write = frozenset({ADMIN}), frozenset({READ}), frozenset({WRITE})
        return [
            Route(
                "PUT", one, self.put, admin,
                "Declare a pipeline, or change what one does",
                request=api.PipelineBody, response=api.PipelinePut,
            ),
            Route(
                "GET", one, self.get, read,
                "A pipeline, who runs it, and what was last heard of it",
                response=api.PipelineState,
            ),
            Route(
                "DELETE", one, self.delete, frozenset({DELETE}),
                "Delete a pipeline; what it wrote stays", response=api.PipelineDeleted,
            ),
            Route(
                "GET", root, self.page, read,
                "A page of pipelines, by name", response=api.PipelinePage,
                query=("prefix", "page_size", "cursor"), name_param=False,
            ),
            Route(
                "POST", one + "/restart", self.restart, admin,
                "Run a pipeline anew from its checkpoint", response=api.PipelinePut,
            ),
            Route(
                "POST", root, self.claim, frozenset({READ, WRITE}),
                "Lease pipelines to a worker", request=api.ClaimPipelinesBody,
                response=api.ClaimedPipelines, name_param=False,
            ),
            Route(
                "POST", one + "/progress", self.report, write,
                "Hold a pipeline longer, and say how it goes",
                request=api.ReportBody, response=api.PipelineHeld,
            ),
            Route(
                "POST", one + "/release", self.release, write,
                "Give a pipeline back", request=api.ReleaseBody, response=api.PipelineReleased,
            ),
        ]  # fmt: skip

    # Declaring

    def put(self, exchange: Exchange) -> None:
        """Declare a pipeline, or change what one does."""
        name = exchange.params[0]
        declaration = declaration_of(decode(exchange, _PUT))
        check_pipeline_name(name)
        check_declaration(declaration)
        _check_allowed(exchange.key, declaration)
        dest = declaration.dest.topic
        if dest is not None and is_stream_name(dest):
            self._engine.streams.check_destination(dest)

        def fields(put: DeclaredPipeline) -> dict[str, object]:
            return {
                "pipeline": name,
                "created": put.created,
                "version": put.view.version,
                "declaration": put.view.declaration,
            }

        def keep(stateful: bool) -> None:
            def go_on() -> None:
                ticket = self._store.put(name, declaration, stateful)
                self._answer(exchange, ticket, fields, lambda put: 201 if put.created else 200)

            self._when_allowed(exchange, go_on)

        sql = declaration.sql
        if sql is None:
            keep(stateful=True)  # what a function keeps is not known here
            return

        if self._parsing >= PARSING_MAX:
            raise Throttled(
                f"{PARSING_MAX} declarations wait to be checked", fix="try again in a moment"
            )

        def checked(facts: object, error: BaseException | None) -> None:
            self._parsing -= 1
            if exchange.answered:
                return
            if error is not None:
                exchange.fail(error)
                return
            assert isinstance(facts, SqlFacts)
            keep(facts.stateful or declaration.remembers)

        tables = list(declaration.tables)
        self._parsing += 1
        self._engine.runtime.submit(PARSING_LANE, lambda: check_sql(sql, tables), checked)

    def get(self, exchange: Exchange) -> None:
        """Answer with a pipeline, its worker, and its last report."""

        def fields(view: PipelineView) -> dict[str, object]:
            _check_stored(exchange.key, view)
            return {
                "pipeline": view.name,
                "version": view.version,
                "state": view.state,
                "worker": view.holder,
                "restarts": view.restarts,
                "declaration": view.declaration,
                "progress": None if view.report is None else view.report.every_field(),
            }

        self._answer(exchange, self._store.get(exchange.params[0]), fields)

    def delete(self, exchange: Exchange) -> None:
        """Delete a pipeline; absent is no error."""
        name = exchange.params[0]
        self._when_allowed(exchange, lambda: self._delete(exchange, name))

    def _delete(self, exchange: Exchange, name: str) -> None:
        self._answer(
            exchange,
            self._store.delete(name),
            lambda deleted: {"pipeline": name, "deleted": deleted},
        )

    def restart(self, exchange: Exchange) -> None:
        """Have a pipeline start again from its checkpoint."""
        name = exchange.params[0]

        def fields(view: PipelineView) -> dict[str, object]:
            return {
                "pipeline": name,
                "created": False,
                "version": view.version,
                "declaration": view.declaration,
            }

        self._when_allowed(
            exchange, lambda: self._answer(exchange, self._store.restart(name), fields)
        )

    def page(self, exchange: Exchange) -> None:
        """Answer with a page of pipelines, by name."""
        query = query_of(exchange)
        prefix, after = query.get("prefix", ""), read_cursor(query.get("cursor", ""))
        size = page_size_of(query.get("page_size", ""), self._settings)

        def fields(views: list[PipelineView]) -> dict[str, object]:
            found = [
                one
                for one in views
                if one.name > after and one.name.startswith(prefix) and _sees(exchange.key, one)
            ]
            listed: dict[str, object] = {"pipelines": [_listed(one) for one in found[:size]]}
            if len(found) > size:
                listed["next_cursor"] = write_cursor(found[size - 1].name)
            return listed

        self._answer(exchange, self._store.all(), fields)

    # For workers

    def claim(self, exchange: Exchange) -> None:
        """Lease pipelines to a worker."""
        body = decode(exchange, _CLAIM)
        if exchange.key is not None and exchange.key.has_prefixes:
            raise Forbidden(
                "this key has prefixes, and pipelines may read any topic",
                fix="give workers a key without prefixes",
            )
        self._check_node(body.node)
        most = check_u64("max", body.max)
        most = min(max(1 if most is None else most, 1), claims_per_request_max)
        ticket = self._store.claim(body.node, most, check_u64("lease_ms", body.lease_ms))

        def fields(leased: list[LeasedPipeline]) -> dict[str, object]:
            return {"claimed": [_claimed(one) for one in leased]}

        self._answer(exchange, ticket, fields)

    def report(self, exchange: Exchange) -> None:
        """Renew the lease of a pipeline, and keep what its worker reports."""
        name = exchange.params[0]
        body = decode(exchange, _REPORT)
        self._check_holder(body.node, body.lease_id)
        version, lease_ms = check_u64("version", body.version), check_u64("lease_ms", body.lease_ms)
        assert version is not None
        report = report_of(name, version, body)
        ticket = self._store.report(report, body.lease_id, lease_ms, keep=body.state is not None)

        self._answer(exchange, ticket, msgspec.structs.asdict)

    def release(self, exchange: Exchange) -> None:
        """Give a pipeline back."""
        name = exchange.params[0]
        body = decode(exchange, _RELEASE)
        self._check_holder(body.node, body.lease_id)
        version = check_u64("version", body.version)
        assert version is not None
        delay = check_u64("delay_ms", body.delay_ms) or 0
        ticket = self._store.release(name, body.node, version, body.lease_id, delay)
        self._answer(exchange, ticket, lambda done: {"pipeline": name, "released": done})

    # Shared

    def _check_holder(self, node: str, lease_id: str) -> None:
        """Refuse a lease or a node that cannot hold a pipeline.

        Two workers may have one name, so that only the lease says which of them holds it.
        """
        if parse_lease_id(lease_id) is None:
            raise InvalidRequest("lease_id is empty", fix="send the lease_id of a claim")
        self._check_node(node)

    def _check_node(self, node: str) -> None:
        """Refuse a bad node as the queue would, also where there is no pipeline."""
        length, bytes_max = len(node.encode(errors="replace")), self._settings.node_bytes_max
        if not 1 <= length <= bytes_max:
            raise InvalidRequest(f"node has {length} bytes", fix=f"use 1 to {bytes_max}")

    def _when_allowed(self, exchange: Exchange, go_on: Callable[[], None]) -> None:
        """Go on if the key may use the topics of a pipeline, or there is no such pipeline."""
        key = exchange.key
        if key is None or not key.has_prefixes:
            go_on()
            return

        def found(ticket: Ticket[list[PipelineView]]) -> None:
            if failed(exchange, ticket):
                return
            try:
                for one in ticket.result():
                    if one.name == exchange.params[0]:
                        _check_stored(key, one)
                go_on()
            except Exception as error:  # noqa: BLE001 - the client hears of it
                exchange.fail(error)

        self._store.all().when_done(found)

    def _answer(
        self,
        exchange: Exchange,
        ticket: Ticket[T],
        fields: Callable[[T], dict[str, object]],
        status: Callable[[T], int] = lambda _done: 200,
    ) -> None:
        def answer(ticket: Ticket[T]) -> None:
            if failed(exchange, ticket):
                return
            done = ticket.result()
            try:
                body = encode(fields(done))
            except Exception as error:  # noqa: BLE001 - as above
                exchange.fail(error)
                return
            timing = Timing(exchange, self._engine.runtime.clock)
            answer_object(exchange, status(done), body, timing)

        ticket.when_done(answer)


def _listed(view: PipelineView) -> dict[str, object]:
    report = view.report
    return {
        "pipeline": view.name,
        "version": view.version,
        "state": view.state,
        "worker": view.holder,
        "sources": [source.topic for source in view.declaration.sources],
        "dest": view.declaration.dest,
        "lag": None if report is None else report.lag,
        "error": None if report is None else report.error,
    }


def _claimed(leased: LeasedPipeline) -> dict[str, object]:
    return {
        "pipeline": leased.view.name,
        "version": leased.view.version,
        "lease_id": leased.lease_id,
        "deadline": leased.deadline,
        "declaration": leased.view.declaration,
    }


def _names(declaration: Declaration) -> list[str]:
    table = declaration.dest.table
    return declaration.topics() + ([] if table is None else [table])


def _sees(key: Key | None, view: PipelineView) -> bool:
    if key is None or not key.has_prefixes:
        return True
    return all(map(key.allows_name, (view.name, *_names(view.declaration))))


def _check_allowed(key: Key | None, declaration: Declaration) -> None:
    for name in _names(declaration):
        if key is not None and not key.allows_name(name):
            raise Forbidden(
                f"this key may not use the name {name[:80]!r}",
                fix="use topics and tables with one of its prefixes",
                detail={"topic": name[:topic_name_bytes_max]},
            )


def _check_stored(key: Key | None, view: PipelineView) -> None:
    """Refuse a pipeline to a key that may not use its topics; the error does not name them."""
    if not _sees(key, view):
        raise Forbidden(
            f"this key may not use the topics and tables of pipeline {view.name!r}",
            fix="use a key with their prefixes",
            detail={"pipeline": view.name},
        )
