"""The clock and the disk of support/engines.py, for the engines whose metrics are tested."""

from __future__ import annotations

from tests.support.engines import clock, disk

__all__ = ["clock", "disk"]
