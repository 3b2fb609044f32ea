"""`/v0/routers`: rules that copy what is appended to one topic into another.

What a router does is the engine's (`engine/routers/`); here is how it looks in JSON, and which
names a key has to be allowed for it: its own, its source's and its destination's.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from headrace.api.routers import (
    RouterBody,
    RouterDeleted,
    RouterPage,
    RouterPut,
    RouterState,
)
from headrace.core.errors import Forbidden, InvalidRequest
from headrace.core.limits import native_topic_name_bytes_max, topic_name_bytes_max
from headrace.core.runtime import Ticket
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.engine.removal.deleting import TagMatch
from headrace.engine.routers.operations import RouterDeleteResult, RouterPutResult
from headrace.engine.routers.state import AT_LEAST_ONCE, RouterInfo, RouterOptions
from headrace.wire.bodies import decode
from headrace.wire.exchange import Exchange, Key
from headrace.wire.failures import answering, failed
from headrace.wire.native.answers import Timing, answer_object, encode
from headrace.wire.native.request_checks import check_new_name, check_not_own, check_told_u64
from headrace.wire.native.topics import page_size_of, parse_match, read_cursor, write_cursor
from headrace.wire.queries import query_of
from headrace.wire.routes import ADMIN, DELETE, READ, Route

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]*", re.ASCII)


_DECODER: Final = msgspec.json.Decoder(RouterBody)


class RoutersApi:
    """Routers over HTTP; they are called the same in both vocabularies."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings

    def routes(self) -> list[Route]:
        one = "/v0/routers/{router}"
        return [
            Route(
                "PUT", one, self.put, frozenset({ADMIN}),
                "Create a router, or change how one copies",
                request=RouterBody, response=RouterPut,
            ),
            Route(
                "GET", one, self.get, frozenset({READ}),
                "A router, once it has caught up with its source", response=RouterState,
            ),
            Route(
                "DELETE", one, self.delete, frozenset({DELETE}),
                "Delete a router; copies stay", response=RouterDeleted,
            ),
            Route(
                "GET", "/v0/routers", self.list, frozenset({READ}),
                "A page of routers, by name", response=RouterPage,
                query=("prefix", "source", "dest", "page_size", "cursor"), name_param=False,
            ),
        ]  # fmt: skip

    def put(self, exchange: Exchange) -> None:
        """Create a router, or change how one copies.

        The order of the checks is part of the API; access control has checked the router's own name
        against the key's prefixes, and the engine does the rest.
        """
        name = exchange.params[0]
        body = decode(exchange, _DECODER)
        match = None
        if body.filter is not None:
            match = _parse_filter(body.filter, self._settings.tag_bytes_max)
        _check_allowed(exchange.key, body.source, body.dest)
        self._check_stored(exchange.key, name)
        check_new_router_name(name)
        if body.source != body.dest:
            for topic in (body.source, body.dest):
                if topic not in self._engine.topics_by_name:
                    check_new_name(topic)
        check_not_own(body.dest)
        options = RouterOptions(
            source=body.source,
            dest=body.dest,
            preserve_node=body.preserve_node is not False,
            preserve_tag=body.preserve_tag is not False,
            create_dest=body.create_dest is not False,
            filter=match,
            allow_cycle=body.allow_cycle is True,
            guarantee=body.guarantee or AT_LEAST_ONCE,
            backfill=_backfill(body.backfill),
        )

        def answer(ticket: Ticket[RouterPutResult]) -> None:
            if failed(exchange, ticket):
                return
            put = ticket.result()
            fields = {"router": put.router.router, "created": put.created, **_shown(put.router)}
            self._answer(exchange, fields, 201 if put.created else 200)

        key = exchange.key
        allowed = key.allows_name if key is not None else _any_name
        self._engine.routers.put(name, options, allowed=allowed).when_done(
            answering(exchange, answer)
        )

    def get(self, exchange: Exchange) -> None:
        """Answer with a router, once it has caught up with its source."""
        name = exchange.params[0]
        self._check_stored(exchange.key, name)

        def answer(ticket: Ticket[RouterInfo]) -> None:
            if failed(exchange, ticket):
                return
            info = ticket.result()
            fields = {"router": info.router, **_shown(info)}
            self._answer(exchange, {**fields, **_progress(info)})

        self._engine.routers.get(name).when_done(answering(exchange, answer))

    def delete(self, exchange: Exchange) -> None:
        """Delete a router; absent is no error."""
        name = exchange.params[0]
        self._check_stored(exchange.key, name)

        def answer(ticket: Ticket[RouterDeleteResult]) -> None:
            if failed(exchange, ticket):
                return
            gone = ticket.result()
            fields: dict[str, object] = {"router": gone.router, "deleted": gone.deleted}
            if gone.left:
                fields |= {"records_left": gone.left, "copied_to": gone.copied_to}
            self._answer(exchange, fields)

        self._engine.routers.delete(name).when_done(answering(exchange, answer))

    def list(self, exchange: Exchange) -> None:
        """Answer with a page of routers, by name, without waiting for them to catch up."""
        query = query_of(exchange)
        key = exchange.key

        def allowed(info: RouterInfo) -> bool:
            return key is None or all(map(key.allows_name, (info.router, info.source, info.dest)))

        page = self._engine.routers.page(
            query.get("prefix", ""),
            read_cursor(query.get("cursor", "")),
            page_size_of(query.get("page_size", ""), self._settings),
            source=query.get("source") or None,
            dest=query.get("dest") or None,
            allowed=None if key is None or not key.has_prefixes else allowed,
        )
        fields: dict[str, object] = {"routers": [_listed(info) for info in page.routers]}
        if page.after is not None:
            fields["next_cursor"] = write_cursor(page.after)
        self._answer(exchange, fields)

    def _answer(self, exchange: Exchange, fields: dict[str, object], status: int = 200) -> None:
        timing = Timing(exchange, self._engine.runtime.clock)
        answer_object(exchange, status, encode(fields), timing)

    def _check_stored(self, key: Key | None, name: str) -> None:
        """Refuse to show, change or delete a router to a key that may not use its topics.

        The error does not name them.
        """
        router = self._engine.routers.by_name.get(name)
        if router is None or key is None:
            return
        if not key.allows_name(router.source.name) or not key.allows_name(router.dest.name):
            raise Forbidden(
                f"this key may not use the topics of router {name!r}",
                fix="use a key with their prefixes",
                detail={"router": name},
            )


