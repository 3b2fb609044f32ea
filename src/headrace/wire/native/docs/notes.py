"""All that the native API tells `/openapi.json`, put together."""

from __future__ import annotations

from typing import Final

from headrace.api.failures import ErrorAnswer
from headrace.wire.native.docs.bodies import limits_of
from headrace.wire.native.docs.endpoints import GROUPS, NOTES
from headrace.wire.native.docs.parameters import NEW_NAMES, PARAMETERS, PATH_PARAMETERS
from headrace.wire.openapi.notes import ApiNotes

NATIVE_NOTES: Final = ApiNotes(
    "Append records to named topics, read them back by sequence number, watch them as they come. "
    "Every refusal has the form of ErrorAnswer. Unknown fields of a request are ignored; ignore "
    "unknown fields of an answer. Times are milliseconds since 1970. GET routes answer HEAD too. "
    "Bodies may be compressed with gzip or zstd both ways.",
    ErrorAnswer,
    lambda code: {"error": {"code": code, "message": "..."}},
    GROUPS,
    NOTES,
    PATH_PARAMETERS,
    NEW_NAMES,
    PARAMETERS,
    limits_of,
)
