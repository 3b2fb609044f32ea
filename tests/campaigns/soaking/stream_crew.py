"""Everybody who works on streams at once: Durable Streams that come and go, and streams of S2."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import msgspec

from tests.campaigns.soaking import s2, streams
from tests.campaigns.soaking.site import Site

SLOTS = 6
Work = Coroutine[Any, Any, None]


class StreamCrew:
    """Writers and readers."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.json, self.protobuf, self.session = (
            s2.S2Stream(site, name) for name in ("json", "protobuf", "session")
        )

    async def prepare(self) -> None:
        client = self.site.client()
        body = msgspec.json.encode({"basin": s2.BASIN})
        headers = {"Content-Type": "application/json"}
        answer = await client.ask("POST", "/v1/basins", body, headers)
        assert answer.status in (200, 201), answer
        for stream in (self.json, self.protobuf, self.session):
            body = msgspec.json.encode({"stream": stream.name})
            answer = await client.ask("POST", "/v1/streams", body, {**headers, **stream.headers})
            assert answer.status in (200, 201), answer
        await client.close()

    def writing(self) -> dict[str, Work]:
        found: dict[str, Work] = {
            f"streams {slot}": streams.generations(self.site, slot) for slot in range(SLOTS)
        }
        found["streams that expire"] = streams.expiring(self.site)
        found["S2 JSON"] = s2.append_unary(self.json, protobuf=False, many=4, every=0.2)
        found["S2 protobuf"] = s2.append_unary(self.protobuf, protobuf=True, many=4, every=0.2)
        found["S2 session"] = s2.append_session(self.session, many=4, every=0.2)
        return found

    def reading(self) -> dict[str, Work]:
        ways = (s2.by_session, s2.by_events, s2.by_pages)
        return {
            f"S2 {stream.name} {way.__name__}": s2.read_on(stream, way)
            for stream in (self.json, self.protobuf, self.session)
            for way in ways
        }

    async def close_accounts(self) -> dict[str, int]:
        return {f"s2 {s.name}": s.next for s in (self.json, self.protobuf, self.session)}

    def lags(self) -> dict[str, int]:
        return {}
