"""Who may use routers, and how many there may be (native §1.7, §1.9)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

SETTINGS = {
    "api_keys": "root,reader:read,writer:write,deleter:del,boss:admin,"
    "mine::orders:|bills.,mine-reader:read:orders:|bills."
}
PATH = "/v0/routers/"


def call(speak, key: str, method: str, path: str, body: object = None):
    return speak(method, path, body, {"authorization": f"Bearer {key}"})


def code(reply) -> tuple[int, str]:
    return reply.status, reply.error["code"]


def edge(source: str, dest: str, **options: object) -> dict[str, object]:
    return {"source": source, "dest": dest, **options}


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("PUT", PATH + "r", "boss"),
        ("GET", PATH + "r", "reader"),
        ("GET", "/v0/routers", "reader"),
        ("DELETE", PATH + "r", "deleter"),
        ("PATCH", PATH + "r", "boss"),
        ("POST", PATH + "r/more", "boss"),
    ],
)
def test_scopes(speak, method, path, scope) -> None:
    """§0, §1.7: admin to put, read to look and list, delete to delete; 401 without a key."""
    body = edge("a", "b") if method == "PUT" else None
    assert code(speak(method, path, body)) == (401, "unauthorized")
    for key in ("reader", "writer", "deleter", "boss"):
        reply = call(speak, key, method, path, body)
        assert (reply.status == 403) == (key != scope), (key, reply)
        if reply.status == 403:
            assert code(reply) == (403, "forbidden")


def test_prefixes_of_a_put(speak, topic) -> None:
    """§1.7, §6.1: router, source and dest have to be allowed; 403 after JSON, before names."""
    good = edge(f"orders:{topic}-a", f"bills.{topic}-b")
    name = f"{PATH}orders:{topic}"
    for path, body in [
        (f"{PATH}other-{topic}", good),
        (name, {**good, "source": "other"}),
        (name, {**good, "dest": "other"}),
        (name, {**good, "dest": "no good"}),
        (name, {**good, "source": "same", "dest": "same"}),
        (f"{PATH}orders:no%20good", {**good, "dest": "other"}),
    ]:
        assert code(call(speak, "mine", "PUT", path, body)) == (403, "forbidden")
    assert code(call(speak, "mine", "PUT", name, {"source": "other"})) == (400, "invalid_request")
    bad_filter = edge("other", "more", filter=3)
    assert code(call(speak, "mine", "PUT", name, bad_filter)) == (400, "invalid_request")
    for named in (good["source"], good["dest"]):
        assert code(call(speak, "root", "GET", f"/v0/topics/{named}")) == (404, "topic_not_found")
    assert call(speak, "mine", "PUT", name, good).status == 201


def test_prefixes_of_a_look_and_a_delete(speak, topic) -> None:
    """§1.7: on GET and DELETE the stored name, source and dest; nobody else hears of them."""
    names = {
        f"orders:{topic}-1": edge(f"orders:{topic}-a", f"orders:{topic}-b"),
        f"orders:{topic}-2": edge(f"orders:{topic}-a", f"secret-{topic}"),
        f"orders:{topic}-3": edge(f"hidden-{topic}", f"orders:{topic}-c"),
        f"other-{topic}": edge(f"orders:{topic}-a", f"orders:{topic}-b"),
    }
    for name, body in names.items():
        assert call(speak, "root", "PUT", PATH + name, body).status == 201
    for number, name in enumerate(names):
        for method in ("GET", "DELETE"):
            reply = call(speak, "mine", method, PATH + name)
            if number:
                assert code(reply) == (403, "forbidden")
                assert b"hidden-" not in reply.body
                assert b"secret-" not in reply.body
            else:
                assert reply.status == 200
    for number in (2, 3):  # a change that would tell where it goes
        body = edge(f"orders:{topic}-d", f"orders:{topic}-e")
        reply = call(speak, "mine", "PUT", f"{PATH}orders:{topic}-{number}", body)
        assert code(reply) == (403, "forbidden")
        assert reply.error["detail"] == {"router": f"orders:{topic}-{number}"}
    assert code(call(speak, "mine", "GET", f"{PATH}orders:{topic}-9")) == (404, "router_not_found")
    absent = call(speak, "mine", "DELETE", f"{PATH}orders:{topic}-9")
    assert (absent.status, absent.json["deleted"]) == (200, False)
    for name in list(names)[1:]:
        assert call(speak, "root", "GET", PATH + name).status == 200


def test_a_list_shows_what_a_key_may_use(speak, topic) -> None:
    """§1.7: name, source and dest all allowed; pages are full nevertheless."""
    for n in range(4):
        source, dest = f"orders:{topic}-a", f"orders:{topic}-{n}"
        for name in (f"orders:{topic}-{n}", f"other-{topic}-{n}"):
            assert call(speak, "root", "PUT", PATH + name, edge(source, dest)).status == 201
        hidden = edge(source, f"hidden-{topic}-{n}")
        call(speak, "root", "PUT", f"{PATH}orders:{topic}-{n}-x", hidden)
    seen: list[str] = []
    cursor = ""
    while True:
        path = f"/v0/routers?source=orders:{topic}-a&page_size=2&cursor={cursor}"
        page = call(speak, "mine-reader", "GET", path).json
        assert len(page["routers"]) == 2
        seen += [entry["router"] for entry in page["routers"]]
        if "next_cursor" not in page:
            break
        cursor = page["next_cursor"]
    assert seen == [f"orders:{topic}-{n}" for n in range(4)]
    everything = call(speak, "root", "GET", f"/v0/routers?source=orders:{topic}-a").json
    assert len(everything["routers"]) == 12


def test_refusals_do_not_name_what_is_not_the_keys_own(speak, topic) -> None:
    """§1.7h: a second source and a circle are told without names outside the key's prefixes."""
    mine = [f"orders:{topic}-{end}" for end in "abc"]
    secret = [f"secret-{topic}-{end}" for end in "xy"]
    for number, (source, dest) in enumerate(
        [(secret[0], mine[0]), (mine[1], secret[1]), (secret[1], mine[2])]
    ):
        path = f"{PATH}secret-{topic}-r{number}"
        assert call(speak, "root", "PUT", path, edge(source, dest)).status == 201
    path = f"{PATH}orders:{topic}"
    refused = call(speak, "mine", "PUT", path, edge(mine[1], mine[0]))
    assert code(refused) == (409, "topic_exists_incompatible")
    assert refused.error["detail"] == {"topic": mine[0], "reason": "router_dest_fan_in"}
    assert "by another router" in refused.error["message"]
    circle = call(speak, "mine", "PUT", path, edge(mine[2], mine[1]))
    assert code(circle) == (409, "router_cycle")
    assert circle.error["detail"] == {"cycle": [mine[2], mine[1], mine[2]], "others": 1}
    for reply in (refused, circle):
        assert b"secret" not in reply.body
    told = call(speak, "root", "PUT", path, edge(mine[1], mine[0]))
    assert f"{secret[0]}" in told.error["message"]
    told = call(speak, "root", "PUT", path, edge(mine[2], mine[1]))
    assert told.error["detail"] == {"cycle": [mine[2], mine[1], secret[1], mine[2]]}


