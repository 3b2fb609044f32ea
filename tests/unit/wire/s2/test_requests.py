"""What requests of the S2 API have in common (s2 §2, §6)."""

from __future__ import annotations

import pytest

from headrace.core.clock import ManualClock
from tests.support.engines import open_engines
from tests.support.s2_servers import S2Server, records


@pytest.mark.parametrize(
    "target",
    [
        "/v1/basins?prefix=a&prefix=b",
        "/v1/streams?limit=1&limit=2",
        "/v1/streams?prefix=&prefix=b",
        "/v1/access-tokens?start_after=a&start_after=a",
        "/v1/metrics?set=account-ops&start=0&end=1&end=2",
        "/v1/metrics/test-basin?set=storage&set=storage&start=0&end=1",
        "/v1/streams/s/records?count=1&count=2",
    ],
)
def test_a_field_that_is_given_twice_is_refused(s2: S2Server, target: str) -> None:
    """§2f."""
    refused = s2.ask("GET", target)
    assert (refused.status, refused.json["code"]) == (400, "bad_query")
    assert "given twice" in refused.json["message"]


def test_fields_that_nobody_knows_are_ignored(s2: S2Server) -> None:
    """§2f."""
    assert s2.ask("GET", "/v1/streams?other=1&other=2").status == 200


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json, text/plain", 200),
        ("application/json; charset=utf-8, text/plain", 200),
        ("text/plain, application/json", 400),
    ],
)
def test_the_first_media_type_counts(s2: S2Server, content_type: str, status: int) -> None:
    """§6c."""
    body = b'{"records":[{"body":"x"}]}'
    done = s2.ask("POST", records("s"), body, {"content-type": content_type})
    assert done.status == status


def test_streams_beyond_the_most_are_not_to_be_tried_again(clock: ManualClock) -> None:
    """§2b: as basins and tokens beyond theirs."""
    with open_engines(clock) as open_engine:
        s2 = S2Server(open_engine(max_topics=2), clock, create_stream_on_append=True)
        s2.create("a")
        body = {"records": [{"body": "x"}]}
        for refused in (
            s2.ask("POST", "/v1/streams", {"stream": "b"}),
            s2.ask("PUT", "/v1/streams/b"),
            s2.ask("POST", records("b"), body),
        ):
            assert (refused.status, refused.json["code"]) == (403, "quota_exhausted")
            assert b"retry-after" not in refused.reply_headers
