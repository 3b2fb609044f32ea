"""Which topics a query reads, and where each of them begins and ends now."""

from __future__ import annotations

import difflib
import re
from itertools import islice
from typing import NamedTuple

from headrace.client import Client
from headrace.core.errors import TopicNotFound
from headrace.spark.options import SourceOptions

# So many names are looked at for the one that was meant.
NAMES_COMPARED_MAX = 10_000
# Regular expressions that begin so match only names that begin so.
_LITERAL = re.compile(r"[A-Za-z0-9_:\-]*")


class TopicHead(NamedTuple):
    """A topic at one instant: its records are `earliest` to `head`, fewer where some are gone."""

    topic: str
    epoch: int
    earliest: int
    head: int


def topic_heads(client: Client, options: SourceOptions) -> dict[str, TopicHead]:
    """The topics of a query, by name: those named, or all that match the pattern now."""
    if options.pattern is None:
        return {name: _head_of(client, name) for name in options.topics}
    matches = re.compile(options.pattern).fullmatch
    return {
        found.topic: TopicHead(found.topic, found.epoch or 0, found.earliest_seq, found.head_seq)
        for found in client.topics(literal_prefix(options.pattern))
        if matches(found.topic)
    }


def _head_of(client: Client, name: str) -> TopicHead:
    try:
        state = client.topic(name, touch=False)
    except TopicNotFound:
        raise _missing(client, name) from None
    return TopicHead(name, state.epoch or 0, state.earliest_seq, state.head_seq)


def _missing(client: Client, name: str) -> TopicNotFound:
    names = [found.topic for found in islice(client.topics(), NAMES_COMPARED_MAX)]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
    return TopicNotFound(
        f"topic {name!r} does not exist",
        fix=f"did you mean {near[0]!r}?" if near else "there are no topics yet: append to it first",
        detail={"topic": name},
    )


def literal_prefix(pattern: str) -> str:
    """What every name begins with that this regular expression matches as a whole.

    >>> literal_prefix("orders-[0-9]+"), literal_prefix("ab*"), literal_prefix("a|b")
    ('orders-', 'a', '')
    """
    if "|" in pattern:
        return ""
    found = _LITERAL.match(pattern)
    prefix = found[0] if found else ""
    # A mark of repetition is about the character before it, which may then be absent.
    return prefix[:-1] if pattern[len(prefix) : len(prefix) + 1] in tuple("?*{") else prefix
