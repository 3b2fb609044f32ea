"""How many requests a server has answered, for tests of what a call costs."""

from __future__ import annotations

import re

from headrace.client import Client


def requests_of(client: Client) -> int:
    """All so far, without this one."""
    text = client.metrics_text()
    found = re.findall(r"^headrace_http_requests_total\{.*\} (\d+)$", text, re.MULTILINE)
    return sum(map(int, found))
