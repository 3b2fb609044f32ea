"""The other end of a WebSocket, for tests."""

from __future__ import annotations

import base64
import json
from typing import Any

from websockets.frames import Frame, Opcode
from websockets.protocol import CLIENT, Protocol

from headrace.wire.exchange import Key
from tests.support.exchanges import ListExchange
from tests.support.live_readers import Live

SECRET = base64.b64encode(b"k" * 16).decode()


def upgrade(live: Live, key: Key | None = None, **headers: str) -> ListExchange:
    sent = {"upgrade": "websocket", "sec_websocket_key": SECRET, "sec_websocket_version": "13"}
    given = {name: value for name, value in {**sent, **headers}.items() if value}
    return live.ask("GET", "/v0/ws", key=key, upgrade_to=b"websocket", **given)


class Client:
    """The other end of a connection."""

    def __init__(self, live: Live, key: Key | None = None) -> None:
        asked = upgrade(live, key)
        assert asked.status == 101, asked.reply
        assert asked.outlet is not None
        self._live = live
        self.outlet = asked.outlet
        self.protocol = Protocol(CLIENT)
        self.frames: list[Frame] = []

    def _flush(self) -> None:
        for data in self.protocol.data_to_send():
            if self.outlet.on_data is not None:
                self.outlet.on_data(data)

    def send(self, op: str, **fields: Any) -> None:
        self.send_text(json.dumps({"op": op, **fields}).encode())

    def send_text(self, text: bytes) -> None:
        self.protocol.send_text(text)
        self._flush()

    def read(self) -> list[dict[str, Any]]:
        """The messages that came since the last time."""
        self._live.run()
        data = self.outlet.take()
        if data:
            self.protocol.receive_data(data)
        self.frames = [f for f in self.protocol.events_received() if isinstance(f, Frame)]
        return [json.loads(bytes(f.data)) for f in self.frames if f.opcode is Opcode.TEXT]

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send a command and read its answer, which has to come first."""
        self.send(op, **fields)
        return self.read()[0]


def ops(messages: list[dict[str, Any]]) -> list[str]:
    return [message["op"] for message in messages]
