"""The calls of topics, of routers between them and of their sealed files.

They are calls of `AsyncClient`; its sender sends them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from headrace.api.routers import (
    AT_LEAST_ONCE,
    Guarantee,
    RouterDeleted,
    RouterPage,
    RouterPut,
    RouterState,
    RouterSummary,
)
from headrace.api.segments import Manifest, Pin, PinReleased
from headrace.api.topics import ArchivedTo, Put, TopicDeleted, TopicPage, TopicState, TopicSummary
from headrace.client import calls
from headrace.client._async.sender import AsyncSender
from headrace.client.answers import value
from headrace.client.calls import Config, Match


class AsyncTopicCalls(AsyncSender):
    """What a client does with topics and routers."""

    async def put_topic(self, topic: str, config: Config | None = None) -> Put:
        """Create a topic, or replace its whole config: what is left out gets its default."""
        return value(await self._send(calls.put_topic(topic, config)), Put)

    async def topic(self, topic: str, *, touch: bool = True) -> TopicState:
        """The state of a topic; with `touch` this look counts as a read."""
        return value(await self._send(calls.topic(topic, touch)), TopicState)

    async def archived(self, topic: str, epoch: int, to_seq: int) -> ArchivedTo:
        """Say that records up to `to_seq` are safe elsewhere; answers with what holds then."""
        return value(await self._send(calls.archived(topic, epoch, to_seq)), ArchivedTo)

    async def topics(self, prefix: str = "") -> AsyncIterator[TopicSummary]:
        """All topics whose names begin with `prefix`, by name, a page at a time."""
        cursor = None
        while True:
            page = await self.topics_page(prefix, cursor=cursor)
            for summary in page.topics:
                yield summary
            cursor = page.next_cursor
            if cursor is None:
                return

    async def topics_page(
        self, prefix: str = "", *, page_size: int | None = None, cursor: str | None = None
    ) -> TopicPage:
        """One page of the list of topics."""
        return value(await self._send(calls.topics(prefix, page_size, cursor)), TopicPage)

    async def delete_topic(self, topic: str, *, if_empty: bool = False) -> TopicDeleted:
        """Delete a topic with all it holds; one that is not there is no error."""
        return value(await self._send(calls.delete_topic(topic, if_empty)), TopicDeleted)

    async def put_router(
        self,
        router: str,
        source: str,
        dest: str,
        *,
        filter: Match | None = None,
        preserve_node: bool = True,
        preserve_tag: bool = True,
        create_dest: bool = True,
        allow_cycle: bool = False,
        guarantee: Guarantee = AT_LEAST_ONCE,
        backfill: bool | int = False,
    ) -> RouterPut:
        """Copy what is appended to `source` into `dest` from now on, or change how that is done.

        `filter` is a tag ("x", "x*").  With `backfill` a new router begins with what the source
        holds, or after a seq.
        """
        call = calls.put_router(
            router,
            source,
            dest,
            filter=filter,
            preserve_node=preserve_node,
            preserve_tag=preserve_tag,
            create_dest=create_dest,
            allow_cycle=allow_cycle,
            guarantee=guarantee,
            backfill=backfill,
        )
        return value(await self._send(call), RouterPut)

    async def router(self, router: str) -> RouterState:
        """A router, once it has caught up with its source."""
        return value(await self._send(calls.router(router)), RouterState)

    async def routers(
        self, prefix: str = "", *, source: str | None = None, dest: str | None = None
    ) -> AsyncIterator[RouterSummary]:
        """All routers whose names begin with `prefix`, or from or to a topic, by name."""
        cursor = None
        while True:
            page = await self.routers_page(prefix, source=source, dest=dest, cursor=cursor)
            for summary in page.routers:
                yield summary
            cursor = page.next_cursor
            if cursor is None:
                return

    async def routers_page(
        self,
        prefix: str = "",
        *,
        source: str | None = None,
        dest: str | None = None,
        page_size: int | None = None,
        cursor: str | None = None,
    ) -> RouterPage:
        """One page of the list of routers."""
        call = calls.routers(prefix, source, dest, page_size, cursor)
        return value(await self._send(call), RouterPage)

    async def delete_router(self, router: str) -> RouterDeleted:
        """Delete a router; copies stay.  One that is not there is no error."""
        return value(await self._send(calls.delete_router(router)), RouterDeleted)

    async def segments(self, topic: str) -> Manifest:
        """The manifest of a topic: its sealed files, and where the rest begins."""
        return value(await self._send(calls.segments(topic)), Manifest)

    async def renew_pin(self, topic: str, pin: str) -> Pin:
        """Keep the files of a manifest for another while.  Tried once: a reader can do without."""
        return value(await self._send(calls.pin("POST", topic, pin), deadline_ms=0), Pin)

    async def release_pin(self, topic: str, pin: str) -> PinReleased:
        """Give the files of a manifest back.  Tried once: a pin that stays lapses by itself."""
        return value(await self._send(calls.pin("DELETE", topic, pin), deadline_ms=0), PinReleased)
