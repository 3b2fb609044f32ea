"""The rows of the native API in the route table, in both vocabularies."""

from __future__ import annotations

from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.engine.topic_config import TopicConfig
from headrace.wire import native_types as types
from headrace.wire.metrics import Metrics
from headrace.wire.native import BOXES, TOPICS, Vocabulary
from headrace.wire.native_append import AppendApi
from headrace.wire.native_diff import DiffApi
from headrace.wire.native_topics import TopicsApi
from headrace.wire.pressure import ResponseMemory
from headrace.wire.routes import ADMIN, DELETE, READ, WRITE, Route


class NativeApi:
    """Topics and records, as topics and as boxes."""

    def __init__(
        self, engine: Engine, settings: Settings, metrics: Metrics, memory: ResponseMemory
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._metrics = metrics
        self._diffs = {
            vocabulary: DiffApi(engine, settings, metrics, memory, vocabulary)
            for vocabulary in (TOPICS, BOXES)
        }
        metrics.sources.longpoll_connections = lambda: sum(
            len(diff.waiting) for diff in self._diffs.values()
        )

    def routes(self) -> list[Route]:
        """The rows of both vocabularies."""
        return [
            route
            for vocabulary, diff in self._diffs.items()
            for route in _routes(self._engine, self._settings, self._metrics, vocabulary, diff)
        ]

    def drain(self) -> None:
        """The server is stopping: who waits for records is answered now."""
        for diff in self._diffs.values():
            diff.drain()


def _routes(
    engine: Engine, settings: Settings, metrics: Metrics, vocabulary: Vocabulary, diff: DiffApi
) -> list[Route]:
    topics = TopicsApi(engine, settings, vocabulary)
    append = AppendApi(engine, settings, metrics, vocabulary)
    root = f"/v0/{vocabulary.plural}"
    one = f"{root}/{{{vocabulary.noun}}}"
    read, write = frozenset({READ}), frozenset({WRITE})
    hidden = vocabulary is not TOPICS

    return [
        Route(
            "PUT", one, topics.put, vocabulary, frozenset({ADMIN}),
            "Create a topic, or replace its whole config",
            request=TopicConfig, response=types.PutAnswer, hidden=hidden,
        ),
        Route(
            "GET", one, topics.get, vocabulary, read,
            "The state of a topic", response=types.StateAnswer, query=("touch",), hidden=hidden,
        ),
        Route(
            "DELETE", one, topics.delete, vocabulary, frozenset({DELETE}),
            "Delete a topic and everything in it",
            response=types.TopicDeletedAnswer, query=("if_empty",), hidden=hidden,
        ),
        Route(
            "POST", one, append.append, vocabulary, write,
            "Append records, all or none",
            request=types.AppendBody, response=types.AppendAnswer,
            query=("return_seqs",), hidden=hidden,
        ),
        Route(
            "GET", root, topics.list, vocabulary, read,
            "A page of topics, by name", response=types.ListAnswer,
            query=("prefix", "page_size", "cursor", "touch"), name_param=False, hidden=hidden,
        ),
        Route(
            "POST", one + "/diff", diff.diff, vocabulary, read,
            "Read records after a cursor, waiting for them if asked to",
            request=types.DiffBody, response=types.DiffAnswer, hidden=hidden,
        ),
        Route(
            "POST", one + "/delete", topics.delete_records, vocabulary, frozenset({DELETE}),
            "Delete records below a seq, by tag, or both at once",
            request=types.DeleteBody, response=types.DeleteAnswer, hidden=hidden,
        ),
        Route(
            "POST", one + "/archived", topics.archived, vocabulary, frozenset({ADMIN}),
            "Say up to which seq the records are kept elsewhere, too",
            request=types.ArchivedBody, response=types.ArchivedAnswer, hidden=hidden,
        ),
    ]  # fmt: skip
