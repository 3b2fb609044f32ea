"""Where a server may be bound, and the sockets it is bound by."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop

from headrace.core.errors import ConfigError
from headrace.core.settings import Settings
from headrace.server.auth import KeyRing
from headrace.server.listener import (
    ACCEPTED_PER_TURN,
    UNHEARD_MS_MAX,
    Listener,
    check_exposure,
    tls_context,
)
from headrace.server.network import host_of, is_loopback
from tests.support.certificates import Certificate
from tests.support.served_app import PATIENCE_SECONDS

NO_KEYS = KeyRing([])
UNRESOLVABLE = "no-such-host.invalid"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.8.7", "localhost", "::1", "[::1]"])
def test_loopback_needs_no_keys(host: str) -> None:
    assert is_loopback(host)
    check_exposure(Settings(host=host), NO_KEYS)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "", "192.0.2.1", "2001:db8::1", UNRESOLVABLE, "a" * 300, "a\0b", "."]
)
def test_anything_else_does(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(ConfigError, match="HEADRACE_API_KEYS"):
        check_exposure(Settings(host=host), NO_KEYS)
    check_exposure(Settings(host=host), KeyRing.parse("k"))
    check_exposure(Settings(host=host, allow_insecure_no_auth=True), NO_KEYS)


@pytest.mark.parametrize("host", [UNRESOLVABLE, "192.0.2.1", "a" * 300])
def test_an_address_that_is_not_ours(host: str) -> None:
    listener = Listener(Settings(host=host, port=0))
    with pytest.raises(ConfigError, match="HEADRACE_HOST"):
        listener.bind()
    listener.close()


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=str(port)):
            Listener(Settings(port=port)).bind()


def test_all_addresses_of_a_name_have_one_port() -> None:
    listener = Listener(Settings(host="localhost", port=0))
    listener.bind()
    try:
        ports = {bound.getsockname()[1] for bound in listener._sockets}
        assert len(ports) == 1 and 0 not in ports
        assert listener.address.endswith(f":{ports.pop()}")
    finally:
        listener.close()


def test_connections_are_made_until_it_is_closed_and_sent_without_delay() -> None:
    made: list[asyncio.BaseTransport] = []

    class Greeter(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(transport)
            assert isinstance(transport, asyncio.Transport)
            transport.write(b"hello")

    async def talk() -> None:
        listener = Listener(Settings(port=0))
        listener.bind()
        await listener.start(Greeter)
        host, _, port = listener.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await reader.readexactly(5) == b"hello"
        accepted = made[0].get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        # A machine that is gone is noticed although nothing is sent to it.
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        assert 0 < 1_000 * idle < UNHEARD_MS_MAX
        listener.close()
        await asyncio.sleep(0)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(host, int(port))
        # What was open stays open.
        made[0].write(b"more")  # type: ignore[attr-defined]
        assert await reader.readexactly(4) == b"more"
        writer.close()
        await writer.wait_closed()
        made[0].close()

    asyncio.run(talk())


def test_a_handshake_has_one_deadline_however_it_drips(tmp_path: Path) -> None:
    made: list[asyncio.Protocol] = []

    def connect() -> asyncio.Protocol:
        made.append(asyncio.Protocol())
        return made[-1]

    async def drip() -> None:
        files = Certificate(tmp_path)
        settings = Settings(
            port=0, header_timeout_ms=300, tls_cert=str(files.cert), tls_key=str(files.key)
        )
        listener = Listener(settings, tls_context(settings))
        listener.bind()
        await listener.start(connect)
        host, _, port = listener.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\x16\x03\x01\x02\x00\x01\x00")  # the beginning of a hello
        ended = asyncio.ensure_future(reader.read())
        while not ended.done():
            writer.write(b"\x00")
            await asyncio.wait([ended], timeout=0.05)
        with suppress(ConnectionError):
            assert await ended == b""
        writer.close()
        listener.close()

    for loop_factory in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(asyncio.wait_for(drip(), PATIENCE_SECONDS))


def test_a_turn_of_the_loop_accepts_several_connections() -> None:
    """Else who opens them faster than the loop turns keeps all others out."""
    waiting = 3 * ACCEPTED_PER_TURN

    async def accept() -> int:
        made: list[asyncio.BaseTransport] = []

        class Counted(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                made.append(transport)

        listener = Listener(Settings(port=0))
        listener.bind()
        await listener.start(Counted)
        host, _, port = listener.address.rpartition(":")
        clients = [socket.create_connection((host, int(port))) for _ in range(waiting)]
        turns = 0
        while len(made) < waiting:
            await asyncio.sleep(0)
            turns += 1
        listener.close()
        for client in clients:
            client.close()
        for transport in made:
            transport.close()
        await asyncio.sleep(0.01)
        return turns

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(accept()) < waiting // 2


def test_no_certificate_is_no_tls() -> None:
    assert tls_context(Settings()) is None


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("a.example", "a.example"),
        (" A.Example:80 ", "a.example"),
        ("[fd00::1]", "fd00::1"),
        ("[fd00::1]:80", "fd00::1"),
        ("fd00::1", "fd00::1"),
        ("a.example.:80", "a.example"),
        ("", ""),
        (":80", ""),
        ("[", ""),
    ],
)
def test_the_host_of_a_name_with_a_port(text: str, host: str) -> None:
    assert host_of(text) == host
