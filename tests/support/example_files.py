"""A pytest plugin: of the modules, only those with an example are searched for examples.

pytest imports each module and looks through all that is in it, which takes as long as to collect
the tests; few modules have an example.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule

PROMPT = b">>> "


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path,
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    found = yield
    if file_path.suffix != ".py" or PROMPT in file_path.read_bytes():
        return found
    return [each for each in found if not isinstance(each, DoctestModule)]
