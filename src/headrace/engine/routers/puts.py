"""What a put of a router asks for: checked, and as the state that comes of it."""

from __future__ import annotations

import msgspec

from headrace.core.errors import InvalidRequest, TopicExistsIncompatible
from headrace.core.limits import is_seq
from headrace.engine.core_state import check_name
from headrace.engine.routers.state import EXACTLY_ONCE, Router, RouterOptions
from headrace.engine.topic import Topic
from headrace.storage.frame import RouterPut


def check_router_name(name: object) -> None:
    """Names of routers are names of topics, to the engine."""
    if not isinstance(name, str):
        raise InvalidRequest(f"router name is {name!r}", fix="send a string")
    check_name(name)


def refuse_repoint(router: Router, options: RouterOptions) -> None:
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
    """A router with other options."""
    match = options.filter
    return msgspec.structs.replace(
        router.state(),
        preserve_node=options.preserve_node,
        preserve_tag=options.preserve_tag,
        filter=None if match is None else (match.tag, match.prefix),
        allow_cycle=options.allow_cycle,
        exactly_once=options.guarantee == EXACTLY_ONCE,
    )


def start_of(options: RouterOptions, source: Topic | None) -> int:
    """Where a new router begins: after what is there, or where it was asked to."""
    backfill = options.backfill
    base, head = (source.base, source.head) if source is not None else (0, 0)
    if isinstance(backfill, bool):
        return base if backfill else head
    if not is_seq(backfill) or backfill > head:
        raise InvalidRequest(
            f"backfill is {backfill!r}", fix=f"send true, or a seq from 0 to {head}"
        )
    # What was gone before the router came is not its loss.
    return max(backfill, base)
