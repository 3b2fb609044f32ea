"""The names of topics in which rows wait until all of them are there."""

from __future__ import annotations

from typing import cast

from headrace.client import Client
from headrace.spark.writing.staging import Staging
from headrace.wire.native.request_checks import check_new_name


def test_rows_for_a_stream_wait_under_a_native_name() -> None:
    """Its own name may have any characters, and begins as no topic may that is created here."""
    names = [
        Staging(cast(Client, None), "headrace", "q", 1, create=True, destination=to).name
        for to in ("orders", "ds:logs/é", "ds:logs/e")
    ]
    for name in names:
        check_new_name(name)
    assert names[0] == "headrace.staged-q-orders" and len(set(names)) == 3
