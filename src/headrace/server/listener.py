"""The listening sockets: where they are bound, with which certificate, and whether they may be.

The rules this file alone owns: a server that has no keys is not bound beyond its own machine unless
the operator says so; every address a host has gets a socket, all with one port; connections are
accepted from `start` on, which is before recovery.  What is said on a connection is the business of
the protocol that the caller makes for each.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable

from headrace.core.errors import ConfigError
from headrace.core.settings import Settings
from headrace.server.auth import KeyRing
from headrace.server.network import Address, is_loopback, resolve, show_address

# Connections that the kernel keeps until they are accepted; it may allow fewer.
BACKLOG = 4_096
# Connections that are accepted in one turn of the loop.  uvloop takes one of each descriptor that
# listens, so that who opens connections faster than the loop turns would keep all others out.
ACCEPTED_PER_TURN = 8
# How long a closing TLS connection waits for the other side to close, too.
TLS_GOODBYE_SECONDS = 1.0
_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def check_exposure(settings: Settings, keys: KeyRing) -> None:
    """Refuse to serve the network without keys.

    >>> check_exposure(Settings(host="0.0.0.0"), KeyRing([]))
    Traceback (most recent call last):
    headrace.core.errors.ConfigError: host '0.0.0.0' is not loopback and there are no API keys; \
set HEADRACE_API_KEYS, or HEADRACE_ALLOW_INSECURE_NO_AUTH=1 to let everybody in
    """
    if keys or settings.allow_insecure_no_auth or is_loopback(settings.host):
        return
    raise ConfigError(
        f"host {settings.host!r} is not loopback and there are no API keys",
        fix="set HEADRACE_API_KEYS, or HEADRACE_ALLOW_INSECURE_NO_AUTH=1 to let everybody in",
        detail={"settings": ["host", "api_keys", "allow_insecure_no_auth"]},
    )


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """The server's certificate, offering HTTP/2 and HTTP/1.1; None without one."""
    if not settings.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2", "http/1.1"])
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=_no_password)
    except (OSError, ValueError) as error:  # an `ssl.SSLError` is an OSError
        raise ConfigError(
            f"cannot use tls_cert {settings.tls_cert} with tls_key {settings.tls_key}: {error}",
            fix="name a PEM file with the certificate chain, and one with its key",
            detail={"settings": ["tls_cert", "tls_key"]},
        ) from None
    return context


def _no_password() -> str:
    # Without this, OpenSSL would ask the terminal.
    raise ValueError("the key is encrypted, and there is nobody to ask for its password")


# How long data may go unacknowledged by the other machine.  Longer than the time-outs of the
# transports, which know more: this one is for peers that are gone.
UNHEARD_MS_MAX = 120_000
# How long nothing may be heard of the other machine before it is asked, and asked again.  A session
# may be silent for as long as its client likes; one whose machine is gone must not.
KEEPALIVE_SECONDS = 60
KEEPALIVE_AGAIN_SECONDS = 15


class Listener:
    """The sockets of one server.

    >>> listener = Listener(Settings(port=0))
    >>> listener.bind()
    >>> listener.address.startswith("127.0.0.1:"), listener.url.startswith("http://127.0.0.1:")
    (True, True)
    >>> listener.close()
    """

    def __init__(self, settings: Settings, tls: ssl.SSLContext | None = None) -> None:
        self._settings = settings
        self._tls = tls
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.AbstractServer] = []
        self.address = ""  # host:port of the first socket, once bound

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{self.address}"

    def bind(self) -> None:
        """Take the port; `ConfigError` if that is not possible."""
        settings = self._settings
        try:
            self._bind_all(resolve(settings.host, settings.port))
        except (OSError, UnicodeError) as error:
            self.close()
            raise ConfigError(
                f"cannot listen on {settings.host}, port {settings.port}: {error}",
                fix="choose another with HEADRACE_HOST and HEADRACE_PORT",
                detail={"settings": ["host", "port"]},
            ) from None
        self.address = show_address(self._sockets[0].getsockname())

    def _bind_all(self, addresses: list[Address]) -> None:
        port = self._settings.port
        missing: OSError | None = None
        for family, (host, _, *rest) in addresses:
            try:
                bound = _bound(family, (host, port, *rest))
            except OSError as error:
                # A name may stand for an address of a family that the machine has turned off.
                if error.errno not in _NO_SUCH_ADDRESS:
                    raise
                missing = error
                continue
            self._sockets.append(bound)
            port = bound.getsockname()[1]
        if not self._sockets:
            raise missing or OSError("the host has no address")

    async def start(self, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Accept connections, each with a protocol of its own."""
        assert self._sockets and not self._servers
        loop = asyncio.get_running_loop()
        accepting = [
            bound.dup() if again else bound
            for bound in self._sockets
            for again in range(ACCEPTED_PER_TURN)
        ]
        for each in accepting:
            if self._tls is None:
                server = await loop.create_server(protocol, sock=each, backlog=BACKLOG)
            else:
                server = await loop.create_server(
                    protocol,
                    sock=each,
                    backlog=BACKLOG,
                    ssl=self._tls,
                    ssl_handshake_timeout=self._settings.header_timeout_ms / 1000,
                    ssl_shutdown_timeout=TLS_GOODBYE_SECONDS,
                )
            self._servers.append(server)

    def close(self) -> None:
        """Accept no more; connections that are open stay so."""
        for server in self._servers:
            server.close()
        if not self._servers:
            for bound in self._sockets:
                bound.close()


def _bound(family: socket.AddressFamily, address: tuple[object, ...]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # What is accepted here inherits it: an answer is not held back for a fuller packet.
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # So do these: a peer that vanished without a word is given up, and its slot is free.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_AGAIN_SECONDS)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNHEARD_MS_MAX)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
    except BaseException:
        made.close()
        raise
    return made
