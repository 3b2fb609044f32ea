"""Which Python functions pipelines may name: those that the worker was started with, no others.

A declaration has a name, the worker a list of names and where each function is.  Declaring a
pipeline is thereby never a way to run code that the worker's operator has not chosen.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from headrace.core.errors import ConfigError, InvalidRequest
from headrace.pipelines.registry.declaration import ENTRY_PATTERN

# Called with the session, the sources as streaming data frames by their aliases, and the arguments
# of the declaration by name; it answers with a streaming data frame.
Entry = Callable[..., Any]

_NAME: Final = re.compile(ENTRY_PATTERN, re.ASCII)
_PLACE: Final = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)", re.ASCII)
EXAMPLE: Final = "sessions=my_pipelines:sessions"


def load_entries(texts: Iterable[str]) -> dict[str, Entry]:
    """The functions of `NAME=module:function`, imported now, so that a slip shows at the start.

    >>> load_entries(["text=json:dumps"])["text"]([1])
    '[1]'
    """
    found: dict[str, Entry] = {}
    for text in texts:
        name, _, place = text.partition("=")
        match = _PLACE.fullmatch(place.strip())
        if match is None or _NAME.fullmatch(name.strip()) is None:
            raise ConfigError(f"--entry {text!r} names no function", fix=f"write {EXAMPLE}")
        try:
            function = getattr(importlib.import_module(match[1]), match[2])
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"--entry {text!r}: {error}", fix="install the module, or mend the name"
            ) from None
        if not callable(function):
            raise ConfigError(f"--entry {text!r} is no function", fix=f"write {EXAMPLE}")
        found[name.strip()] = function
    return found


def entry_of(entries: Mapping[str, Entry], name: str) -> Entry:
    """The function of a name; it is an error of the pipeline if this worker has none."""
    found = entries.get(name)
    if found is None:
        known = ", ".join(sorted(entries)) or "none"
        raise InvalidRequest(
            f"this worker has no entry point {name!r}; it has {known}",
            fix=f"start it with --entry {name}=module:function",
        )
    return found
