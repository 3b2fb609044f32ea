"""What a store of files is for, and how messages name it without showing a secret."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from headrace.core.errors import ConfigError

# What of a URL's query may be shown to a person.  All else might be a secret.
QUERY_NAMES_SHOWN = frozenset(
    ["allow_bucket_creation", "anonymous", "endpoint_override", "project_id", "region", "scheme"]
)


class StoreRole(NamedTuple):
    """How a person knows a store."""

    name: str
    setting: str
    unreachable: str  # `detail.reason` when it does not answer
    meanwhile: str  # what goes on all the same

    def refused(self, url: str, fix: str, why: str) -> ConfigError:
        """Return the error for a setting that names no usable store."""
        shown = redact_url(url)
        return ConfigError(
            f"{self.name} {shown!r} cannot be used: {why}",
            fix=fix,
            detail={"setting": self.setting, "value": shown},
        )


COLD_TIER: Final = StoreRole(
    "the cold tier", "HEADRACE_COLD_URL", "cold_unreachable", "hot data is not affected"
)


def redact_url(url: str) -> str:
    """Return the URL without what might be a secret, fit for a log or a message.

    >>> redact_url("s3://key:secret@bucket/p?region=eu-west-1&token=abc")
    's3://***@bucket/p?region=eu-west-1&token=***'
    """
    if "://" not in url:
        return url
    parts = urlsplit(url)
    userinfo, at, host = parts.netloc.rpartition("@")
    query = urlencode(
        [
            (name, value if name in QUERY_NAMES_SHOWN else "***")
            for name, value in parse_qsl(parts.query, keep_blank_values=True)
        ],
        safe="*:/",
    )
    shown = f"{parts.scheme}://{'***' if userinfo else ''}{at}{host}{parts.path}"
    return f"{shown}?{query}" if query else shown
