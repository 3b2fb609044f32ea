"""The form of what a dialect tells `/openapi.json` beyond its routes and types.

Only forms are here; the words are in the dialect's own package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from headrace.core.settings import Settings
from headrace.wire.openapi.json_schema import Extra, Schema


class EndpointNote(NamedTuple):
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


class ApiNotes(NamedTuple):
    """The documentation of one dialect."""

    description: str  # of the whole API
    error: type  # the body of a refusal
    error_example: Callable[[str], object]  # such a body, by the code of the error
    groups: Mapping[str, str]  # of endpoints, in the order in which they are shown
    endpoints: Mapping[tuple[str, str], EndpointNote]  # by method and template
    path_parameters: Mapping[str, Schema]  # by the name in a template
    new_names: Mapping[str, Schema]  # the schema of a path parameter that names what is created
    parameters: Mapping[str, Schema]  # of queries and headers, by the name that routes use
    limits: Callable[[Settings], Extra]  # what is added to the schemas of fields
