"""What a query is told when records it was to read are gone, or their files cannot be reached."""

from __future__ import annotations

from headrace.core.errors import DataLost as DataLost
from headrace.core.errors import HeadraceError, NotReady

GO_ON = (
    "start a new query from what is there, or set failOnDataLoss=false to get a row with `gap` "
    "for each loss"
)

# What each reason of a loss means; `mixed` is cap and ttl.
_WHY = {
    "cap": "the topic's cap removed them",
    "ttl": "they were older than the topic's ttl_ms",
    "mixed": "the topic's cap and its ttl_ms removed them",
    "crash": "a crash of the server took them",
    "source_trim": "they were trimmed at their source",
    "recreated": "the topic was deleted and created again since",
    "deleted": "the topic was deleted",
}


def lost(topic: str, first: int, last: int, reason: str) -> DataLost:
    """Seqs `first` to `last` are gone.

    >>> print(lost("orders", 1, 9, "cap").message)
    seqs 1 to 9 of topic 'orders' are lost: the topic's cap removed them (cap)
    """
    why = _WHY.get(reason, "the server says so")
    return DataLost(
        f"seqs {first} to {last} of topic {topic!r} are lost: {why} ({reason})",
        fix=GO_ON,
        detail={"topic": topic, "first": first, "last": last, "reason": reason},
    )


def not_accounted(topic: str, first: int, last: int, found: int, expected: int) -> HeadraceError:
    """A file does not hold what the manifest says: never passed over."""
    return DataLost(
        f"seqs {first} to {last} of topic {topic!r} should be {expected} records in their file, "
        f"and are {found}",
        fix="run `headrace check` on the server's data directory; direct=false reads over HTTP",
        detail={"topic": topic, "first": first, "last": last, "reason": "incomplete"},
    )


def unreadable(topic: str, location: str, why: str) -> HeadraceError:
    """A sealed file that this machine cannot open, after a second look at where it is."""
    return NotReady(
        f"a file of topic {topic!r} cannot be opened here: {location} ({why})",
        fix="give every Spark worker the server's data directory, or the credentials of its cold "
        "tier, or set direct=false to read over HTTP",
        detail={"topic": topic, "file": location, "reason": "file_unreadable"},
    )
