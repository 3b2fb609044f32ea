"""Access tokens as calls issue them and lists show them (s2 §16)."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import Throttled
from headrace.core.settings import Settings
from headrace.server.access import AccessControl
from headrace.server.auth import KeyRing
from headrace.wire.rfc3339 import MS_MAX, rfc3339
from headrace.wire.s2.catalog.entries import ENCODER, TOKEN_ENTRY_BYTES_MAX, Token
from headrace.wire.s2.names import TOKEN_ID_BYTES_MAX
from headrace.wire.s2.read_session import HEARTBEAT_MS_MAX
from headrace.wire.s2.token_scopes import ALL_OPS, TokenScope
from headrace.wire.s2.tokens import SCOPE_NAME_BYTES_MAX, SCOPE_OPS_MAX, TokenInfo
from tests.support.engines import open_engines
from tests.support.s2_servers import EVENTS, SESSION, S2Exchange, S2Server

ALL_NAMES = {"prefix": ""}
EVERYTHING = {"basins": ALL_NAMES, "streams": ALL_NAMES, "ops": sorted(ALL_OPS)}


def issue(s2: S2Server, id: str = "t", **fields: Any) -> S2Exchange:
    body = {"id": id, "scope": EVERYTHING, **fields}
    return s2.ask("POST", "/v1/access-tokens", body)


def bearer(s2: S2Server, id: str = "t", **fields: Any) -> dict[str, str]:
    done = issue(s2, id, **fields)
    assert done.status == 201, done.reply
    return {"authorization": f"Bearer {done.json['access_token']}"}


def shown(s2: S2Server) -> list[dict[str, Any]]:
    done = s2.ask("GET", "/v1/access-tokens")
    assert done.status == 200, done.reply
    found: list[dict[str, Any]] = done.json["access_tokens"]
    return found


# When a token expires


@pytest.mark.parametrize(
    "text",
    ["9999-12-31T23:59:59-01:00", "9999-12-31T23:59:60Z", "2030-W01-1T00:00Z", "20300101T000000Z"],
)
def test_an_expiry_that_is_no_time_is_refused(s2: S2Server, text: str) -> None:
    refused = issue(s2, expires_at=text)
    assert (refused.status, refused.json["code"]) == (400, "bad_json")
    assert shown(s2) == []


@pytest.mark.parametrize(
    ("text", "listed"),
    [
        ("2099-01-01T00:00:00.123456789Z", "2099-01-01T00:00:00.123456789Z"),
        ("2099-01-01t00:00:00z", "2099-01-01T00:00:00Z"),
        ("2098-12-31T23:59:60Z", "2099-01-01T00:00:00.000Z"),
        ("9999-12-31T23:59:59.999Z", "9999-12-31T23:59:59.999Z"),
    ],
)
def test_an_expiry_is_shown_in_a_form_that_clients_read(
    s2: S2Server, text: str, listed: str
) -> None:
    bearer(s2, expires_at=text)
    assert [token["expires_at"] for token in shown(s2)] == [listed]


@pytest.mark.parametrize("said", ["", "9999-12-31T23:59:59-01:00"])
def test_a_token_that_was_stored_with_any_expiry_is_listed(said: str) -> None:
    token = Token("t", "", TokenScope(ops=["read"]), MS_MAX + 3_600_000, False, said)
    assert TokenInfo.of(token).expires_at == (said or "9999-12-31T23:59:59.999Z")


# What is kept of a token


def test_each_operation_is_kept_once(s2: S2Server) -> None:
    bearer(s2, scope={"ops": ["read", "append", "read"]})
    assert [token["scope"]["ops"] for token in shown(s2)] == [["read", "append"]]
    refused = issue(s2, "more", scope={"ops": ["read"] * (SCOPE_OPS_MAX + 1)})
    assert (refused.status, refused.json["code"]) == (422, "invalid")


def test_the_largest_token_is_within_its_bound(s2: S2Server) -> None:
    name = {"prefix": "\x01" * SCOPE_NAME_BYTES_MAX}
    groups = {which: {"read": True, "write": True} for which in ("account", "basin", "stream")}
    ops = sorted(ALL_OPS)
    scope = {"basins": name, "streams": name, "access_tokens": name, "op_groups": groups}
    id = "\x01" * TOKEN_ID_BYTES_MAX
    expires_at = "2099-01-01T00:00:00." + "9" * 43 + "Z"
    bearer(s2, id, scope={**scope, "ops": ops}, expires_at=expires_at, auto_prefix_streams=True)
    (token,) = s2.dialect._catalog.tokens.after("", "")
    assert TOKEN_ENTRY_BYTES_MAX // 2 < len(ENCODER.encode(token)) <= TOKEN_ENTRY_BYTES_MAX


@pytest.mark.parametrize("which", ["basins", "streams", "access_tokens"])
@pytest.mark.parametrize("how", ["exact", "prefix"])
def test_no_name_of_a_scope_has_a_nul(s2: S2Server, which: str, how: str) -> None:
    refused = issue(s2, scope={"ops": ["read"], which: {how: "a\0"}})
    assert (refused.status, refused.json["code"]) == (400, "bad_json")


# Reads that a token outlives, or not


@pytest.fixture
def filled(s2: S2Server) -> S2Server:
    """The stream has three records."""
    s2.append("a", "b", "c")
    return s2


def test_a_session_that_hears_only_heartbeats_ends_with_its_token(filled: S2Server) -> None:
    """§16b."""
    expires_at = rfc3339(filled.clock.wall_ms() + 1_000)
    session = filled.session("GET", "seq_num=3", **bearer(filled, expires_at=expires_at))
    (tail,) = session.frames()
    assert not tail.is_terminal
    filled.wait(HEARTBEAT_MS_MAX + 1_000)
    (last,) = session.frames()
    assert (last.error[0], last.error[1]["code"]) == (401, "authn")
    assert session.outlet.closed


def test_events_end_with_their_token(filled: S2Server) -> None:
    """§16b."""
    headers = {**EVENTS, **bearer(filled)}
    events = filled.ask("GET", "/v1/streams/s/records?seq_num=3", headers=headers)
    assert events.outlet is not None
    events.outlet.take()
    assert filled.ask("DELETE", "/v1/access-tokens/t").status == 204
    filled.append("d")
    told = events.outlet.take()
    assert b"event: error" in told and b'"authn"' in told and b'"body"' not in told
    assert events.outlet.closed


@pytest.mark.parametrize("comes", [True, False])
def test_a_read_that_waits_ends_with_its_token(filled: S2Server, comes: bool) -> None:
    """§16b: whether or not a record comes."""
    waiting = filled.read("seq_num=3&wait=2", **bearer(filled))
    assert not waiting.answered
    assert filled.ask("DELETE", "/v1/access-tokens/t").status == 204
    if comes:
        filled.append("d")
    else:
        filled.wait(2_100)
    assert (waiting.status, waiting.json["code"]) == (401, "authn")


# Prefixes that a holder does not see

TEAM = {**EVERYTHING, "streams": {"prefix": "team/"}}


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 512])
def test_a_name_behind_a_prefix_is_a_name_by_itself(s2: S2Server, name: str) -> None:
    """§3a, §16d."""
    headers = bearer(s2, scope=TEAM, auto_prefix_streams=True)
    made = s2.ask("POST", "/v1/streams", {"stream": name}, headers)
    assert (made.status, made.json["code"]) == (400, "bad_json")
    if name:
        put = s2.ask("PUT", f"/v1/streams/{name.replace('.', '%2e')}", headers=headers)
        assert put.status == 400 and "team" not in put.json["message"]
    longest = "x" * (512 - len("team/"))
    assert s2.ask("PUT", f"/v1/streams/{longest}", headers=headers).status == 201


def test_no_refusal_names_the_prefix(s2: S2Server) -> None:
    """§16d."""
    headers = bearer(s2, scope=TEAM, auto_prefix_streams=True)
    s2.create("team/x")
    again = s2.ask("POST", "/v1/streams", {"stream": "x"}, headers)
    absent = s2.ask("GET", "/v1/streams/y", headers=headers)
    tail = s2.ask("GET", "/v1/streams/y/records/tail", headers=headers)
    assert [done.status for done in (again, absent, tail)] == [409, 404, 404]
    for done, name in ((again, "'x'"), (absent, "'y'"), (tail, "'y'")):
        assert name in done.json["message"] and "team" not in done.json["message"]


@pytest.mark.parametrize("query", ["seq_num=0", "seq_num=0&wait=5"])
def test_a_read_of_a_stream_that_goes_says_so_in_words_of_the_api(s2: S2Server, query: str) -> None:
    """§14: not of the topic, and not by a name that the reader does not use."""
    headers = bearer(s2, scope=TEAM, auto_prefix_streams=True)
    s2.create("team/x")
    session = s2.session("GET", query, stream="x", **headers)
    waiting = s2.read("wait=5", stream="x", **headers)
    session.frames()
    assert s2.ask("DELETE", "/v1/streams/team%2Fx").status == 202
    status, told = session.frames()[-1].error
    assert {status, waiting.status} <= {404, 409}
    for message in (told["message"], waiting.json["message"]):
        assert "stream" in message and "topic" not in message and "team" not in message


# Limits of keys


def admitted(
    s2: S2Server, access: AccessControl, target: str, headers: dict[str, str]
) -> S2Exchange:
    exchange = s2.request("GET", target, headers=headers)
    assert exchange.route is not None
    access.admit(exchange, exchange.route)
    return exchange


def test_a_token_has_as_many_requests_in_progress_as_a_key(s2: S2Server) -> None:
    """§16b."""
    mine, other = bearer(s2), bearer(s2, "other")
    access = AccessControl(Settings(max_inflight_per_key=1), KeyRing.parse("root"))
    held = admitted(s2, access, "/v1/streams", mine)
    with pytest.raises(Throttled):
        admitted(s2, access, "/v1/streams", mine)
    admitted(s2, access, "/v1/streams", other)
    s2.handle([held])
    assert held.status == 200
    access.release(held)
    again = admitted(s2, access, "/v1/streams", mine)
    assert s2.ask("DELETE", "/v1/access-tokens/t").status == 204
    s2.handle([again])
    assert again.status == 401  # it is held to its token, whatever is counted for it


def test_a_token_has_as_many_streams_as_a_key(clock: ManualClock) -> None:
    """§16b."""
    with open_engines(clock) as open_engine:
        s2 = S2Server(open_engine(max_sse_connections_per_key=1), clock)
        s2.create()
        access = AccessControl(s2.engine.settings, KeyRing.parse("root"))
        mine, other = bearer(s2), bearer(s2, "other")
        statuses = []
        for headers in ({**mine, **SESSION}, {**mine, **EVENTS}, {**other, **SESSION}):
            exchange = admitted(s2, access, "/v1/streams/s/records?seq_num=0", headers)
            s2.handle([exchange])
            s2.run()
            statuses.append(200 if exchange.outlet is not None else exchange.status)
        assert statuses == [200, 429, 200]


def test_a_token_that_is_being_revoked_issues_no_other(s2: S2Server) -> None:
    """Whoever revokes it, and then those that it issued, has to see all of these."""
    holder = bearer(s2, "stolen", scope={**EVERYTHING, "access_tokens": ALL_NAMES})
    revoked = s2.begin("DELETE", "/v1/access-tokens/stolen")
    body = {"id": "left", "scope": {"ops": ["read"]}}
    issued = s2.begin("POST", "/v1/access-tokens", body, holder)
    s2.run()
    assert revoked.status == 204
    assert (issued.status, issued.json["code"]) == (401, "authn")
    assert shown(s2) == []
