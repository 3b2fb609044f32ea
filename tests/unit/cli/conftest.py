"""The server and the empty lake of support/lake_servers.py, for the tests of `headrace lake`."""

from __future__ import annotations

from tests.support.lake_servers import topic, unsealed, unsealed_server

__all__ = ["topic", "unsealed", "unsealed_server"]
