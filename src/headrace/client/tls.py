"""The TLS context of a client: the caller's own, or one that trusts what the machine trusts."""

from __future__ import annotations

import ssl

from headrace.core.errors import InvalidRequest


def context(tls: ssl.SSLContext | str | None) -> ssl.SSLContext:
    """Return `tls` itself, or a context that trusts the authorities of the PEM file `tls`."""
    if isinstance(tls, ssl.SSLContext):
        return tls
    try:
        return ssl.create_default_context(cafile=tls)
    except OSError as error:  # ssl.SSLError is one
        raise InvalidRequest(
            f"{tls!r} is not a file of certificates: {error.strerror or error}",
            fix="name a PEM file with the certificates of the authorities to trust",
        ) from None
