"""The fixtures of support/engines.py, for every test of the engine."""

from __future__ import annotations

from tests.support.engines import again, clock, engine, kill, power_loss, restart, start

__all__ = ["again", "clock", "engine", "kill", "power_loss", "restart", "start"]
