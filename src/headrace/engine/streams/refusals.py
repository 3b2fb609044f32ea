"""What users of streams are told when a stream is not, or no longer, what they take it for."""

from __future__ import annotations

from headrace.core.errors import StreamClosed, StreamConflict, StreamDeleted
from headrace.engine.topics.topic import Topic


def closed_error(topic: Topic) -> StreamClosed:
    """What a write to a closed stream is told."""
    return StreamClosed(
        f"{topic.name!r} is closed",
        fix="write to another stream: this one never opens again",
        detail={"topic": topic.name, "head_seq": topic.staged, "epoch": topic.epoch},
    )


def deleted_error(topic: Topic) -> StreamDeleted:
    """What whoever uses a deleted stream is told."""
    return StreamDeleted(
        f"{topic.name!r} is deleted, and kept for its forks alone",
        fix="use one of the forks, or another name",
        detail={"topic": topic.name},
    )


def conflict(name: str, reason: str, text: str, fix: str) -> StreamConflict:
    """What whoever takes a stream for another one is told."""
    return StreamConflict(text, fix=fix, detail={"topic": name, "reason": reason})
