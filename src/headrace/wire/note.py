"""The form of a note: what the documentation may say of one endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Note(NamedTuple):
    """The documentation of one endpoint."""

    group: str = "server"
    operation: str = ""
    description: str = ""
    success: str = "Done."
    created: str = ""  # what 201 means, where it is possible
    errors: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    body_optional: bool = False
    creates: bool = False  # the topic of the path, if it is not there
    takes_arrow: bool = False
    gives_arrow: bool = False
    gives_events: bool = False
    gives_text: bool = False
    gives_object: bool = False
    upgrades: bool = False
    request_examples: Mapping[str, object] = {}
    answer_example: object = None
