"""What a connection that failed means, and what to do about it.

Only this file tells a server that is not there now, which is worth another attempt, from one that
this client can never speak to as it is set up: there `detail.reason` is "setup", and `retry.py`
does not repeat the call.  It opens nothing.
"""

from __future__ import annotations

import ssl
from typing import Final

from headrace.client.message import SETUP, Address
from headrace.core.errors import Unreachable

# The other side hung up during the handshake, as a server that is stopping does.
_HUNG_UP: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)


def unreachable(message: str, outcome: str) -> Unreachable:
    """No answer; another attempt may get one."""
    return Unreachable(
        message, fix="check that the server runs and its address", detail={"outcome": outcome}
    )


def not_connected(address: Address, error: OSError) -> Unreachable:
    """Why there is no connection.

    >>> found = not_connected(Address.of("https://a:1"), ssl.SSLError("WRONG_VERSION_NUMBER"))
    >>> found.detail["reason"], "http://a:1" in found.fix
    ('setup', True)
    """
    if not isinstance(error, ssl.SSLError) or isinstance(error, _HUNG_UP):
        return unreachable(f"{address.authority} cannot be reached: {error}", "nothing")
    if isinstance(error, ssl.SSLCertVerificationError):
        message = f"the certificate of {address.authority} is not trusted: {error.verify_message}"
        fix = 'name a file with the authority it is of: tls="ca.pem", or the option caFile'
    else:
        message = f"no TLS with {address.authority}: {error}"
        fix = f"use http://{address.authority} if it serves none, else check `tls=`"
    return Unreachable(message, fix=fix, detail={"outcome": "nothing", "reason": SETUP})


def closed_early(why: object = None) -> Unreachable:
    """The other side hung up before it had answered."""
    because = f": {why}" if why is not None else ""
    return Unreachable(
        f"the connection was lost before the answer{because}",
        fix="check that the server runs and its address (https:// if it serves TLS)",
        detail={"outcome": "unknown"},
    )
