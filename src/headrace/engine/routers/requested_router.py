"""The request of a router put: its checks, and the router state that follows from it."""

from __future__ import annotations

import msgspec

from headrace.core.errors import InvalidRequest, TopicExistsIncompatible
from headrace.core.limits import is_seq
from headrace.engine.removal.deleting import TagMatch
from headrace.engine.routers.state import EXACTLY_ONCE, Router, RouterOptions
from headrace.engine.topics.names import check_name
from headrace.engine.topics.topic import Topic
from headrace.storage.wal.frame import RouterPut


def check_router_name(name: object) -> None:
    """Raise unless this can be the name of a router; the rules are those of topics."""
    if not isinstance(name, str):
        raise InvalidRequest(f"router name is {name!r}", fix="send a string")
    check_name(name)


def refuse_repoint(router: Router, options: RouterOptions) -> None:
    """Raise if a put would give an existing router another source or destination."""
    if (router.source.name, router.dest.name) != (options.source, options.dest):
        raise TopicExistsIncompatible(
            f"{router.name!r} goes from {router.source.name!r} to {router.dest.name!r}",
            fix="delete it first, or use another name",
            detail={
                "router": router.name,
                "reason": "router_repoint_forbidden",
                "existing_source": router.source.name,
                "existing_dest": router.dest.name,
            },
        )


def changed_state(router: Router, options: RouterOptions) -> RouterPut:
    """Return the state of a router with these options."""
    match = options.filter
    return msgspec.structs.replace(
        router.state(),
        preserve_node=options.preserve_node,
        preserve_tag=options.preserve_tag,
        filter=None if match is None else (match.tag, match.prefix),
        allow_cycle=options.allow_cycle,
        exactly_once=options.guarantee == EXACTLY_ONCE,
    )


def router_bytes(name: str, options: RouterOptions) -> int:
    """Return how much the names and the filter of a router hold.

    >>> router_bytes("r", RouterOptions(source="orders", dest="audit"))
    12
    """
    return _text_bytes(name, options.source, options.dest, options.filter)


def held_bytes(router: Router) -> int:
    """Return the same of a router that exists."""
    return _text_bytes(router.name, router.source.name, router.dest.name, router.filter)


def _text_bytes(name: str, source: str, dest: str, match: TagMatch | None) -> int:
    texts = (name, source, dest, "" if match is None else match.tag)
    return sum(len(text.encode(errors="replace")) for text in texts)


def start_of(options: RouterOptions, source: Topic | None) -> int:
    """Return the cursor of a new router: the head of its source, or as `backfill` asks."""
    backfill = options.backfill
    base, head = (source.base, source.head) if source is not None else (0, 0)
    if isinstance(backfill, bool):
        return base if backfill else head
    if not is_seq(backfill) or backfill > head:
        raise InvalidRequest(
            f"backfill is {backfill!r}", fix=f"send true, or a seq from 0 to {head}"
        )
    # Records that were gone before the router was created are not announced as lost.
    return max(backfill, base)
