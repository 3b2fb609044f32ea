"""What is published over WebSockets: each message is an append, those of a turn go together.

Only this file turns a publish into an append and its outcome into an acknowledgement or a refusal.
A publisher is told of its append before it is sent the record itself.  The acknowledgements of a
connection that are due together are written together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Raw

from headrace.api.base import NULL
from headrace.api.websocket import Publish
from headrace.core.errors import HeadraceError, OutOfResources, Throttled
from headrace.core.settings import Settings
from headrace.engine.appending.admission import PLAIN, Append
from headrace.engine.appending.pending_append import PendingAppend, Times
from headrace.engine.engine import Engine
from headrace.metrics.requests import Metrics
from headrace.wire.failures import told
from headrace.wire.native.answers import encode, milliseconds
from headrace.wire.native.append import AppendApi, is_plain
from headrace.wire.native.append_answers import (
    NOTHING_SAID,
    AppendCounts,
    CountedAppends,
    count_appends,
    log_times,
    published,
)
from headrace.wire.native.request_checks import check_dead_letter, check_not_own, check_told_u64
from headrace.wire.native.vocabulary import TOPICS
from headrace.wire.routes import ADMIN, WRITE
from headrace.wire.turn_appends import TurnAppends

if TYPE_CHECKING:
    from headrace.wire.native.websocket import WebSocket

# Appends of one connection that are not acknowledged yet.
PUBLISHES_MAX: Final = 1_000


class Publication:
    """A message that appends: whose it is, and what its acknowledgement needs."""

    __slots__ = ("answered", "request_id", "size", "socket", "started_ns", "with_seqs")

    def __init__(self, socket: WebSocket, command: Publish, size: int, started_ns: int) -> None:
        self.socket = socket
        self.request_id = bytes(command.request_id)  # not a view of the whole message
        self.with_seqs = command.return_seqs is not False
        self.size = size
        self.started_ns = started_ns
        self.answered = False


class WebSocketPublishes:
    """What all WebSockets of one engine publish."""

    def __init__(
        self, engine: Engine, settings: Settings, metrics: Metrics, append: AppendApi
    ) -> None:
        self._topics = engine.topics_by_name
        self._runtime = engine.runtime
        self._now_ns = engine.runtime.clock.monotonic_ns
        self._metrics = metrics
        self._append = append
        self._turn = TurnAppends(engine, settings, self._answer, self._fail)

    def publish(self, socket: WebSocket, command: Publish, size: int, started_ns: int) -> None:
        """Append the records of a command when the turn ends, or raise why not."""
        name = command.topic
        socket.check(WRITE, (name,))
        how = PLAIN
        if not is_plain(command):
            how = _conditions(socket, command)
        if socket.publishing >= PUBLISHES_MAX:
            raise Throttled(
                f"{PUBLISHES_MAX} appends of this connection are in progress",
                fix="wait for some to be acknowledged",
            )
        batch = self._append.batch_of(command)
        if name not in self._topics:
            self._append.check_new(name, batch, how)
        check_not_own(name)
        caller = Publication(socket, command, size, started_ns)
        socket.publishing += 1
        self._turn.add(PendingAppend(self._runtime, name, batch, how, caller), size)

    # Answers

    def _answer(self, appends: Sequence[PendingAppend]) -> None:
        """Acknowledge appends that are done."""
        answers: dict[WebSocket, list[bytes]] = {}
        counted: CountedAppends = {}
        now_ns = self._now_ns()
        said, counts = NOTHING_SAID, AppendCounts()
        times: Times | None = None
        durability: str | None = None
        for pending in appends:
            caller = pending.caller
            if caller.answered:
                continue
            socket = _end(caller)
            if pending.error is not None:
                self._refuse(caller, pending.error, answers)
                continue
            try:
                topic, block = pending.topic or self._topics.get(pending.name), pending.block
                kind = None if topic is None else topic.config.durability
                if times is not pending.times or kind != durability:
                    times, durability = pending.times, kind
                    said = log_times(times, kind)
                    counts = counted.setdefault(kind, AppendCounts())
                ns = now_ns - caller.started_ns
                text = b'{"op":"ack","request_id":%b,"topic":%b%b' % (
                    caller.request_id,
                    encode(pending.name),
                    f"{published(pending, caller.with_seqs)}{milliseconds(ns)}{said.body}".encode(),
                )
                answers.setdefault(socket, []).append(text)
                if block is not None:
                    counts.records.append(block.count)
                    counts.durations_ns.append(ns)
                    counts.bytes += caller.size
            except Exception as failure:  # noqa: BLE001 - whatever it is, the client hears of it
                self._refuse(caller, failure, answers)
        count_appends(self._metrics, counted)
        _send(answers)

    def _fail(self, appends: Sequence[PendingAppend], error: Exception) -> None:
        """Refuse those of these appends that have not been answered."""
        answers: dict[WebSocket, list[bytes]] = {}
        for pending in appends:
            if not pending.caller.answered:
                _end(pending.caller)
                self._refuse(pending.caller, error, answers)
        _send(answers)

    def _refuse(
        self, caller: Publication, error: BaseException, answers: dict[WebSocket, list[bytes]]
    ) -> None:
        text, known = refusal_of(Raw(caller.request_id), error)
        socket = caller.socket
        texts = answers.setdefault(socket, [])
        texts.append(text)
        if isinstance(known, OutOfResources):
            _send({socket: answers.pop(socket)})
            socket.out_of_memory()


def _conditions(socket: WebSocket, command: Publish) -> Append:
    """The conditions of a publish, beside its records."""
    config = None
    if command.config and command.config != NULL:
        socket.check(ADMIN)
        config = TOPICS.read_config(bytes(command.config))
        check_dead_letter(config, socket.key)
    return Append(
        config=config,
        create=command.create,
        idempotency_key=command.idempotency_key or None,
        expected_head_seq=check_told_u64("expected_head_seq", command.expected_head_seq),
        disable_backpressure=bool(command.disable_backpressure),
    )


def _end(caller: Publication) -> WebSocket:
    """Note that a publish is answered; return whose it was."""
    caller.answered = True
    caller.socket.publishing -= 1
    return caller.socket


def _send(answers: dict[WebSocket, list[bytes]]) -> None:
    for socket, texts in answers.items():
        socket.reply(*texts)


def refusal(request_id: Raw, code: str, message: str, **more: object) -> bytes:
    """The answer to a command that is refused."""
    fields = encode({"code": code, "message": message, **more})[1:]
    return b'{"op":"error","request_id":%b,%b' % (bytes(request_id), fields)


def refusal_of(request_id: Raw, error: BaseException) -> tuple[bytes, HeadraceError]:
    """The answer to a command that failed, and the error as its client is told it."""
    known = told(error, "a WebSocket command")
    # There is no header to say it in.
    after = {k: v for k, v in known.detail.items() if k == "retry_after_ms"}
    return refusal(request_id, known.code, str(known), **after), known
