"""The examples are declarations that a server takes, with events that fit them."""

from __future__ import annotations

import msgspec
import pytest

from headrace.api.pipelines import Declaration
from headrace.cli.pipelines import read_declaration
from headrace.pipelines import examples
from headrace.pipelines.registry.declaration import check_declaration
from headrace.pipelines.registry.sql_check import check_sql


@pytest.mark.parametrize("name", examples.NAMES)
def test_an_example_is_a_declaration(name: str, tmp_path) -> None:
    declaration = msgspec.convert(examples.declaration(name), Declaration)
    check_declaration(declaration)
    assert declaration.sql is not None
    facts = check_sql(declaration.sql, list(declaration.tables))
    assert facts.tables == set(declaration.tables)
    assert facts.stateful or declaration.remembers
    events = examples.events(name)
    assert set(events) == {source.topic for source in declaration.sources}
    for source in declaration.sources:
        assert events[source.topic] == examples.events(name)[source.topic]
        fields = {field for draft in events[source.topic] for field in draft.data}
        assert all(f"{field}" in (source.schema or "job") for field in fields)
    file = tmp_path / "it.toml"
    file.write_text(examples.text(name))
    assert read_declaration(str(file)) == examples.declaration(name)
