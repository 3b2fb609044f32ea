"""Who may do what with the S2 API: access tokens, native keys, and anybody."""

from __future__ import annotations

import pytest

from headrace.core.clock import EngineClock, ManualClock, SeededRandom
from headrace.wire.exchange import Exchange
from headrace.wire.s2.access import Access, Caller
from headrace.wire.s2.catalog.entries import Token
from headrace.wire.s2.catalog.issued_tokens import IssuedTokens, new_token
from headrace.wire.s2.errors import S2Refusal
from headrace.wire.s2.token_scopes import (
    ALL_OPS,
    Grant,
    OpGroups,
    ReadWrite,
    ResourceSet,
    TokenScope,
)
from tests.support.exchanges import GivenKey


class Door:
    """Access with tokens that are handed out by hand."""

    def __init__(self, *, has_keys: bool = False) -> None:
        self.clock = ManualClock()
        self.tokens = IssuedTokens(EngineClock(self.clock))
        self.counted: list[tuple[str, str | None]] = []
        self.access = Access(
            self.tokens, has_keys, lambda op, basin: self.counted.append((op, basin))
        )
        self._random = SeededRandom(1)

    def issue(self, scope: TokenScope, **fields: object) -> str:
        handed_out, digest = new_token(self._random)
        id = f"t{len(self.tokens)}"
        self.tokens.add(Token(id, digest, scope, **fields))  # type: ignore[arg-type]
        return handed_out

    def caller(self, bearer: str = "", key: GivenKey | None = None) -> Caller:
        headers = {b"authorization": f"Bearer {bearer}".encode()} if bearer else {}
        exchange = Exchange("GET", "/v1/basins", "", headers, 0)
        exchange.key = key
        return self.access.caller(exchange)


def refused(code: str, call: object, *args: object, **named: object) -> None:
    with pytest.raises(S2Refusal) as refusal:
        call(*args, **named)  # type: ignore[operator]
    assert refusal.value.code == code, refusal.value


ALL = TokenScope(
    basins=ResourceSet(prefix=""),
    streams=ResourceSet(prefix=""),
    access_tokens=ResourceSet(prefix=""),
    ops=sorted(ALL_OPS),  # type: ignore[arg-type]
)


def test_without_keys_anybody_is_let_in_but_a_token_that_does_not_count() -> None:
    door = Door()
    for bearer in ("", "whatever"):
        door.caller(bearer).allow("delete-basin", "my-basin")
    handed_out = door.issue(TokenScope(ops=["list-basins"]))
    refused("permission_denied", door.caller(handed_out).allow, "delete-basin", "my-basin")
    refused("authn", door.caller, handed_out[:-1] + "-")
    known = door.tokens.find("t0")
    assert known is not None
    door.tokens.remove(known)
    refused("authn", door.caller, handed_out)


def test_with_keys_a_bearer_is_a_key_or_a_token() -> None:
    door = Door(has_keys=True)
    refused("authn", door.caller)
    refused("authn", door.caller, "whatever")
    door.caller("k", GivenKey("read")).allow("list-basins")
    handed_out = door.issue(TokenScope(ops=["list-basins"]))
    door.caller(handed_out).allow("list-basins")


def test_a_token_expires() -> None:
    door = Door()
    handed_out = door.issue(ALL, expires_ms=door.clock.wall_ms() + 1_000)
    door.clock.advance(999)
    assert door.caller(handed_out).expires_ms
    door.clock.advance(1)
    refused("authn", door.caller, handed_out)


@pytest.mark.parametrize("op", sorted(ALL_OPS))
def test_each_operation_is_its_own(op: str) -> None:
    door = Door()
    names = {"basin": "my-basin", "stream": "s", "token_id": "t"}
    names_of = (ALL.basins, ALL.streams, ALL.access_tokens, None)
    only = TokenScope(*names_of, [op])  # type: ignore[list-item]
    without = TokenScope(*names_of, sorted(ALL_OPS - {op}))  # type: ignore[arg-type]
    door.caller(door.issue(only)).allow(op, **names)
    refused("permission_denied", door.caller(door.issue(without)).allow, op, **names)
    assert [counted for counted, _ in door.counted] == [op]


def test_groups_add_to_named_operations() -> None:
    groups = OpGroups(account=ReadWrite(read=True), stream=ReadWrite(write=True))
    ops = TokenScope(op_groups=groups, ops=["list-streams"]).allowed_ops
    assert {"list-basins", "append", "trim", "fence", "list-streams"} <= ops
    assert not {"create-basin", "read", "create-stream", "get-stream-config"} & ops


def test_names_are_exact_or_prefixes_and_absent_is_none() -> None:
    door = Door()
    scope = TokenScope(
        basins=ResourceSet(exact="my-basin"), streams=ResourceSet(prefix="a/"), ops=["read"]
    )
    caller = door.caller(door.issue(scope))
    caller.allow("read", "my-basin", "a/1")
    for basin, stream in (("my-basin", "b/1"), ("my-basin-2", "a/1"), ("my-basin", "a")):
        refused("permission_denied", caller.allow, "read", basin, stream)
    bare = door.caller(door.issue(TokenScope(ops=["read", "list-basins", "list-access-tokens"])))
    refused("permission_denied", bare.allow, "read", "my-basin", "a/1")
    bare.allow("list-basins")
    assert not bare.may_see_basin("my-basin") and not bare.may_see_token("t")
    none = door.caller(door.issue(TokenScope(basins=ResourceSet(exact=""), ops=["list-basins"])))
    assert not none.may_see_basin("") and not none.may_see_basin("my-basin")


