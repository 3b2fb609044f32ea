"""What may go on from a checkpoint, and where a query was by Spark's own log; without Spark."""

from __future__ import annotations

import msgspec
import pytest

from headrace.api.pipelines import Declaration, PipelineDest, PipelineSource
from headrace.core.errors import CheckpointIncompatible
from headrace.pipelines.worker.checkpoints import Marker, fit, offsets_of

ONE = Declaration([PipelineSource("orders")], PipelineDest("out"), sql="select 1 from orders")
replace = msgspec.structs.replace


def test_a_new_checkpoint_is_somebody_else() -> None:
    (first, before), (second, _) = fit(None, "p", ONE, False), fit(None, "p", ONE, False)
    assert first.id != second.id and before is None
    assert first == Marker(first.id, ONE, False)


def test_what_goes_on_from_a_checkpoint() -> None:
    found = Marker("id", ONE, False)
    for other in (replace(ONE, sql="select 2 from orders"), replace(ONE, trigger="1s"), ONE):
        assert fit(found, "p", other, False) == (Marker("id", other, False), None)
    kept = Marker("id", ONE, True)
    assert fit(kept, "p", replace(ONE, trigger="1s"), True)[0].id == "id"


def test_a_batch_ends_where_it_was_begun() -> None:
    """With another destination, the declaration before has to finish it."""
    moved = replace(ONE, dest=PipelineDest(table="t"), sql="select 2 from orders")
    assert fit(Marker("id", ONE, False), "p", moved, False) == (Marker("id", moved, False), ONE)


@pytest.mark.parametrize(
    ("other", "was", "now"),
    [
        (replace(ONE, sql="select 2 from orders"), True, False),
        (replace(ONE, sql="select 2 from orders"), False, True),
        (replace(ONE, output_mode="update"), True, True),
        (replace(ONE, sources=[PipelineSource("more", alias="orders")]), False, False),
        (replace(ONE, sources=[PipelineSource("orders", schema="a INT")]), False, False),
    ],
)
def test_what_does_not(other: Declaration, was: bool, now: bool) -> None:
    with pytest.raises(CheckpointIncompatible, match=r"'1' of 'p'.*another name as `checkpoint`"):
        fit(Marker("id", ONE, was), "p", other, now)


def test_the_offsets_of_a_batch_as_spark_writes_them() -> None:
    """With a source that has none yet, and what the connector adds to the first batch."""
    text = (
        'v1\n{"batchWatermarkMs":0,"conf":{}}\n-\n'
        '{"topics":{"a":{"epoch":1,"seq":5}},"from":{"a":{"epoch":1,"seq":2}}}'
    )
    (offset,) = offsets_of(text)
    assert offset.topics["a"].seq == 5
    assert offset.came_from is not None and offset.came_from["a"].seq == 2
