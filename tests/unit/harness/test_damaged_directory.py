"""Damaged directories: what a campaign does for hours, on a sample; and its judge can fail."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.campaigns.damage import AREAS, SEED, directory_of
from tests.harness.damaged_directory import Damage, damages, judge
from tests.harness.events import Violation

SAMPLE = 25  # of each directory


@pytest.mark.parametrize("area", AREAS)
def test_a_sample_of_all_damage_is_noticed_or_harmless(area: str) -> None:
    small, total = directory_of(area)
    sample = list(islice(damages(small.disk, SEED), 0, None, total // SAMPLE))
    noticed = {judge(small, damage) for damage in sample}
    assert len(sample) >= SAMPLE
    assert noticed <= {"same", "start refused", "reading refused", "set aside"}


def test_a_segment_that_is_missing_is_noticed() -> None:
    small, _ = directory_of(AREAS[0])
    path = next(path for path in small.disk.contents() if path.startswith("segments/"))
    assert judge(small, Damage("missing", path, "", lambda disk: disk.unlink(path))) != "same"


def test_other_data_is_a_violation() -> None:
    small, _ = directory_of(AREAS[0])
    name = next(iter(small.shown))
    wrong = small._replace(shown={**small.shown, name: "something else"})
    with pytest.raises(Violation, match="reads differently"):
        judge(wrong, Damage("left alone", name, "", lambda _disk: None))
    more = small._replace(shown={**small.shown, "a topic that is gone": ()})
    with pytest.raises(Violation, match="nothing is said"):
        judge(more, Damage("left alone", name, "", lambda _disk: None))
