"""What may be held in memory, in bytes: by one object, and by all objects of its kind together.

Only this file refuses an object for its size.  The bounds are settings, and are checked where an
object is asked for: what a data directory has already is opened whatever its size, and counted.
"""

from __future__ import annotations

from headrace.core.config import variables_of
from headrace.core.errors import InvalidRequest, Throttled
from headrace.core.settings import Settings


class ByteBound:
    """The bytes that all objects of one kind hold, and the two settings that bound them.

    >>> routers = ByteBound("router", Settings(router_bytes_max=1024, routers_bytes_max=1500))
    >>> routers.check(1000); routers.add(1000)
    >>> routers.check(2000)
    Traceback (most recent call last):
    headrace.core.errors.InvalidRequest: the router has 2000 bytes, and may have 1024; make it \
smaller, or raise HEADRACE_ROUTER_BYTES_MAX
    >>> routers.check(1000)
    Traceback (most recent call last):
    headrace.core.errors.Throttled: all routers would have 2000 bytes, and may have 1500; delete \
some, or raise HEADRACE_ROUTERS_BYTES_MAX
    >>> routers.check(1000, instead_of=1000)
    """

    __slots__ = ("_all", "_all_max", "_fix", "_kind", "_one", "_one_max", "held")

    def __init__(self, kind: str, settings: Settings, *, fix: str = "make it smaller") -> None:
        setting = kind.replace(" ", "_")
        self._kind = kind
        self._fix = fix
        self._one, self._all = f"{setting}_bytes_max", f"{setting}s_bytes_max"
        self._one_max: int = getattr(settings, self._one)
        self._all_max: int = getattr(settings, self._all)
        self.held = 0

    @property
    def is_full(self) -> bool:
        """Whether all objects hold as much as they may."""
        return self.held > self._all_max

    def check(self, size: int, *, instead_of: int = 0) -> None:
        """Refuse an object of this size, which takes the place of `instead_of` bytes."""
        self.check_one(size, self._kind)
        total = self.held + size - instead_of
        if total > self._all_max and size > instead_of:
            raise Throttled(
                f"all {self._kind}s would have {total} bytes, and may have {self._all_max}",
                fix=f"delete some, or raise {variables_of(self._all)[0]}",
                detail={"limit": self._all, "max": self._all_max},
            )

    def check_one(self, size: int, what: str) -> None:
        """Refuse an object, or something else of its kind, for its own size."""
        if size > self._one_max:
            raise InvalidRequest(
                f"the {what} has {size} bytes, and may have {self._one_max}",
                fix=f"{self._fix}, or raise {variables_of(self._one)[0]}",
                detail={"limit": self._one, "max": self._one_max},
            )

    def count(self, held: int) -> None:
        """Take what is held from somebody who has added it up."""
        self.held = held

    def add(self, size: int) -> None:
        """Count bytes that are held from now on; fewer than none: that are not any more."""
        self.held += size
        assert self.held >= 0, (self._kind, self.held)