def _any_name(_name: str) -> bool:
    return True


def check_new_router_name(name: str) -> None:
    """Refuse a name that no router can have.

    >>> check_new_router_name("jobs->audit")
    >>> check_new_router_name("")
    Traceback (most recent call last):
    headrace.core.errors.InvalidRequest: '' is not a name of a router; use 1 to 255 of A-Z a-z 0-9 \
. _ : - > and begin with a letter or a digit
    """
    if len(name) > native_topic_name_bytes_max or _NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"{name[:80]!r} is not a name of a router",
            fix=f"use 1 to {native_topic_name_bytes_max} of A-Z a-z 0-9 . _ : - > and begin with a "
            "letter or a digit",
        )


def _parse_filter(match: str | list[str], size_max: int) -> TagMatch:
    """Parse a filter; refuse one that is longer than any tag."""
    parsed = parse_match(match, "filter")
    size = len(parsed.tag.encode())
    if size > size_max:
        raise InvalidRequest(
            f"filter has {size} bytes", fix=f"use {size_max} at most, as a tag has"
        )
    return parsed


def _check_allowed(key: Key | None, *names: str) -> None:
    for name in names:
        if key is not None and not key.allows_name(name):
            raise Forbidden(
                f"this key may not use the name {name[:80]!r}",
                fix="use topics with one of its prefixes",
                detail={"topic": name[:topic_name_bytes_max]},
            )


def _backfill(asked: bool | int | None) -> bool | int:
    if asked is None or isinstance(asked, bool):
        return asked is True
    return check_told_u64("backfill", asked) or 0


def _shown(info: RouterInfo) -> dict[str, object]:
    """What a router does, in the order of the API."""
    return {
        "source": info.source,
        "dest": info.dest,
        "preserve_node": info.preserve_node,
        "preserve_tag": info.preserve_tag,
        "filter": info.filter,
        "allow_cycle": info.allow_cycle,
        "guarantee": info.guarantee,
    }


def _listed(info: RouterInfo) -> dict[str, object]:
    return {
        "router": info.router,
        "source": info.source,
        "dest": info.dest,
        "guarantee": info.guarantee,
        **_progress(info),
    }


def _progress(info: RouterInfo) -> dict[str, object]:
    """How far it is, and whether and why it waits for its destination."""
    progress: dict[str, object] = {"forwarded_total": info.forwarded_total}
    if info.blocked:
        progress |= {"blocked": True, "reason": info.reason}
    return progress