@pytest.mark.parametrize("place", ["source", "dest"])
def test_a_topic_of_foreign_routers_is_not_deleted(speak, topic, place) -> None:
    """§1.7h, §3.4c: a key with prefixes ends no router that is not its own."""
    own, other = f"orders:{topic}", f"secret-{topic}"
    source, dest = (own, other) if place == "source" else (other, own)
    assert call(speak, "root", "PUT", f"{PATH}secret-{topic}", edge(source, dest)).status == 201
    reply = call(speak, "mine", "DELETE", f"/v0/topics/{own}")
    assert code(reply) == (409, "topic_in_use")
    assert reply.error["detail"] == {"topic": own, "routers": 1}
    assert "another router uses" in reply.error["message"] and b"secret" not in reply.body
    append = {"records": [{"data": 1}]}
    assert call(speak, "root", "POST", f"/v0/topics/{source}", append).status == 200
    copied = call(speak, "root", "GET", f"/v0/topics/{dest}").json
    assert copied["head_seq"] == 1
    done = call(speak, "root", "DELETE", f"/v0/topics/{own}").json
    assert done["routers_removed"] == [f"secret-{topic}"]


def test_the_most_routers(speak_to, topic) -> None:
    """§1.9: N and no more under a race; what is refused has made no topic."""
    speak = speak_to(max_routers=5)
    names = [f"{topic}-{n}" for n in range(20)]

    def create(name: str):
        return speak("PUT", PATH + name, edge(f"{name}-a", f"{name}-b"))

    with ThreadPoolExecutor(16) as pool:
        replies = dict(zip(names, pool.map(create, names), strict=True))
    created = [name for name, reply in replies.items() if reply.status == 201]
    assert len(created) == 5
    for name, reply in replies.items():
        if name in created:
            continue
        assert code(reply) == (429, "throttled")
        assert reply.error["detail"] == {"limit": "max_routers", "max": 5}
        assert reply.headers["retry-after"] == "1"
        for end in "ab":
            assert speak("GET", f"/v0/topics/{name}-{end}").status == 404
    first = created[0]
    assert create(first).status == 200  # a change always works
    # §6.1: re-point and fan-in are told before the cap, a circle after it.
    refused = "topic_exists_incompatible"
    speak.refused(409, refused, "PUT", PATH + first, edge(f"{first}-a", "else"))
    speak.refused(409, refused, "PUT", PATH + "new", edge("else", f"{first}-b"))
    speak.refused(429, "throttled", "PUT", PATH + "new", edge(f"{first}-b", f"{first}-a"))
    for name in created:
        speak.ok("DELETE", PATH + name)
    assert create("another").status == 201
    speak.ok("DELETE", PATH + "another")


def test_the_most_topics(speak_to) -> None:
    """§1.9: a router that needs a topic too many is refused, and makes none."""
    speak = speak_to(max_topics=2)
    speak.ok("PUT", "/v0/topics/one")
    detail = speak.refused(429, "throttled", "PUT", PATH + "r", edge("two", "three"))
    assert detail == {"limit": "max_topics", "max": 2}
    assert [entry["topic"] for entry in speak.ok("GET", "/v0/topics")["topics"]] == ["one"]
    assert speak("PUT", PATH + "r", edge("one", "two")).status == 201
    assert speak("PUT", PATH + "s", edge("one", "two")).status == 201
    for path in (PATH + "r", PATH + "s", "/v0/topics/one", "/v0/topics/two"):
        speak.ok("DELETE", path)
