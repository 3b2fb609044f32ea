"""The fixtures of support/engines.py, for tests of files that an engine made."""

from __future__ import annotations

from tests.support.engines import clock, start

__all__ = ["clock", "start"]
