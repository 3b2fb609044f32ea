"""Where a statement sees a topic end, and what of it nobody has any more.

The rule it owns: what is lost is said, range by range, up to a bound, and how many more there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

import msgspec

from headrace.spark.read_failures import lost
from headrace.spark.sql.archive import Loss

# Why seqs are gone that were there when a statement started.
MEANWHILE: Final = "meanwhile"
LOSSES_SAID_MAX: Final = 5


class Cut(msgspec.Struct):
    """A topic as one statement sees it.

    Rows up to `past_to` come from a history.  `losses` are complete when the statement has run.
    `alone`: there is no such topic, and `topic` is the name of a table of the history.
    """

    topic: str
    epoch: int
    earliest: int
    head: int
    past_to: int = 0
    losses: list[Loss] = msgspec.field(default_factory=list)
    alone: bool = False
    is_stream: bool = False
    floats: bool = False  # behind a history, from the first record that is left


def losses_said(cuts: Iterable[Cut]) -> Iterator[str]:
    """What the answers of a statement miss, in words.

    >>> list(losses_said([Cut("orders", 1, 10, 20, losses=[Loss(5, 9, "cap")])]))
    ["seqs 5 to 9 of topic 'orders' are lost: the topic's cap removed them (cap)"]
    """
    for cut in cuts:
        yield from (_said(cut.topic, loss) for loss in islice(cut.losses, LOSSES_SAID_MAX))
        more = len(cut.losses) - LOSSES_SAID_MAX
        if more > 0:
            yield f"{more} more ranges of topic {cut.topic!r} are lost; --json has all of them"


def _said(topic: str, loss: Loss) -> str:
    if loss.reason == MEANWHILE:
        return (
            f"seqs {loss.first} to {loss.last} of topic {topic!r} went from the server while the"
            " statement ran, and may be missing"
        )
    return lost(topic, *loss).message
