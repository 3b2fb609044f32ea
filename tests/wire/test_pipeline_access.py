"""Who may declare pipelines, look at them and run them."""

from __future__ import annotations

import pytest

SETTINGS = {
    "api_keys": "root,reader:read,writer:write,deleter:del,boss:admin,worker:read+write,"
    "mine::orders:|bills.,mine-reader:read:orders:|bills."
}
PATH = "/v0/pipelines"
HELD = {"node": "w", "lease_id": "lease_1", "version": 1}


def call(speak, key: str, method: str, path: str, body: object = None):
    return speak(method, path, body, {"authorization": f"Bearer {key}"})


def declared(source: str, dest: str) -> dict[str, object]:
    return {
        "sources": [{"topic": source, "alias": "t"}],
        "dest": {"topic": dest},
        "sql": "select seq from t",
    }


@pytest.mark.parametrize(
    ("method", "path", "body", "scopes"),
    [
        ("PUT", f"{PATH}/p", declared("a", "b"), {"boss"}),
        ("GET", f"{PATH}/p", None, {"reader", "worker"}),
        ("GET", PATH, None, {"reader", "worker"}),
        ("DELETE", f"{PATH}/p", None, {"deleter"}),
        ("POST", f"{PATH}/p/restart", None, {"boss"}),
        ("POST", PATH, {"node": "w"}, {"worker"}),
        ("POST", f"{PATH}/p/progress", HELD, {"writer", "worker"}),
        ("POST", f"{PATH}/p/release", HELD, {"writer", "worker"}),
    ],
)
def test_scopes(speak, method, path, body, scopes) -> None:
    assert speak(method, path, body).status == 401
    for key in ("reader", "writer", "deleter", "boss", "worker"):
        reply = call(speak, key, method, path, body)
        assert (reply.status == 403) == (key not in scopes), (key, reply)


def test_prefixes(speak, topic) -> None:
    """A key with prefixes has to be allowed the pipeline's name and every topic."""
    good = declared(f"orders:{topic}", f"bills.{topic}")
    mine = f"{PATH}/orders:{topic}"
    for path, body in [
        (f"{PATH}/other-{topic}", good),
        (mine, declared("other", f"bills.{topic}")),
        (mine, declared(f"orders:{topic}", "other")),
        (mine, {**good, "dest": {"table": "other"}}),
    ]:
        assert call(speak, "mine", "PUT", path, body).status == 403
    assert call(speak, "mine", "PUT", mine, good).status == 201
    assert call(speak, "mine", "GET", mine).status == 200
    # Of somebody else, under an allowed name: its topics are not.
    other = f"{PATH}/orders:{topic}-other"
    assert call(speak, "root", "PUT", other, declared("a", "b")).status == 201
    assert call(speak, "mine", "GET", other).status == 403
    assert call(speak, "mine", "PUT", other, good).status == 403
    assert call(speak, "mine", "DELETE", other).status == 403
    assert call(speak, "mine", "POST", f"{other}/restart").status == 403
    for method in ("GET", "DELETE"):
        refused = call(speak, "mine", method, other).error
        assert refused["detail"] == {"pipeline": f"orders:{topic}-other"}, "its topics are not told"
    seen = call(speak, "mine-reader", "GET", PATH).json["pipelines"]
    assert [one["pipeline"] for one in seen] == [f"orders:{topic}"]
    # A worker reads on behalf of all.
    assert call(speak, "mine", "POST", PATH, {"node": "w"}).status == 403
    for path in (mine, other):
        assert call(speak, "root", "DELETE", path).json["deleted"] is True
