"""`/v0/topics/{topic}/segments`: where a topic's sealed records lie, for readers of files.

`GET` answers with the manifest (`engine/reading/manifest.py`) and a pin that keeps its files for
`manifest_pin_ms`; `POST .../segments/{pin}` renews the pin, `DELETE .../segments/{pin}` gives it
back early.  Shared files hold the records of other topics too, so a key that may see some names
only is refused: it reads over HTTP.
"""

from __future__ import annotations

from functools import partial

import msgspec

from headrace.api.segments import Manifest, Pin, PinReleased
from headrace.core.errors import Forbidden
from headrace.core.runtime import Ticket
from headrace.core.settings import Settings
from headrace.engine.engine import Engine
from headrace.wire.exchange import Exchange
from headrace.wire.failures import answering
from headrace.wire.native.answers import Timing, answer_object, encode
from headrace.wire.native.vocabulary import BOXES, TOPICS, Vocabulary
from headrace.wire.routes import READ, Route


class SegmentsApi:
    """Manifests over HTTP, in both vocabularies."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self.manifests = engine.manifests

    def routes(self) -> list[Route]:
        return [route for words in (TOPICS, BOXES) for route in self._routes(words)]

    def _routes(self, vocabulary: Vocabulary) -> list[Route]:
        root = f"/v0/{vocabulary.plural}/{{{vocabulary.noun}}}/segments"
        read, hidden = frozenset({READ}), vocabulary is not TOPICS
        return [
            Route(
                "GET", root, partial(self._manifest, vocabulary), read,
                "The sealed files of a topic, pinned for readers of files",
                response=Manifest, hidden=hidden,
            ),
            Route(
                "POST", root + "/{pin}", partial(self._renew, vocabulary), read,
                "Keep the files of a manifest for longer",
                response=Pin, hidden=hidden,
            ),
            Route(
                "DELETE", root + "/{pin}", partial(self._release, vocabulary), read,
                "Give the files of a manifest back",
                response=PinReleased, hidden=hidden,
            ),
        ]  # fmt: skip

    def _manifest(self, vocabulary: Vocabulary, exchange: Exchange) -> None:
        _refuse_prefixes(exchange)

        def answer(ticket: Ticket[Manifest]) -> None:
            if exchange.answered:
                return
            if ticket.error is not None:
                exchange.fail(ticket.error)
                return
            made = msgspec.structs.asdict(ticket.result())
            self._answer(exchange, {vocabulary.noun: made.pop("topic"), **made})

        self.manifests.make(exchange.params[0]).when_done(answering(exchange, answer))

    def _renew(self, vocabulary: Vocabulary, exchange: Exchange) -> None:
        _refuse_prefixes(exchange)
        name, pin = exchange.params
        expires_ms = self.manifests.renew(name, pin)
        fields = {
            vocabulary.noun: name,
            "pin": pin,
            "pin_ms": self._settings.manifest_pin_ms,
            "pin_expires_ms": expires_ms,
        }
        self._answer(exchange, fields)

    def _release(self, vocabulary: Vocabulary, exchange: Exchange) -> None:
        _refuse_prefixes(exchange)
        name, pin = exchange.params
        self.manifests.release(name, pin)
        self._answer(exchange, {vocabulary.noun: name, "pin": pin, "released": True})

    def _answer(self, exchange: Exchange, fields: dict[str, object]) -> None:
        timing = Timing(exchange, self._engine.runtime.clock)
        answer_object(exchange, 200, encode(fields), timing)


def _refuse_prefixes(exchange: Exchange) -> None:
    if exchange.key is not None and exchange.key.has_prefixes:
        raise Forbidden(
            "sealed files hold the records of other topics too, and this key has prefixes",
            fix="read with diff, or use a key without prefixes",
        )
