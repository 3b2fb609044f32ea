"""The fixtures `handlers` and `served` of tests whose handlers pause a body."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.served_app import Served
from tests.support.uploads import UPLOAD_SETTINGS, UploadHandlers


@pytest.fixture(name="handlers")
def upload_handlers() -> UploadHandlers:
    return UploadHandlers()


@pytest.fixture(name="served")
def upload_server(handlers: UploadHandlers) -> Iterator[Served]:
    with Served(UPLOAD_SETTINGS, handlers.routes()) as server:
        yield server
