"""The calls of pipelines: declare them, look at them, and what a worker says of them.

They are calls of `AsyncClient`; its sender sends them.  docs/reference/pipelines.md has the fields
of a declaration.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from headrace.api.pipelines import (
    ClaimedPipeline,
    ClaimedPipelines,
    PipelineDeleted,
    PipelineHeld,
    PipelinePage,
    PipelinePut,
    PipelineReleased,
    PipelineReport,
    PipelineState,
    PipelineSummary,
)
from headrace.client import pipeline_calls as calls
from headrace.client._async.sender import AsyncSender
from headrace.client.answers import value


class AsyncPipelineCalls(AsyncSender):
    """What a client does with pipelines."""

    async def put_pipeline(self, pipeline: str, declaration: Mapping[str, Any]) -> PipelinePut:
        """Declare a pipeline, or change what one does; the same again changes nothing."""
        return value(await self._send(calls.put(pipeline, declaration)), PipelinePut)

    async def pipeline(self, pipeline: str) -> PipelineState:
        """A pipeline, who runs it, and what was last heard of it."""
        return value(await self._send(calls.get(pipeline)), PipelineState)

    async def pipelines(self, prefix: str = "") -> AsyncIterator[PipelineSummary]:
        """All pipelines whose names begin with `prefix`, by name, a page at a time."""
        cursor = None
        while True:
            page = await self.pipelines_page(prefix, cursor=cursor)
            for summary in page.pipelines:
                yield summary
            cursor = page.next_cursor
            if cursor is None:
                return

    async def pipelines_page(
        self, prefix: str = "", *, page_size: int | None = None, cursor: str | None = None
    ) -> PipelinePage:
        """One page of the list of pipelines."""
        return value(await self._send(calls.page(prefix, page_size, cursor)), PipelinePage)

    async def delete_pipeline(self, pipeline: str) -> PipelineDeleted:
        """Delete a pipeline: its worker stops it, what it wrote stays.  Absent is no error."""
        return value(await self._send(calls.delete(pipeline)), PipelineDeleted)

    async def restart_pipeline(self, pipeline: str) -> PipelinePut:
        """Restart it from its checkpoint, at once even if it waits after a failure."""
        return value(await self._send(calls.restart(pipeline)), PipelinePut)

    # For workers

    async def claim_pipelines(
        self, node: str, count: int = 1, *, lease_ms: int | None = None
    ) -> list[ClaimedPipeline]:
        """Lease up to `count` pipelines to a worker; none is an answer too."""
        found = value(await self._send(calls.claim(node, count, lease_ms)), ClaimedPipelines)
        return found.claimed

    async def report_pipeline(
        self,
        claimed: ClaimedPipeline,
        node: str,
        lease_ms: int | None,
        said: PipelineReport | None = None,
        *,
        deadline_ms: int | None = None,
    ) -> PipelineHeld:
        """Say how a pipeline goes, and hold it for `lease_ms` from now, or as long as before."""
        call = calls.report(claimed, node, lease_ms, said)
        return value(await self._send(call, deadline_ms), PipelineHeld)

    async def release_pipeline(
        self, claimed: ClaimedPipeline, node: str, *, delay_ms: int = 0
    ) -> PipelineReleased:
        """Give a pipeline back that has been stopped."""
        call = calls.release(claimed, node, delay_ms)
        return value(await self._send(call), PipelineReleased)