@pytest.mark.parametrize(
    ("streams", "asked", "looked_at"),
    [
        (ResourceSet(prefix="a/"), "", "a/"),
        (ResourceSet(prefix="a/"), "a/b", "a/b"),
        (ResourceSet(prefix="a/"), "b", None),
        (ResourceSet(exact="a"), "", "a"),
        (None, "", None),
    ],
)
def test_a_list_looks_at_what_may_be_seen(
    streams: ResourceSet | None, asked: str, looked_at: str | None
) -> None:
    door = Door()
    caller = door.caller(door.issue(TokenScope(streams=streams, ops=["list-streams"])))
    assert caller.streams_within(asked) == looked_at


def test_auto_prefix_is_added_and_taken_away() -> None:
    door = Door()
    scope = TokenScope(streams=ResourceSet(prefix="team/"), ops=["read"])
    caller = door.caller(door.issue(scope, auto_prefix=True))
    assert (caller.stream_name("x"), caller.shown("team/x")) == ("team/x", "x")
    plain = door.caller(door.issue(scope))
    assert (plain.stream_name("x"), plain.shown("team/x")) == ("x", "team/x")


@pytest.mark.parametrize(
    ("scopes", "op", "allowed"),
    [
        ("read", "read", True), ("read", "append", False), ("write", "append", True),
        ("write", "create-stream", True), ("write", "trim", False), ("delete", "trim", True),
        ("delete", "delete-stream", True), ("write delete", "reconfigure-stream", False),
        ("admin", "reconfigure-stream", True), ("admin", "issue-access-token", True),
        ("read write delete", "issue-access-token", False), ("admin", "create-basin", True),
    ],
)  # fmt: skip
def test_a_native_key_needs_the_scope_of_the_operation(scopes: str, op: str, allowed: bool) -> None:
    caller = Door(has_keys=True).caller("k", GivenKey(scopes))
    if allowed:
        caller.allow(op, "my-basin", "s")
    else:
        refused("permission_denied", caller.allow, op, "my-basin", "s")


def test_a_native_key_with_prefixes_is_bound_to_their_streams() -> None:
    every = "read write delete admin"
    caller = Door(has_keys=True).caller("k", GivenKey(every, "s2:my-basin/a/"))
    caller.allow("append", "my-basin", "a/1")
    refused("permission_denied", caller.allow, "append", "my-basin", "b")
    refused("permission_denied", caller.allow, "delete-basin", "my-basin")
    refused("permission_denied", caller.allow, "issue-access-token", token_id="t")
    refused("permission_denied", caller.allow, "set-default-location")
    caller.allow("list-streams", "my-basin")
    assert caller.may_see_stream("my-basin", "a/1") and not caller.may_see_stream("my-basin", "b")
    whole = Door(has_keys=True).caller("k", GivenKey(every, "s2:my-basin/"))
    whole.allow("delete-basin", "my-basin")
    assert whole.may_see_basin("my-basin") and not whole.may_see_basin("my-basin-2")


@pytest.mark.parametrize(
    ("scope", "within"),
    [
        (TokenScope(basins=ResourceSet(prefix="my-"), ops=["read"]), True),
        (TokenScope(basins=ResourceSet(exact="my-basin"), ops=["read"]), True),
        (TokenScope(basins=ResourceSet(prefix="m"), ops=["read"]), False),
        (TokenScope(basins=ResourceSet(exact="other-basin"), ops=["read"]), False),
        (TokenScope(ops=["read"]), True),
        (TokenScope(ops=["read", "append"]), False),
        (TokenScope(streams=ResourceSet(prefix=""), ops=["read"]), False),
        (TokenScope(streams=ResourceSet(exact=""), ops=["read"]), True),
    ],
)
def test_a_token_grants_no_more_than_it_has(scope: TokenScope, within: bool) -> None:
    door = Door()
    mine = TokenScope(basins=ResourceSet(prefix="my-"), ops=["read", "issue-access-token"])
    caller = door.caller(door.issue(mine))
    assert caller.may_grant(Grant.of(scope)) is within


@pytest.mark.parametrize(
    ("scopes", "ops", "within"),
    [
        ("admin", "issue-access-token create-basin", True), ("admin", "read", False),
        ("admin", "issue-access-token append", False), ("admin read", "read list-basins", True),
        ("admin read write", "read trim", False), ("admin write", "append create-stream", True),
        ("admin read write", "delete-stream", False), ("read write delete admin", "", True),
    ],
)  # fmt: skip
def test_a_native_key_grants_no_more_than_its_scopes(scopes: str, ops: str, within: bool) -> None:
    grant = Grant(frozenset(ops.split() or ALL_OPS), ALL.basins, ALL.streams, ALL.access_tokens)
    caller = Door(has_keys=True).caller("k", GivenKey(scopes))
    assert caller.may_grant(grant) is within


def test_a_native_key_with_prefixes_grants_nothing() -> None:
    every = GivenKey("read write delete admin", "s2:my-basin/")
    only = TokenScope(basins=ResourceSet(exact="my-basin"), ops=["read"])
    assert not Door(has_keys=True).caller("k", every).may_grant(Grant.of(only))
