"""Which topics a query reads, and where each of them begins and ends now."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from headrace.api.topics import TopicState, TopicSummary
from headrace.client import Client
from headrace.core.errors import TopicNotFound
from headrace.core.limits import own_topic_prefix
from headrace.spark.options import STAGED, SourceOptions

# How many names are compared to find the one that was meant.
NAMES_COMPARED_MAX = 10_000
# Regular expressions that begin so match only names that begin so.
_LITERAL = re.compile(r"[A-Za-z0-9_:\-]*")


class TopicHead(NamedTuple):
    """A topic at one instant: its records are `earliest` to `head`, fewer where some are gone."""

    topic: str
    epoch: int
    earliest: int
    head: int
    row_bytes: int = 0  # data and meta of a record, about
    is_stream: bool = False


def topic_heads(
    client: Client, options: SourceOptions, *, missing_ok: bool = False
) -> dict[str, TopicHead]:
    """The topics of a query, by name: those named, or all that match the pattern now.

    One that is named and not there is an error, or with `missing_ok` left out.
    """
    if options.pattern is not None:
        wanted = wanted_by(options)
        listed = client.topics(literal_prefix(options.pattern))
        return {found.topic: _head_of(found) for found in listed if wanted(found.topic)}
    heads = {}
    for name in options.topics:
        try:
            heads[name] = _head_of(client.topic(name, touch=False))
        except TopicNotFound:
            if not missing_ok:
                raise _missing(client, name) from None
    return heads


def wanted_by(options: SourceOptions) -> Callable[[str], bool]:
    """Whether a query reads a topic of some name.

    What waits in a staging topic is published later, or never: no pattern means such a topic.  Nor
    does one mean a topic of the server itself, unless it begins as those do.

    >>> from headrace.spark.options import Connection
    >>> everything = wanted_by(SourceOptions(Connection(""), pattern=".*"))
    >>> everything("orders"), everything("_pipelines"), everything("orders.staged-7")
    (True, False, False)
    >>> wanted_by(SourceOptions(Connection(""), pattern="_pipe.*"))("_pipelines")
    True
    """
    if options.pattern is None:
        return frozenset(options.topics).__contains__
    matches = re.compile(options.pattern).fullmatch
    own_too = options.pattern.startswith(own_topic_prefix)

    def wanted(name: str) -> bool:
        if STAGED in name or (name.startswith(own_topic_prefix) and not own_too):
            return False
        return matches(name) is not None

    return wanted


def _head_of(state: TopicState | TopicSummary) -> TopicHead:
    """What is asked of a topic here, of what the server says about it."""
    row_bytes = state.bytes // max(1, state.count)
    return TopicHead(
        state.topic,
        state.epoch or 0,
        state.earliest_seq,
        state.head_seq,
        row_bytes,
        state.stream is not None,
    )


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
