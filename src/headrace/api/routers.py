"""Routers: rules that copy what is appended to one topic into another."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

import msgspec

from headrace.api.base import LEFT_OUT, Answer, Body, Match, Unsigned, documented

Guarantee = Literal["at_least_once", "exactly_once"]

AT_LEAST_ONCE: Final = "at_least_once"

AnsweredGuarantee = Annotated[str, documented(Guarantee)]
# A list of three, such as ["tag", "Glob", "x*"].
AnsweredFilter = Annotated[list[str] | None, documented(tuple[str, str, str] | None)]


class RouterBody(Body, frozen=True):
    """From where to where, which records, and how."""

    source: str
    dest: str
    filter: Match | None = None
    preserve_node: bool | None = None
    preserve_tag: bool | None = None
    create_dest: bool | None = None
    allow_cycle: bool | None = None
    guarantee: Guarantee | None = None
    backfill: bool | Unsigned | None = None


class ShownRouter(Answer, frozen=True, kw_only=True):
    """A router: from where to where, which records, and how."""

    router: str
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    allow_cycle: bool
    guarantee: AnsweredGuarantee
    filter: AnsweredFilter = None


class RouterPut(ShownRouter, frozen=True, kw_only=True):
    """A router as it is now."""

    schema_name: ClassVar[str] = "RouterPutAnswer"

    created: bool


class RouterState(ShownRouter, frozen=True, kw_only=True):
    """A router, and how many records of its source it has brought to its destination.

    `blocked` is there, and true, while the destination takes nothing.
    """

    schema_name: ClassVar[str] = "RouterAnswer"

    forwarded_total: int
    blocked: Annotated[bool, LEFT_OUT] = False


class RouterSummary(msgspec.Struct, frozen=True):
    """A router in a list."""

    schema_name: ClassVar[str] = "ListedRouter"

    router: str
    source: str
    dest: str
    guarantee: AnsweredGuarantee
    forwarded_total: int
    blocked: Annotated[bool, LEFT_OUT] = False


class RouterPage(Answer, frozen=True):
    """A page of routers, by name."""

    schema_name: ClassVar[str] = "RouterListAnswer"

    routers: list[RouterSummary]
    next_cursor: Annotated[str | None, LEFT_OUT] = None  # None on the last page


class RouterDeleted(Answer, frozen=True):
    """Whether there was a router to delete, and what a full destination did not take of it.

    `records_left` of the source, those after the seq `copied_to`, were not copied.
    """

    schema_name: ClassVar[str] = "RouterDeletedAnswer"

    router: str
    deleted: bool
    records_left: Annotated[int, LEFT_OUT] = 0
    copied_to: Annotated[int, LEFT_OUT] = 0
