"""Where a server may send requests of its own: to the open network, never to what is around it.

Only this file decides it, for a URL when it is given, and for each address that its name resolves
to when it is used.  Everything is refused that is not a public address: loopback, private and
link-local networks, the addresses at which clouds tell machines their secrets, and the forms of
IPv6 that carry such an address of IPv4.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final, NamedTuple
from urllib.parse import urlsplit

URL_BYTES_MAX: Final = 2_048
DEFAULT_PORTS: Final = {"https": 443, "http": 80}
# What versions of Python disagree about, and a public address at which one cloud serves what others
# serve on a link-local one.
_REFUSED: Final = tuple(
    ipaddress.ip_network(text)
    for text in ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "64:ff9b:1::/48")
)
_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
# A translator sends what begins so to the IPv4 address at its end.
_TRANSLATED: Final = (ipaddress.IPv6Network("64:ff9b::/96"),)
_LOCAL_NAMES: Final = ("localhost", "local", "internal", "lan", "home.arpa")
_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")
# The system's resolver takes numbers of many shapes for an address.
_NUMBER = re.compile(r"(0x[0-9a-f]*|[0-9]+)")
_PRINTABLE = re.compile(r"[!-~]+")


class Target(NamedTuple):
    """A URL that may be asked, in parts."""

    scheme: str
    host: str  # a name, or an address without brackets
    port: int
    path: str  # with the query

    @property
    def authority(self) -> str:
        """The value of `Host`.

        >>> Target("https", "::1", 443, "/").authority
        '[::1]'
        """
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


class UrlRefused(NamedTuple):
    """Why a URL or an address is not asked."""

    reason: str


def check_url(url: str, *, loopback: bool) -> Target | UrlRefused:
    """Return a URL's parts, or why it is refused; `loopback`: this machine may be asked, too.

    >>> check_url("https://example.com/hook?a=1", loopback=False)
    Target(scheme='https', host='example.com', port=443, path='/hook?a=1')
    >>> check_url("https://10.0.0.1/hook", loopback=True).reason
    "'10.0.0.1' is not a public address"
    """
    if len(url) > URL_BYTES_MAX or not _PRINTABLE.fullmatch(url) or "\\" in url:
        return UrlRefused(f"the URL is longer than {URL_BYTES_MAX} bytes, or not plain ASCII")
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").removesuffix("."), parts.port
    except ValueError:
        return UrlRefused("the URL does not parse")
    if parts.scheme not in DEFAULT_PORTS:
        return UrlRefused("the URL must use https")
    if parts.username is not None or parts.password is not None or parts.fragment:
        return UrlRefused("the URL must have no user, password or fragment")
    if not host or port == 0:
        return UrlRefused("the URL must name a host")
    if not (loopback and (host == "localhost" or _is_loopback(host))):
        refused = _check_public(parts.scheme, host)
        if refused is not None:
            return refused
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host, port or DEFAULT_PORTS[parts.scheme], path)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_public(scheme: str, host: str) -> UrlRefused | None:
    """Return why a host of the open network is not asked; None: it may be."""
    if scheme != "https":
        return UrlRefused(
            "only https URLs are taken, and http ones of this machine if"
            " HEADRACE_DS_WEBHOOK_LOOPBACK is set"
        )
    if any(host == name or host.endswith(f".{name}") for name in _LOCAL_NAMES):
        return UrlRefused(f"{host!r} is a name of a private network")
    if ":" in host or host.replace(".", "").isdigit():
        return check_address(host, loopback=False)
    if not _NAME.fullmatch(host) or _NUMBER.fullmatch(host.rpartition(".")[2]):
        return UrlRefused(f"{host!r} is no host name")
    return None


def check_address(text: str, *, loopback: bool) -> UrlRefused | None:
    """Return why an address is not connected to; None: it may be.

    >>> check_address("93.184.216.34", loopback=False)
    >>> check_address("::ffff:169.254.169.254", loopback=True).reason
    "'::ffff:169.254.169.254' is not a public address"
    """
    refused = UrlRefused(f"{text!r} is not a public address")
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return refused  # an IPv6 address of one interface is one of these
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        return refused
    if loopback and address.is_loopback:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        for network in _TRANSLATED:
            if address in network:
                inner = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
                return None if _is_public(inner) else refused
        # Nothing public is reachable in these ways only.
        if address.ipv4_mapped or address.sixtofour or address.teredo:
            return refused
    return None if _is_public(address) else refused


def _is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and address not in _UNICAST:
        return False  # what was never given out, or only for one site
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not any(address in network for network in _REFUSED)
    )
