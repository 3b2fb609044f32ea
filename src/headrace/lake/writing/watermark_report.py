"""Telling the server how far the lake is, so that retention need not overtake it."""

from __future__ import annotations

from headrace.client import Client
from headrace.core.errors import EpochMismatch, MethodNotAllowed, NotFound, TopicNotFound


def report(client: Client, topic: str, epoch: int, to_seq: int) -> bool:
    """Say that everything to `to_seq` is in the lake; False where nobody is there to know it.

    That is a server which is too old for it, whose retention waits for nothing, and a topic that
    has been deleted since.  A server that cannot be reached, or refuses it, is an error.
    """
    try:
        client.archived(topic, epoch, to_seq)
    except (NotFound, MethodNotAllowed, TopicNotFound, EpochMismatch):
        return False
    return True
