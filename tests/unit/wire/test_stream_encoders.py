"""Live streams of a second dialect, of plain lines: nothing of a live stream is native."""

from __future__ import annotations

import pytest
from websockets.frames import Frame, Opcode
from websockets.protocol import CLIENT, Protocol

from headrace.engine.live.follower import Position, Subscription
from headrace.engine.live.pages import SharedPage
from headrace.wire.live_stream import LiveStream, StreamClient, StreamEncoder
from headrace.wire.websocket_frames import BROKEN, GOING_AWAY, INVALID_TEXT, text_frame
from headrace.wire.websocket_stream import WebSocketStream
from tests.support.exchanges import ListOutlet
from tests.support.live_readers import Live, StartLive, record_seqs

SLOW_MS = 5_000


class Lines(StreamEncoder[str]):
    """A line for each thing that is said; the view is what each line begins with."""

    __slots__ = ()
    dialect = "lines"

    def page(self, subscription: Subscription[str], shared: SharedPage) -> bytes:
        data = shared.encoded.get(subscription.view)
        if data is None:
            said, page = [], shared.page
            if page.tombstone is not None:
                said.append(f"lost {page.tombstone.gap_from}-{page.tombstone.gap_to}")
            said += [f"{record.seq} {record.data.decode()}" for record in page.records]
            if page.caught_up:
                said.append(f"tail {page.head_seq}")
            lines = "".join(f"{subscription.view}{line}\n" for line in said)
            data = shared.encoded[subscription.view] = lines.encode()
        assert isinstance(data, bytes)
        return data

    def gone(self, subscription: Subscription[str], head_seq: int) -> bytes:
        return f"gone {subscription.position.name} {head_seq}\n".encode()

    def delayed(self, subscription: Subscription[str], ms_max: int) -> bytes:
        return f"later {subscription.position.name}\n".encode()

    def topic_failed(
        self, subscription: Subscription[str], error: BaseException, retry_ms: int
    ) -> bytes:
        return f"failed {subscription.position.name} {retry_ms} {error}\n".encode()

    def heartbeat(self, now_ms: int) -> bytes:
        return b"alive %d\n" % now_ms

    def error(self, error: BaseException) -> bytes:
        return f"error {error}\n".encode()

    def stopping(self) -> bytes:
        return b"stopping\n"


class FramedLines(Lines):
    """The same lines as the frames of a WebSocket."""

    __slots__ = ()

    def page(self, subscription: Subscription[str], shared: SharedPage) -> bytes:
        return text_frame(super().page(subscription, shared))

    def error(self, error: BaseException) -> bytes:
        return text_frame(super().error(error))

    def stopping(self) -> bytes:
        return text_frame(super().stopping())


def follow(stream: LiveStream[str], live: Live, name: str, view: str, limit: int) -> None:
    hub = live.hub
    topic = hub.find(name)
    position = Position(name, topic.epoch if topic is not None else 0, 0)
    stream.follow(position, hub.page_options(limit, 1 << 20, ()), view, topic)


class LineStream(LiveStream[str]):
    """One open stream of lines."""

    __slots__ = ("has_ended", "outlet")

    def __init__(self, live: Live, *names: str, view: str = "", limit: int = 100) -> None:
        self.outlet = ListOutlet(live.clock)
        live.streams.limits.take(None)
        super().__init__(live.streams, Lines(), StreamClient(self.outlet, None, 2_000))
        self.has_ended = False
        for name in names:
            follow(self, live, name, view, limit)
        self.begin()

    def ended(self) -> None:
        self.has_ended = True

    def lines(self) -> list[str]:
        """What came since the last time."""
        return self.outlet.take().decode().splitlines()


def test_records_and_the_tail(live: Live) -> None:
    live.append("jobs", 1, 2)
    stream = LineStream(live, "jobs")
    live.run()
    assert stream.lines() == ["1 1", "2 2", "tail 2"]
    live.append("jobs", 3)
    live.run()
    assert stream.lines() == ["3 3", "tail 3"]


def test_a_gap_is_announced(live: Live) -> None:
    for value in range(5):
        live.append("capped", value, config={"cap_records": 2})
    stream = LineStream(live, "capped")
    live.run()
    assert stream.lines() == ["lost 1-3", "4 3", "5 4", "tail 5"]


def test_a_deleted_topic_and_one_that_was_never_there(live: Live) -> None:
    live.append("jobs", 1)
    stream = LineStream(live, "jobs", "nothing")
    live.run()
    stream.lines()
    live.engine.delete_topic("jobs").result()
    live.run()
    assert stream.lines() == ["gone jobs 1"]
    assert not stream.subscriptions and not stream.backlog


def test_what_is_encoded_is_shared_and_views_are_not_mixed_up(live: Live) -> None:
    live.append("jobs", 1)
    streams = [LineStream(live, "jobs", view=view) for view in ("a ", "a ", "b ")]
    watcher = live.watch("jobs")
    live.run()
    for stream in streams:
        stream.lines()
    watcher.events()
    live.append("jobs", 2)
    live.run()
    first, second, other = [stream.outlet.written for stream in streams]
    assert first[0] is second[0]
    assert first == [b"a 2 2\na tail 2\n"]
    assert other == [b"b 2 2\nb tail 2\n"]
    assert record_seqs(watcher.events()) == [2], "a stream of another dialect, from the same page"


def test_deliveries_count_for_the_dialect(live: Live) -> None:
    live.append("jobs", 1, 2)
    LineStream(live, "jobs")
    live.run()
    assert live.metrics._read_records.of("lines", "hot").value == 2
    assert live.metrics._read_records.of("native", "hot").value == 0


