"""Whether a topic may have a config: what it names, and what this server can do.

Only this file refuses a config for what is around the topic; `config.py` for what it says itself.
"""

from __future__ import annotations

from headrace.core.bounds import ByteBound
from headrace.core.errors import ConfigError, InvalidRequest
from headrace.engine.state import EngineState
from headrace.engine.streams import rules
from headrace.engine.topics.config import TopicConfig
from headrace.engine.topics.names import check_name


class ConfigChecks:
    """Checks the configs of the topics of one engine."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._bytes = ByteBound("topic config", state.settings, fix="use a shorter dead_letter")

    def check_bytes(self, config: TopicConfig, before: TopicConfig | None) -> None:
        """Refuse names that hold too much, unless they are the ones there are."""
        size, held = config.name_bytes, 0 if before is None else before.name_bytes
        if size and config != before:
            self._bytes.count(self._state.totals.config_bytes)
            self._bytes.check(size, instead_of=held)

    def check_cold_reads(self, config: TopicConfig) -> None:
        """Refuse to serve from an archive that nothing here can read."""
        if config.cold_reads and self._state.archive is None:
            raise ConfigError(
                "this server cannot read a lake: the package deltalake is not there",
                fix="pip install 'headrace[cold]' where `headrace serve` runs, and restart it",
                detail={"field": "cold_reads"},
            )

    def check_dead_letter(self, name: str, config: TopicConfig) -> None:
        """A dead letter topic needs a valid name; it is neither the queue itself nor a stream."""
        if config.dead_letter is None:
            return
        check_name(config.dead_letter)
        if config.type == "queue" and config.dead_letter == name:
            raise InvalidRequest(
                f"{name!r} is its own dead letter topic", fix="name another topic for dead letters"
            )
        dest = self._state.find(config.dead_letter)
        if dest is not None:
            rules.refuse_change(dest, "dead letter")
