"""The catalog of the S2 API is killed at every disk call: what was answered is there (s2 §4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from headrace.core.runtime import StepRuntime, Ticket
from headrace.engine.engine import Engine
from headrace.wire.s2.catalog.catalog import Catalog
from headrace.wire.s2.catalog.entries import Token
from headrace.wire.s2.configs import BasinConfig, OptionalStreamConfig, RetentionPolicy
from headrace.wire.s2.token_scopes import TokenScope
from headrace.wire.s2.usage import Usage
from tests.harness.step_sweep import Program, Seen, Step, explore

STATES_MIN = 100
DONE_BEFORE = frozenset(
    {
        "access_token_not_found",
        "basin_deletion_pending",
        "basin_not_found",
        "resource_already_exists",
        "stream_deletion_pending",
        "stream_not_found",
    }
)
KEPT, GOING = "kept-basin", "going-basin"

catalogs: WeakKeyDictionary[Engine, Catalog] = WeakKeyDictionary()


def catalog_of(engine: Engine) -> Catalog:
    """The catalog on an engine, loaded."""
    catalog = catalogs.get(engine)
    if catalog is None:
        catalog = catalogs[engine] = Catalog(engine, Usage(engine.clock))
        catalog.locations = ("here", "there")
        catalog.when_ready(lambda _error: None)
        assert isinstance(engine.runtime, StepRuntime)
        engine.runtime.run()
        assert catalog.loaded
    return catalog


def look(engine: Engine) -> Seen:
    """Basins with their configs and streams, tokens, and the default location."""
    catalog = catalog_of(engine)
    basins = {
        basin.name: (
            basin.config,
            basin.location,
            [(name, own.config) for name, own, _ in catalog.streams.after(basin.name, "", "")],
        )
        for basin in catalog.basins_after("", "")
    }
    tokens = [token.id for token in catalog.tokens.after("", "")]
    return {"basins": basins, "tokens": tokens, "location": catalog.default_location}


def of_catalog(act: Callable[[Catalog], Ticket[Any]]) -> Step:
    return lambda engine: act(catalog_of(engine))


AGED = OptionalStreamConfig(retention_policy=RetentionPolicy.of(60))
CREATING = BasinConfig(create_stream_on_append=True)
TOKEN = Token("t", "", TokenScope(ops=["read"]))
STEPS: list[Step] = [
    of_catalog(lambda catalog: catalog.create_basin(KEPT, BasinConfig(), None, "k")),
    of_catalog(lambda catalog: catalog.streams.create(KEPT, "s", None, b"k")),
    of_catalog(lambda catalog: catalog.ensure_basin(KEPT, CREATING, None)),
    of_catalog(lambda catalog: catalog.streams.ensure(KEPT, "s", AGED)),
    of_catalog(lambda catalog: catalog.issue(TOKEN)),
    of_catalog(lambda catalog: catalog.set_default_location("there")),
    of_catalog(lambda catalog: catalog.create_basin(GOING, BasinConfig(), None, "k")),
    of_catalog(lambda catalog: catalog.streams.create(GOING, "a", None, b"k")),
    of_catalog(lambda catalog: catalog.streams.create(GOING, "b", None, b"k")),
    of_catalog(lambda catalog: catalog.revoke("t")),
    of_catalog(lambda catalog: catalog.delete_basin(GOING)),
    of_catalog(lambda catalog: catalog.streams.delete(KEPT, "s")),
]


@pytest.mark.parametrize("shards", [1, 2])
def test_the_catalog_at_every_crash_point(shards: int) -> None:
    """§4e, §14d: a step that was answered has happened, one that was not can be taken again."""
    program = Program(STEPS, look, 0, DONE_BEFORE)
    assert explore(program, shards, unseen=0) >= STATES_MIN
