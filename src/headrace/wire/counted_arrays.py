"""JSON arrays that may have too many elements, counted before any of them becomes an object.

A body of some megabytes has room for millions of small elements.  Made objects first and counted
then, they take gigabytes, and every other request waits for them.
"""

from __future__ import annotations

import functools
from typing import Final

import msgspec

from headrace.core.errors import BatchTooLarge

# Elements up to which there is such a type; to make it takes about 5 us for each, once.
COUNTED_MAX: Final = 20_000


@functools.cache
def array_up_to(most: int) -> type[msgspec.Struct]:
    """A type whose decoder gives up at the first element too many.

    Of a list it would count them when it has them.

    >>> msgspec.json.decode(b"[1, 2, 3]", type=array_up_to(2))
    Traceback (most recent call last):
    msgspec.ValidationError: Expected `array` of at most length 2
    """
    fields = [(f"_{at}", msgspec.Raw, None) for at in range(most)]
    return msgspec.defstruct(
        "Elements", fields, array_like=True, forbid_unknown_fields=True, gc=False
    )


def has_too_many(error: BaseException | None) -> bool:
    """Whether a decoder gave up for that."""
    return isinstance(error, msgspec.ValidationError) and "of at most length" in str(error)


def too_many(most: int, elements: str) -> BatchTooLarge:
    """The refusal of an append that has more."""
    return BatchTooLarge(
        f"more than {most} {elements} in one append",
        fix=f"send at most {most} at a time",
        detail={"max": most},
    )
