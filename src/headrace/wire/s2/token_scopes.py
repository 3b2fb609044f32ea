"""What an access token may do: operations, and which basins, streams and tokens they are about.

Only this file knows the operations of the S2 API and their groups.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, get_args

import msgspec

AccountRead = Literal[
    "list-basins", "get-basin-config", "list-access-tokens", "account-metrics",
    "list-locations", "get-default-location",
]  # fmt: skip
AccountWrite = Literal[
    "create-basin", "delete-basin", "reconfigure-basin", "issue-access-token",
    "revoke-access-token", "set-default-location",
]  # fmt: skip
BasinRead = Literal["list-streams", "get-stream-config", "basin-metrics"]
BasinWrite = Literal["create-stream", "delete-stream", "reconfigure-stream"]
StreamRead = Literal["check-tail", "read", "stream-metrics"]
StreamWrite = Literal["append", "trim", "fence"]
Op = AccountRead | AccountWrite | BasinRead | BasinWrite | StreamRead | StreamWrite

_GROUPS: Final[dict[tuple[str, str], frozenset[str]]] = {
    ("account", "read"): frozenset(get_args(AccountRead)),
    ("account", "write"): frozenset(get_args(AccountWrite)),
    ("basin", "read"): frozenset(get_args(BasinRead)),
    ("basin", "write"): frozenset(get_args(BasinWrite)),
    ("stream", "read"): frozenset(get_args(StreamRead)),
    ("stream", "write"): frozenset(get_args(StreamWrite)),
}
ALL_OPS: Final = frozenset[str]().union(*_GROUPS.values())
ACCOUNT_OPS: Final = _GROUPS["account", "read"] | _GROUPS["account", "write"]


class ResourceSet(msgspec.Struct, frozen=True, omit_defaults=True):
    """Names: one of them, or all with a prefix.  An exact name of "" is none.

    >>> ResourceSet(exact="a").has("a"), ResourceSet(exact="").has("")
    (True, False)
    """

    exact: str | None = None
    prefix: str | None = None

    def __post_init__(self) -> None:
        if (self.exact is None) == (self.prefix is None):
            raise ValueError("expected either `exact` or `prefix`")

    def has(self, name: str) -> bool:
        """Whether a name is one of these."""
        if self.prefix is not None:
            return name.startswith(self.prefix)
        return bool(self.exact) and name == self.exact

    def is_within(self, other: ResourceSet | None) -> bool:
        """Whether the other set has all of these.

        >>> ResourceSet(prefix="ab").is_within(ResourceSet(prefix="a"))
        True
        >>> ResourceSet(prefix="").is_within(ResourceSet(exact="a"))
        False
        """
        if self.exact == "":
            return True
        if other is None:
            return False
        if self.exact is not None:
            return other.has(self.exact)
        return (
            other.prefix is not None
            and self.prefix is not None
            and self.prefix.startswith(other.prefix)
        )


class ReadWrite(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which operations of a group are allowed."""

    read: bool | None = None
    write: bool | None = None


class OpGroups(msgspec.Struct, frozen=True, omit_defaults=True):
    """Operations by what they are about."""

    account: ReadWrite | None = None
    basin: ReadWrite | None = None
    stream: ReadWrite | None = None


class TokenScope(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a token may do, as the API takes and shows it.  What is not said is not allowed.

    >>> scope = TokenScope(op_groups=OpGroups(stream=ReadWrite(read=True)), ops=["append"])
    >>> sorted(scope.allowed_ops)
    ['append', 'check-tail', 'read', 'stream-metrics']
    """

    basins: ResourceSet | None = None
    streams: ResourceSet | None = None
    access_tokens: ResourceSet | None = None
    op_groups: OpGroups | None = None
    ops: list[Op] | None = None

    @property
    def allowed_ops(self) -> frozenset[str]:
        """The operations: those that are named, and those of the groups."""
        found = set[str](self.ops or ())
        for (group, right), ops in _GROUPS.items():
            granted = None if self.op_groups is None else getattr(self.op_groups, group)
            if granted is not None and getattr(granted, right):
                found |= ops
        return frozenset(found)

    @property
    def stream_prefix(self) -> str | None:
        """The prefix that all its streams have; None: it names one, or none."""
        return None if self.streams is None else self.streams.prefix


class Grant(NamedTuple):
    """A scope, ready to be asked."""

    ops: frozenset[str]
    basins: ResourceSet | None
    streams: ResourceSet | None
    tokens: ResourceSet | None

    @classmethod
    def of(cls, scope: TokenScope) -> Grant:
        """What a scope allows."""
        return cls(scope.allowed_ops, scope.basins, scope.streams, scope.access_tokens)

    def is_within(self, other: Grant) -> bool:
        """Whether the other one allows all of this."""
        if not self.ops <= other.ops:
            return False
        pairs = (
            (self.basins, other.basins),
            (self.streams, other.streams),
            (self.tokens, other.tokens),
        )
        return all(mine is None or mine.is_within(theirs) for mine, theirs in pairs)
