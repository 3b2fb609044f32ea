"""The rows of topics and records in the route table, in both vocabularies of the native API."""

from __future__ import annotations

from headrace.api import records
from headrace.api.topics import (
    ArchivedBody,
    ArchivedTo,
    Put,
    TopicDeleted,
    TopicPage,
    TopicState,
)
from headrace.engine.topics.config import TopicConfig
from headrace.wire.native.append import AppendApi
from headrace.wire.native.diff import DiffApi
from headrace.wire.native.topics import TopicsApi
from headrace.wire.native.vocabulary import BOXES, TOPICS, Vocabulary
from headrace.wire.routes import ADMIN, DELETE, READ, WRITE, Route
from headrace.wire.server_context import ServerContext


def topic_routes(server: ServerContext) -> list[Route]:
    """The rows of topics and records, in both vocabularies."""
    return [*_routes(server, TOPICS), *_routes(server, BOXES)]


def _routes(server: ServerContext, vocabulary: Vocabulary) -> list[Route]:
    engine, settings, metrics = server.engine, server.settings, server.metrics
    topics = TopicsApi(engine, settings, vocabulary)
    append = AppendApi(engine, settings, metrics, vocabulary)
    diff = DiffApi(engine, settings, metrics, server.memory, server.polls, vocabulary)
    root = f"/v0/{vocabulary.plural}"
    one = f"{root}/{{{vocabulary.noun}}}"
    read, write = frozenset({READ}), frozenset({WRITE})
    hidden = vocabulary is not TOPICS

    return [
        Route(
            "PUT", one, topics.put, frozenset({ADMIN}),
            "Create a topic, or replace its whole config",
            request=TopicConfig, response=Put, hidden=hidden,
        ),
        Route(
            "GET", one, topics.get, read,
            "The state of a topic", response=TopicState, query=("touch",), hidden=hidden,
        ),
        Route(
            "DELETE", one, topics.delete, frozenset({DELETE}),
            "Delete a topic and everything in it",
            response=TopicDeleted, query=("if_empty",), hidden=hidden,
        ),
        Route(
            "POST", one, append.append, write,
            "Append records, all or none",
            request=records.AppendBody, response=records.Appended,
            query=("return_seqs",), hidden=hidden, turn_handler=append.append_turn,
        ),
        Route(
            "GET", root, topics.list, read,
            "A page of topics, by name", response=TopicPage,
            query=("prefix", "page_size", "cursor", "touch"), name_param=False, hidden=hidden,
        ),
        Route(
            "POST", one + "/diff", diff.diff, read,
            "Read records after a cursor, waiting for them if asked to",
            request=records.DiffBody, response=records.Page, hidden=hidden,
            turn_handler=diff.diff_turn,
        ),
        Route(
            "POST", one + "/delete", topics.delete_records, frozenset({DELETE}),
            "Delete records below a seq, by tag, or both at once",
            request=records.DeleteBody, response=records.DeleteResult, hidden=hidden,
        ),
        Route(
            "POST", one + "/archived", topics.archived, frozenset({ADMIN}),
            "Say up to which seq the records are kept elsewhere, too",
            request=ArchivedBody, response=ArchivedTo, hidden=hidden,
        ),
    ]  # fmt: skip
