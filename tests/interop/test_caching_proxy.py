"""Behind a caching nginx: what was sealed is kept there, and a recreated stream shows no old byte.

Skipped where there is no nginx; `.ci/run` installs it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from headrace.client import Client
from headrace.testing.process import ServerProcess
from tests.support import sealed_topics
from tests.support.caching_proxy import PROGRAM, CachingProxy
from tests.support.servers import Servers, numbers
from tests.support.stream_suites import SETTINGS

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no nginx on this machine")

TYPES = {"json": "application/json", "bytes": "application/octet-stream"}
ZERO = "0000000000000000_0000000000000000"
APPENDS = 40
READS_MAX = 1_000


@pytest.fixture(scope="module")
def server(servers: Servers) -> ServerProcess:
    return servers.start(**SETTINGS, **sealed_topics.SETTINGS)


@pytest.fixture(scope="module")
def proxy(
    server: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CachingProxy]:
    with CachingProxy(tmp_path_factory.mktemp("nginx") / "home", server.address) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def http(proxy: CachingProxy) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=proxy.url, trust_env=False, timeout=60) as client:
        yield client


def payload(kind: str, mark: str, number: int) -> bytes:
    text = f"{mark}-{number}-" + "x" * 500
    return json.dumps(text).encode() if kind == "json" else text.encode()


def made(
    http: httpx.Client, server: ServerProcess, path: str, kind: str, mark: str, count: int
) -> list[str]:
    """A new stream of so many appends, all of them sealed; the offsets after each."""
    headers = {"Content-Type": TYPES[kind]}
    assert http.put(path, headers=headers).status_code == 201
    offsets = []
    for number in range(count):
        answer = http.post(path, content=payload(kind, mark, number), headers=headers)
        assert answer.status_code == 204
        offsets.append(answer.headers["Stream-Next-Offset"])
    with Client(server.url) as client:
        sealed_topics.seal(client, "ds:" + path.removeprefix("/v1/stream/"))
    return offsets


def read_through(http: httpx.Client, path: str, offset: str | None) -> tuple[list[bytes], str]:
    """Every answer from an offset to the tail, and the offset of the tail."""
    bodies = []
    for _ in range(READS_MAX):
        answer = http.get(path, params={} if offset is None else {"offset": offset})
        assert answer.status_code == 200, answer.text
        bodies.append(answer.content)
        offset = answer.headers["Stream-Next-Offset"]
        if "Stream-Up-To-Date" in answer.headers:
            return bodies, offset
    raise AssertionError("the tail never came")


def wanted(kind: str, mark: str, numbers: range) -> bytes:
    parts = [payload(kind, mark, number) for number in numbers]
    return b"[" + b",".join(parts) + b"]" if kind == "json" else b"".join(parts)


def joined(kind: str, bodies: list[bytes]) -> bytes:
    if kind == "bytes":
        return b"".join(bodies)
    values = [value for body in bodies for value in json.loads(body)]
    return b"[" + b",".join(json.dumps(value).encode() for value in values) + b"]"


@pytest.mark.parametrize("kind", TYPES)
def test_a_recreated_stream_shows_no_old_byte(
    http: httpx.Client, server: ServerProcess, kind: str
) -> None:
    path = f"/v1/stream/cached/{kind}-{next(numbers)}"
    starts = (None, "-1", ZERO)
    old = made(http, server, path, kind, "old", APPENDS)
    for _ in range(3):  # so that what may be kept is
        for start in starts:
            bodies, tail = read_through(http, path, start)
            assert joined(kind, bodies) == wanted(kind, "old", range(APPENDS))
            assert tail == old[-1]
        for after, offset in enumerate(old, start=1):
            bodies, _tail = read_through(http, path, offset)
            assert joined(kind, bodies) == wanted(kind, "old", range(after, APPENDS))
    assert http.delete(path).status_code == 204
    new = made(http, server, path, kind, "new", APPENDS // 2)
    assert not set(old) & set(new)
    for start in starts:
        bodies, tail = read_through(http, path, start)
        assert joined(kind, bodies) == wanted(kind, "new", range(APPENDS // 2))
        assert tail == new[-1]
    for after, offset in enumerate(new, start=1):
        bodies, _tail = read_through(http, path, offset)
        assert joined(kind, bodies) == wanted(kind, "new", range(after, APPENDS // 2))


@pytest.mark.parametrize("kind", TYPES)
def test_a_read_from_the_start_sees_every_append_at_once(
    http: httpx.Client, server: ServerProcess, kind: str
) -> None:
    """From an offset of its own, an answer may be kept for a while: then it is a prefix."""
    path = f"/v1/stream/cached/{kind}-{next(numbers)}"
    offsets = made(http, server, path, kind, "x", 2)
    for number in range(2, 8):
        for start in (None, "-1", ZERO):
            bodies, tail = read_through(http, path, start)
            assert joined(kind, bodies) == wanted(kind, "x", range(number))
            assert tail == offsets[-1]
        bodies, tail = read_through(http, path, offsets[0])
        reached = offsets.index(tail) + 1
        assert joined(kind, bodies) == wanted(kind, "x", range(1, reached))
        answer = http.post(
            path, content=payload(kind, "x", number), headers={"Content-Type": TYPES[kind]}
        )
        offsets.append(answer.headers["Stream-Next-Offset"])


def test_sealed_history_is_kept(http: httpx.Client, server: ServerProcess) -> None:
    """What follows an offset of its own in a closed stream, all of it sealed, is fetched once."""
    path = f"/v1/stream/cached/bytes-{next(numbers)}"
    offsets = made(http, server, path, "bytes", "x", APPENDS)
    assert http.post(path, headers={"Stream-Closed": "true"}).status_code == 204
    answers = [http.get(path, params={"offset": offsets[0]}) for _ in range(2)]
    assert "immutable" in answers[0].headers["Cache-Control"], answers[0].headers
    assert [answer.headers["X-Cache"] for answer in answers] == ["MISS", "HIT"]
    for answer in answers:
        assert answer.content == wanted("bytes", "x", range(1, APPENDS))
        assert answer.headers["Stream-Closed"] == "true"
    for start in (None, "-1", ZERO):
        answer = http.get(path, params={} if start is None else {"offset": start})
        assert "immutable" not in answer.headers["Cache-Control"]
