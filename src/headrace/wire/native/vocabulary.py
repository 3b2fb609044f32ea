"""The two vocabularies of the native API: a topic is also called a box.

Only this file knows it: `/v0/topics/...` and `/v0/boxes/...` are the same data in two vocabularies,
and a handler is made once for each.  A vocabulary also says what an error looks like.
"""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.core.errors import HeadraceError, InvalidRequest
from headrace.engine.topics.config import (
    EPHEMERAL,
    MEMORY,
    SHOWN_WHERE_SET,
    TopicConfig,
    decode_config,
)
from headrace.wire.bodies import refuse_lone_surrogate
from headrace.wire.exchange import JSON, Reply
from headrace.wire.failures import error_headers
from headrace.wire.native.answers import encode


class Vocabulary:
    """The words of one of the two forms of the API."""

    def __init__(self, noun: str, plural: str, default_tags: bool) -> None:
        self.noun = noun
        self.plural = plural
        self.default_tags = default_tags  # of `include_tags` in a diff

    def __repr__(self) -> str:
        return f"<{self.plural}>"

    def failure(self, error: HeadraceError) -> Reply:
        """An error as this vocabulary says it.

        >>> from headrace.core.errors import InvalidRequest
        >>> TOPICS.failure(InvalidRequest("limit is -1", fix="send 0 or more"))[1]
        b'{"error":{"code":"invalid_request","message":"limit is -1; send 0 or more"}}'
        """
        return error.status, encode({"error": self.describe(error)}), JSON, error_headers(error)

    def describe(self, error: HeadraceError) -> dict[str, object]:
        """The object that is inside `error`."""
        described: dict[str, object] = {"code": self.word(error.code), "message": str(error)}
        if error.detail:
            detail = {self.word(k): v for k, v in error.detail.items()}
            if "limit" in detail:  # the name of a cap: `max_topics` is `max_boxes` for boxes
                detail["limit"] = self.word(str(detail["limit"]))
            described["detail"] = detail
        return described

    def word(self, word: str) -> str:
        """A code, a key or an event's name: `topic_not_found` is `box_not_found` for boxes."""
        return word

    def config(self, config: TopicConfig) -> dict[str, object]:
        """A config as it is echoed.

        >>> len(TOPICS.config(TopicConfig())), len(TOPICS.config(TopicConfig(retain_bytes_max=1)))
        (17, 20)
        """
        echoed: dict[str, object] = msgspec.structs.asdict(config)
        if not any(echoed[name] for name in SHOWN_WHERE_SET):
            for name in SHOWN_WHERE_SET:
                del echoed[name]
        return echoed

    def read_config(self, data: bytes) -> TopicConfig:
        """A config as it was sent."""
        try:
            return decode_config(data)
        except InvalidRequest:
            refuse_lone_surrogate(data)
            raise


class BoxVocabulary(Vocabulary):
    """The older words.  Its class `memory` is what is now called `ephemeral`."""

    def word(self, word: str) -> str:
        return word.replace("topics", "boxes").replace("topic", "box")

    def config(self, config: TopicConfig) -> dict[str, object]:
        echoed = super().config(config)
        if config.durability == EPHEMERAL:
            echoed["durability"] = MEMORY
        return echoed

    def read_config(self, data: bytes) -> TopicConfig:
        config = super().read_config(data)
        if config.durability != MEMORY:
            return config
        return msgspec.structs.replace(config, durability=EPHEMERAL)


TOPICS: Final = Vocabulary("topic", "topics", default_tags=False)
BOXES: Final = BoxVocabulary("box", "boxes", default_tags=True)


def vocabulary_of(path: str) -> Vocabulary:
    """The words in which a request is refused, by its path."""
    return BOXES if path.startswith("/v0/boxes") else TOPICS
