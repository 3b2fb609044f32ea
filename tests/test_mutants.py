"""The seeded bugs are listed right: each can be put in, and its tests are there.

`./run test --mutants` says the same, much later: it takes the bugs one after the other.
"""

from __future__ import annotations

from tests import mutants


def test_every_seeded_bug_can_be_put_in() -> None:
    obstacles = {mutant.name: mutants.obstacle(mutant) for mutant in mutants.load()}
    assert len(obstacles) > 200
    assert {name: why for name, why in obstacles.items() if why is not None} == {}
