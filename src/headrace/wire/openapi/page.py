"""`/openapi.json`, and `/docs`: a page that shows it, without anything from elsewhere.

Only this file serves files of the package.  The page is three of them, small enough to read, and
its content policy lets the browser load nothing from another place and run nothing that is not one
of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib import resources
from typing import Final

from headrace.core.settings import Settings
from headrace.wire.exchange import JSON, Exchange, Handler, Headers
from headrace.wire.openapi.document import OpenApi
from headrace.wire.routes import Route

FILES: Final = {
    "/docs": ("docs.html", b"text/html; charset=utf-8"),
    "/docs/docs.css": ("docs.css", b"text/css; charset=utf-8"),
    "/docs/docs.js": ("docs.js", b"text/javascript; charset=utf-8"),
}
POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    b"img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final[Headers] = (
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)


class Documents:
    """Handlers of the documentation.  `routes` is the list of the table, complete by first use."""

    def __init__(self, routes: Sequence[Route], settings: Settings) -> None:
        self._document = OpenApi(routes, settings)
        self._files: dict[str, bytes] = {}

    def routes(self) -> list[Route]:
        """The rows; no key is asked for, because the documents are the same on every server."""

        def row(path: str, handler: Handler, summary: str, *, hidden: bool) -> Route:
            return Route(
                "GET",
                path,
                handler,
                summary=summary,
                public=True,
                name_param=False,
                unready=True,
                hidden=hidden,
            )

        pages = [
            row(path, partial(self._file, name, content_type), "This page", hidden=True)
            for path, (name, content_type) in FILES.items()
        ]
        return [
            row("/openapi.json", self.openapi, "This API as an OpenAPI document", hidden=False),
            *pages,
        ]

    def openapi(self, exchange: Exchange) -> None:
        """Answer with the document."""
        exchange.answer(200, self._document.body, JSON, ((b"cache-control", b"no-cache"),))

    def _file(self, name: str, content_type: bytes, exchange: Exchange) -> None:
        body = self._files.get(name)
        if body is None:
            file = resources.files("headrace.wire").joinpath("static", name)
            body = self._files[name] = file.read_bytes()
        exchange.answer(200, body, content_type, HEADERS)
