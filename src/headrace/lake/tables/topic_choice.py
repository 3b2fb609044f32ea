"""Which topics a command of the lake is about: names, and patterns with `*`.

The rule it owns: topics that the server and the sink keep for themselves are meant only
where their names are written out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from headrace.client import Client
from headrace.core.errors import NotFound
from headrace.core.limits import own_topic_prefix
from headrace.spark.options import STAGED


def is_pattern(name: str) -> bool:
    return "*" in name


def fits(pattern: str, topic: str) -> bool:
    """Whether a name, or a pattern where `*` stands for anything, means this topic.

    >>> fits("orders-*", "orders-eu"), fits("orders", "orders-eu")
    (True, False)
    >>> fits("*", "_pipelines"), fits("_pipelines*", "_pipelines.progress")
    (False, True)
    """
    if not is_pattern(pattern):
        return pattern == topic
    own = topic.startswith(own_topic_prefix) and not pattern.startswith(own_topic_prefix)
    if own or STAGED in topic:
        return False
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), topic, re.DOTALL) is not None


def chosen_topics(client: Client, named: Iterable[str]) -> list[str]:
    """The topics to sync, each once: those that are named, and logs that fit a pattern.

    Without a name that is every log but those of the server itself.
    """
    names = list(named) or ["*"]
    found = dict.fromkeys(name for name in names if not is_pattern(name))
    for pattern in filter(is_pattern, names):
        listed = [one.topic for one in client.topics(pattern.partition("*")[0])]
        fitting = [name for name in listed if fits(pattern, name) and _is_log(client, name)]
        if not fitting and names != ["*"]:
            raise NotFound(
                f"no log of the server fits {pattern!r}",
                fix="look at the names of its topics; queues have to be named one by one",
                detail={"pattern": pattern},
            )
        found |= dict.fromkeys(fitting)
    return list(found)


def _is_log(client: Client, topic: str) -> bool:
    return client.topic(topic, touch=False).type == "log"
