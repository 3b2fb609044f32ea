"""Streams of a server by plain HTTP, for tests that have a client of the native API otherwise."""

from __future__ import annotations

from urllib.parse import quote

import httpx

from headrace.testing.process import ServerProcess


def make_stream(
    server: ServerProcess,
    path: str,
    content_type: str = "",
    appends: tuple[bytes, ...] = (),
    **headers: str,
) -> str:
    """Create a stream with these appends; return the name of its topic.

    `stream_closed` is the header `stream-closed`; without a type a fork has that of its source.
    """
    address = f"{server.url}/v1/stream/{quote(path)}"
    given = {"content-type": content_type} if content_type else {}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    with httpx.Client(trust_env=False) as client:
        made = client.put(address, headers=given)
        assert made.status_code == 201, made.text
        for body in appends:
            done = client.post(
                address, content=body, headers={"content-type": made.headers["content-type"]}
            )
            assert done.status_code == 204, done.text
    return f"ds:{path}"


def delete_stream(server: ServerProcess, path: str) -> None:
    done = httpx.delete(f"{server.url}/v1/stream/{quote(path)}", trust_env=False)
    assert done.status_code == 204, done.text


def make_s2_stream(server: ServerProcess, stream: str, *appends: list[dict[str, object]]) -> str:
    """Create a stream of S2 with these appends of records in base64; return its topic's name."""
    headers = {"s2-basin": "tests-basin", "s2-format": "base64"}
    config = {"timestamping": {"mode": "client-require", "uncapped": True}}
    with httpx.Client(base_url=f"{server.url}/v1", headers=headers, trust_env=False) as client:
        basin = client.put("/basins/tests-basin")
        assert basin.status_code in (200, 201), basin.text
        made = client.post("/streams", json={"stream": stream, "config": config})
        assert made.status_code == 201, made.text
        for records in appends:
            path = f"/streams/{quote(stream, safe='')}/records"
            done = client.post(path, json={"records": records})
            assert done.status_code == 200, done.text
    return f"s2:tests-basin/{stream}"
