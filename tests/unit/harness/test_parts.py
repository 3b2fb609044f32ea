"""What a run says about how long its parts took."""

from __future__ import annotations

import sys

import pytest

from tests.parts import Beside, Parts


def test_parts_are_said_as_they_end_and_together(capsys: pytest.CaptureFixture[str]) -> None:
    parts = Parts()
    with pytest.raises(ValueError, match="no"), parts.part("one"):
        raise ValueError("no")
    parts.ended("two", 61.4)
    assert capsys.readouterr().out == "took: one 0 s\ntook: two 61 s\n"
    assert parts.summary() == "one 0 s, two 61 s; together 0 s"


def test_a_command_beside_speaks_when_it_is_asked(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    program = "import sys; print('said'); sys.exit(3)"
    with Beside("it", [sys.executable, "-c", program], Parts()) as beside:
        assert beside.code() == 3
    said = capfdbinary.readouterr().out.splitlines()
    assert said[0] == b"said"
    assert said[1].startswith(b"took: it (beside the others) ")


def test_a_command_beside_does_not_outlive_its_block() -> None:
    program = "import time; time.sleep(60)"
    with Beside("it", [sys.executable, "-c", program], Parts()) as beside:
        process = beside.process
        assert process.poll() is None
    assert process.returncode == -9