def test_an_idle_stream_beats(live: Live) -> None:
    live.append("jobs", 1)
    stream = LineStream(live, "jobs")
    live.run()
    stream.lines()
    live.wait(2_000)
    [line] = stream.lines()
    assert line.startswith("alive 17")


def test_a_slow_client_reads_pages_of_its_own_and_is_closed_at_last(start: StartLive) -> None:
    live = start(slow_consumer_timeout_ms=SLOW_MS)
    live.append("jobs", *range(5))
    stream = LineStream(live, "jobs", limit=2)
    stream.outlet.fill()
    live.run()
    assert stream.lines() == []
    stream.outlet.drain()
    live.run()
    assert stream.outlet.written == [b"1 0\n2 1\n", b"3 2\n4 3\n", b"5 4\ntail 5\n"]
    stream.lines()
    stream.outlet.fill()
    live.wait(2 * SLOW_MS + 1_000)
    [line] = stream.lines()
    assert line.startswith(f"error the stream was not read for {SLOW_MS} ms")
    assert stream.outlet.closed and stream.has_ended
    assert not live.hub._feeds


def test_a_stop_ends_the_streams_of_every_dialect(live: Live) -> None:
    live.append("jobs", 1)
    stream, watcher = LineStream(live, "jobs"), live.watch("jobs")
    live.run()
    stream.lines()
    watcher.events()
    assert live.streams.of_kind["sse"] == live.streams.limits.open == 2
    live.streams.stop()
    assert stream.lines() == ["stopping"]
    assert stream.outlet.closed and stream.has_ended
    assert watcher.names() == ["error"]
    assert live.streams.of_kind["sse"] == live.streams.limits.open == 0


def test_a_damaged_file_ends_its_topic(live: Live) -> None:
    live.append("jobs", *range(10))
    live.engine.checkpoint().result()
    live.engine.state.forget_blocks(live.engine.state.by_name["jobs"])
    live.engine.state.catalog.files_of = lambda topic_id: []  # type: ignore[method-assign]
    stream = LineStream(live, "jobs")
    live.run()
    [line] = stream.lines()
    assert line.startswith("failed jobs 0 seqs 1 to 10 of 'jobs' cannot be read")
    assert not stream.subscriptions
    assert not stream.has_ended, "what follows is the dialect's business"


# Over a WebSocket


class LineSocket(WebSocketStream[str]):
    """A WebSocket whose messages are names of topics to follow."""

    __slots__ = ("_live", "has_ended", "outlet")

    def __init__(self, live: Live) -> None:
        self.outlet = ListOutlet(live.clock)
        live.streams.limits.take(None)
        super().__init__(
            live.streams,
            FramedLines(),
            StreamClient(self.outlet, None, 2_000),
            message_bytes_max=1_000,
        )
        self._live = live
        self.has_ended = False
        self.begin()

    def text_message(self, message: bytes) -> None:
        self.reply(b"following " + message)
        follow(self, self._live, message.decode(), "", 100)

    def binary_message(self, message: bytes) -> None:
        self.reply(b"no")

    def ended(self) -> None:
        self.has_ended = True


class Peer:
    """The client of a `LineSocket`."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self.socket = LineSocket(live)
        self.protocol = Protocol(CLIENT)

    def send(self, opcode: Opcode, payload: bytes) -> None:
        self.protocol.send_frame(Frame(opcode, payload))  # type: ignore[attr-defined]
        for data in self.protocol.data_to_send():
            if self.socket.outlet.on_data is not None:
                self.socket.outlet.on_data(data)

    def frames(self) -> list[tuple[Opcode, bytes]]:
        """The frames that came since the last time."""
        self._live.run()
        self.protocol.receive_data(self.socket.outlet.take())
        return [
            (frame.opcode, bytes(frame.data))
            for frame in self.protocol.events_received()
            if isinstance(frame, Frame)
        ]


@pytest.fixture
def peer(live: Live) -> Peer:
    live.append("jobs", 1)
    return Peer(live)


def test_a_websocket_follows_and_beats(live: Live, peer: Peer) -> None:
    peer.send(Opcode.TEXT, b"jobs")
    peer.send(Opcode.BINARY, b"jobs")
    texts = [payload for _, payload in peer.frames()]
    assert texts == [b"following jobs", b"no", b"1 1\ntail 1\n"]
    live.append("jobs", 2)
    assert peer.frames() == [(Opcode.TEXT, b"2 2\ntail 2\n")]
    live.wait(2_000)
    assert peer.frames() == [(Opcode.PING, b"")]


@pytest.mark.parametrize("how", ["stops", "fails", "not text"])
def test_a_websocket_ends_with_a_close_frame(peer: Peer, how: str) -> None:
    if how == "stops":
        peer.socket.stop()
    elif how == "fails":
        peer.socket.fail(OSError("no disk"))
    else:
        peer.send(Opcode.TEXT, b"\xff")
    said = [payload for opcode, payload in peer.frames() if opcode is Opcode.TEXT]
    expected = {
        "stops": ([b"stopping\n"], GOING_AWAY),
        "fails": ([b"error no disk\n"], BROKEN),
        "not text": ([], INVALID_TEXT),
    }
    assert peer.protocol.close_rcvd is not None
    assert (said, peer.protocol.close_rcvd.code) == expected[how]
    assert peer.socket.outlet.closed and peer.socket.has_ended


def test_nothing_is_said_after_the_close_frame(start: StartLive) -> None:
    live = start()
    live.append("jobs", 1)
    peer = Peer(live)
    peer.socket.stop()
    peer.frames()
    live.append("jobs", 2)
    peer.socket.fail(OSError("late"))
    assert peer.frames() == []
