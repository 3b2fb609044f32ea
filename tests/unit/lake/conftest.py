"""The fixtures of support/lake_servers.py and an object store, for every test of the lake."""

from __future__ import annotations

from tests.support.lake_servers import bench, server, topic, unsealed, unsealed_server
from tests.support.object_stores import endpoint

__all__ = ["bench", "endpoint", "server", "topic", "unsealed", "unsealed_server"]
