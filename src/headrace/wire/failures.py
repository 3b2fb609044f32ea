"""Failures as answers: what every dialect says in headers, and tickets that failed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from headrace.core.error_frames import without_frames
from headrace.core.errors import HeadraceError, Internal, OutOfResources
from headrace.core.runtime import Ticket
from headrace.wire.exchange import Exchange, Headers

log = logging.getLogger("headrace.wire")

T = TypeVar("T")


def error_headers(error: HeadraceError) -> Headers:
    """The headers of a refusal: when to try again, which methods are allowed, how to sign in."""
    if error.retryable:
        return ((b"retry-after", b"%d" % _retry_seconds(error)),)
    if error.status == 405:
        allowed = error.detail.get("allow")
        return ((b"allow", ", ".join(allowed if isinstance(allowed, list) else ()).encode()),)
    if error.status == 401:
        return ((b"www-authenticate", b"Bearer"),)
    return ()


def _retry_seconds(error: HeadraceError) -> int:
    """When to try again, in whole seconds and not too early."""
    detail = error.detail
    if "retry_after_ms" in detail:
        return max(-(-int(str(detail["retry_after_ms"])) // 1000), 1)
    return int(str(detail.get("retry_after_s", 1)))


def told(error: BaseException, what: str) -> HeadraceError:
    """The error as a client is told it, without its frames; one that is none of ours is logged."""
    without_frames(error)
    if isinstance(error, HeadraceError):
        return error
    if isinstance(error, MemoryError):
        return OutOfResources.told()
    log.error("%s failed", what, exc_info=error)
    return Internal("the server met an error of its own", fix="see the server's log")


def answering(
    exchange: Exchange, callback: Callable[[Ticket[T]], None]
) -> Callable[[Ticket[T]], None]:
    """The callback for a ticket; what it raises is the answer."""

    def done(ticket: Ticket[T]) -> None:
        try:
            callback(ticket)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client hears of it
            exchange.fail(error)

    return done


def failed(exchange: Exchange, ticket: Ticket[T]) -> bool:
    """Answer with the error of a ticket that failed; whether the exchange is answered."""
    if exchange.answered:
        return True
    if ticket.error is not None:
        exchange.fail(ticket.error)
        return True
    return False
