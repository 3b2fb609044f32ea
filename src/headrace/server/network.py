"""Hosts and addresses: what a name means, and whether it stays on this machine.

The rule this file alone owns: a host is loopback only when every address it resolves to is, so that
a name that does not resolve counts as the open network.  It binds nothing; that is
`server/listener.py`.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

Address = tuple[socket.AddressFamily, Any]  # an address as `bind` takes it, with its family


def host_of(text: str) -> str:
    """The host of `host` or `host:port`, in lower case, without an IPv6 address's brackets.

    >>> host_of("LocalHost:4000"), host_of("[::1]:4000"), host_of("::1"), host_of("localhost.")
    ('localhost', '::1', '::1', 'localhost')
    """
    text = text.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    if text.count(":") == 1:
        text = text.partition(":")[0]
    return text.removesuffix(".")


def resolve(host: str, port: int) -> list[Address]:
    """The addresses to listen on; empty means all of the machine.  Raises `OSError`."""
    found = socket.getaddrinfo(
        host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def is_loopback(host: str) -> bool:
    """Whether a host can be reached from this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0"), is_loopback("::1"), is_loopback("")
    (True, False, True, False)
    """
    try:
        addresses = resolve(host, 0)
    except (OSError, UnicodeError):
        return False
    return all(ipaddress.ip_address(name[0].partition("%")[0]).is_loopback for _, name in addresses)


def show_address(address: tuple[Any, ...]) -> str:
    """A socket's address as `host:port`.

    >>> show_address(("127.0.0.1", 4000)), show_address(("::1", 4000, 0, 0))
    ('127.0.0.1:4000', '[::1]:4000')
    """
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
