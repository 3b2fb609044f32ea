"""The fixtures of support/engines.py that regression tests use."""

from __future__ import annotations

from tests.support.engines import clock, start

__all__ = ["clock", "start"]
