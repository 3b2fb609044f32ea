"""Where a reader of patterns is in all its topics, however many: what an id of it has to say.

Only this file knows what is in a place.  It is bounded: the number of the last publish of which
nothing is left to read (`journal.py`), the cursors of the few topics that are elsewhere, and which
topics are still to be looked at one by one.
"""

from __future__ import annotations

from typing import NamedTuple


class Sweep(NamedTuple):
    """Topics that are looked at one by one: those of a prefix, after one name and up to another.

    Each is read from `from_seq` on; with `since_ms`, from that time on, if it was written since.
    """

    prefix: str
    after: str = ""
    until: str = ""  # empty: to the last
    from_seq: int = 0
    since_ms: int = 0

    def covers(self, name: str) -> bool:
        """Return whether a topic is still to be looked at."""
        return (
            name.startswith(self.prefix)
            and name > self.after
            and (not self.until or name <= self.until)
        )


class Place(NamedTuple):
    """Where a reader of patterns is in all its topics."""

    run: int  # of the journal
    number: int  # every publish up to this one was read
    ms: int  # when that was
    sweeps: tuple[Sweep, ...] = ()  # topics of which that is not so
    exact: tuple[tuple[int, int], ...] = ()  # epochs and cursors of topics that are elsewhere
