"""Routers over the wire: put, look, list, delete (native §6.1 to §6.4)."""

from __future__ import annotations

from base64 import b64encode
from itertools import pairwise
from urllib.parse import quote

import pytest

DEFAULTS = {
    "preserve_node": True,
    "preserve_tag": True,
    "filter": None,
    "allow_cycle": False,
    "guarantee": "at_least_once",
}
RECORD = {"records": [{"data": 1}]}


def route(speak, name: str, source: str, dest: str, **options: object):
    """The JSON of a router that was put."""
    body = {"source": source, "dest": dest, **options}
    return speak.ok("PUT", f"/v0/routers/{quote(name, safe='')}", body)


def router(speak, name: str):
    return speak.ok("GET", f"/v0/routers/{quote(name, safe='')}")


def is_gone(speak, topic: str) -> bool:
    return speak("GET", f"/v0/topics/{topic}").status == 404


def without_performance(answer: dict) -> dict:
    assert isinstance(answer.pop("performance")["server_total_ms"], float)
    return answer


# §6.1: creating and changing


def test_a_put_creates_with_the_exact_defaults(speak, topic) -> None:
    """§6.1: 201 and every field; both topics are made; a second put is 200."""
    body = {"source": f"{topic}-a", "dest": f"{topic}-b"}
    reply = speak("PUT", f"/v0/routers/{topic}", body)
    assert reply.status == 201
    assert "server-timing" in reply.headers
    said = {"router": topic, "created": True, **body, **DEFAULTS}
    assert without_performance(reply.json) == said
    assert list(reply.json) == [
        "router", "created", "source", "dest", "preserve_node", "preserve_tag", "filter",
        "allow_cycle", "guarantee", "performance",
    ]  # fmt: skip
    assert speak.state(f"{topic}-a")["head_seq"] == speak.state(f"{topic}-b")["head_seq"] == 0
    again = speak("PUT", f"/v0/routers/{topic}", body)
    assert again.status == 200
    assert without_performance(again.json) == {**said, "created": False}


def test_every_option_is_echoed_and_stored(speak, topic) -> None:
    """§6.1: what was sent; the filter as three values. §6.2: the same fields, and the total."""
    sent = {
        "source": f"{topic}-a",
        "dest": f"{topic}-b",
        "preserve_node": False,
        "preserve_tag": False,
        "create_dest": True,
        "filter": ["tag", "Glob", "chat:*"],
        "allow_cycle": True,
        "guarantee": "exactly_once",
    }
    said = without_performance(speak.ok("PUT", f"/v0/routers/{topic}", sent))
    shown = {k: v for k, v in sent.items() if k != "create_dest"}
    assert said == {"router": topic, "created": True, **shown}
    found = without_performance(router(speak, topic))
    assert found == {"router": topic, **shown, "forwarded_total": 0}


@pytest.mark.parametrize(
    ("sent", "echoed"),
    [
        ("order-1", ["tag", "Eq", "order-1"]),
        ("order-*", ["tag", "Glob", "order-*"]),
        (["tag", "Eq", "a*"], ["tag", "Eq", "a*"]),
        (["tag", "Glob", "*"], ["tag", "Glob", "*"]),
        (None, None),
    ],
)
def test_a_filter_has_the_grammar_of_a_delete(speak, topic, sent, echoed) -> None:
    """§6.1: same grammar as `match`."""
    assert route(speak, topic, f"{topic}-a", f"{topic}-b", filter=sent)["filter"] == echoed


def test_null_is_absent_and_unknown_fields_are_ignored(speak, topic) -> None:
    """§1.1."""
    options = dict.fromkeys([*DEFAULTS, "create_dest", "backfill"])
    said = route(speak, topic, f"{topic}-a", f"{topic}-b", later={"x": 1}, **options)
    assert {name: said[name] for name in DEFAULTS} == DEFAULTS


def test_the_convention_of_names(speak, topic) -> None:
    """§1.5: `src->dst`, percent-encoded in a path, is a name of a router."""
    name = f"{topic}-a->{topic}-b"
    assert route(speak, name, f"{topic}-a", f"{topic}-b")["router"] == name
    assert router(speak, name)["router"] == name
    assert speak.ok("DELETE", f"/v0/routers/{topic}-a-%3E{topic}-b")["deleted"] is True
    assert route(speak, f"{topic}." + "x" * (254 - len(topic)), f"{topic}-a", f"{topic}-b")


@pytest.mark.parametrize("name", [">a", "-a", "a b", "a/b", "é", "a" * 256, "a\x00"])
def test_a_bad_name(speak, topic, name) -> None:
    """§1.5: 400 where a router is created; elsewhere it is only absent."""
    path = f"/v0/routers/{quote(name, safe='')}"
    body = {"source": f"{topic}-a", "dest": f"{topic}-b"}
    speak.refused(400, "invalid_request", "PUT", path, body)
    assert is_gone(speak, f"{topic}-a")
    assert speak.refused(404, "router_not_found", "GET", path) == {"router": name}
    assert speak.ok("DELETE", path)["deleted"] is False


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"source": "a-a"},
        {"dest": "a-a"},
        {"source": None, "dest": "a-a"},
        {"source": "a-a", "dest": 1},
        {"source": "a-a", "dest": "a-a"},
        {"source": "a a", "dest": "a-b"},
        {"source": "a-a", "dest": "a a"},
        {"source": "", "dest": "a-b"},
        {"source": "a-a", "dest": "x" * 256},
        {"source": "ds:a", "dest": "a-b"},
        {"source": "a-a", "dest": "s2:b"},
        {"source": "a-a>b", "dest": "a-b"},
        {"source": "a-a", "dest": "a-b", "preserve_node": 1},
        {"source": "a-a", "dest": "a-b", "preserve_tag": "yes"},
        {"source": "a-a", "dest": "a-b", "create_dest": "no"},
        {"source": "a-a", "dest": "a-b", "allow_cycle": 0},
        {"source": "a-a", "dest": "a-b", "guarantee": "at_most_once"},
        {"source": "a-a", "dest": "a-b", "filter": 7},
        {"source": "a-a", "dest": "a-b", "filter": ["tag", "Glob", "x"]},
        {"source": "a-a", "dest": "a-b", "filter": ["node", "Eq", "x"]},
        {"source": "a-a", "dest": "a-b", "filter": ["tag", "Eq"]},
        {"source": "a-a", "dest": "a-b", "filter": "x" * 257},
        {"source": "a-a", "dest": "a-b", "backfill": -1},
        {"source": "a-a", "dest": "a-b", "backfill": 1.5},
        {"source": "a-a", "dest": "a-b", "backfill": "all"},
        {"source": "a-a", "dest": "a-b", "backfill": 1},  # beyond the head
        {"source": "a-a", "dest": "a-b", "backfill": 1 << 64},
        [],
        b"{",
        b"\xff",
    ],
)
def test_a_bad_body_leaves_nothing_behind(speak, topic, body) -> None:
    """§6.1: 400; no router, no topics."""
    headers = {"content-type": "application/json"}
    reply = speak("PUT", f"/v0/routers/{topic}", body, headers)
    assert (reply.status, reply.error["code"]) == (400, "invalid_request")
    assert is_gone(speak, "a-a") and is_gone(speak, "a-b")
    speak.refused(404, "router_not_found", "GET", f"/v0/routers/{topic}")


def test_the_content_type(speak, topic) -> None:
    """§1.1: 415 without JSON's, also for an empty body; an empty JSON body is 400."""
    path = f"/v0/routers/{topic}"
    body = b'{"source":"c-a","dest":"c-b"}'
    speak.refused(415, "unsupported_media_type", "PUT", path)
    speak.refused(415, "unsupported_media_type", "PUT", path, body, content_type="text/plain")
    speak.refused(400, "invalid_request", "PUT", path, b"", content_type="application/json")
    form = "application/x-www-form-urlencoded"
    speak.ok("PUT", path, body, content_type=form)


def test_other_methods(speak, topic) -> None:
    """§1.3: 405 in the envelope, with what is allowed; HEAD is answered as GET is."""
    reply = speak("POST", f"/v0/routers/{topic}", {})
    assert (reply.status, reply.error["code"]) == (405, "method_not_allowed")
    assert reply.headers["allow"] == "DELETE, GET, PUT, HEAD"
    speak.refused(405, "method_not_allowed", "PUT", "/v0/routers", {})
    route(speak, topic, f"{topic}-a", f"{topic}-b")
    head = speak("HEAD", f"/v0/routers/{topic}")
    assert (head.status, head.body) == (200, b"")


def test_create_dest(speak, topic) -> None:
    """§6.1: false and no dest is 404 with its detail, and no source is made; a source always is."""
    path = f"/v0/routers/{topic}"
    body = {"source": f"{topic}-a", "dest": f"{topic}-b", "create_dest": False}
    detail = speak.refused(404, "topic_not_found", "PUT", path, body)
    assert detail == {"topic": f"{topic}-b"}
    assert is_gone(speak, f"{topic}-a") and is_gone(speak, f"{topic}-b")
    speak.ok("PUT", f"/v0/topics/{topic}-b")
    assert speak("PUT", path, body).status == 201
    assert speak.state(f"{topic}-a")["head_seq"] == 0


def test_a_dest_is_fed_from_one_source(speak, topic) -> None:
    """§6.1: fan-in is 409; two routers with the same source and dest are allowed."""
    a, b, c = (f"{topic}-{name}" for name in "abc")
    route(speak, topic, a, b)
    detail = speak.refused(
        409, "topic_exists_incompatible", "PUT", f"/v0/routers/{topic}-2", {"source": c, "dest": b}
    )
    assert detail == {"topic": b, "reason": "router_dest_fan_in"}
    assert is_gone(speak, c)
    speak.refused(404, "router_not_found", "GET", f"/v0/routers/{topic}-2")
    assert route(speak, f"{topic}-2", a, b)["created"] is True
    speak.append(a, 1)
    assert speak.state(b)["head_seq"] == 2


def test_a_router_is_not_pointed_elsewhere(speak, topic) -> None:
    """§6.1: another source or dest is 409; the other options are taken over."""
    a, b, c = (f"{topic}-{name}" for name in "abc")
    path = f"/v0/routers/{topic}"
    route(speak, topic, a, b)
    for body in ({"source": c, "dest": b}, {"source": a, "dest": c}, {"source": b, "dest": a}):
        detail = speak.refused(409, "topic_exists_incompatible", "PUT", path, body)
        assert detail == {
            "router": topic,
            "reason": "router_repoint_forbidden",
            "existing_source": a,
            "existing_dest": b,
        }
    assert is_gone(speak, c)
    said = route(speak, topic, a, b, preserve_tag=False, filter="x", guarantee="exactly_once")
    assert (said["preserve_tag"], said["filter"]) == (False, ["tag", "Eq", "x"])
    assert router(speak, topic)["guarantee"] == "exactly_once"
    # What is left out gets its default again.
    assert {k: v for k, v in route(speak, topic, a, b).items() if k in DEFAULTS} == DEFAULTS


def test_a_circle_is_refused(speak, topic) -> None:
    """§6.1: `cycle` begins and ends with the new source; `allow_cycle` skips the check."""
    a, b, c, d = (f"{topic}-{name}" for name in "abcd")
    route(speak, f"{topic}-1", a, b)
    route(speak, f"{topic}-2", b, c)
    path = f"/v0/routers/{topic}-3"
    body = {"source": c, "dest": a}
    assert speak.refused(409, "router_cycle", "PUT", path, body) == {"cycle": [c, a, b, c]}
    speak.refused(404, "router_not_found", "GET", path)
    assert speak("PUT", path, {**body, "allow_cycle": True}).status == 201
    # Only the flag of the router that is added matters, and its own old edge does not count.
    assert speak.refused(409, "router_cycle", "PUT", path, body)["cycle"] == [c, a, b, c]
    assert route(speak, f"{topic}-4", c, d)["created"] is True
    route(speak, f"{topic}-1", a, b, allow_cycle=True)


def test_the_order_of_the_checks(speak, topic) -> None:
    """§6.1: JSON, name, same topic, topic names, 404, fan-in, re-point, cycle."""
    a, b, c, d = (f"{topic}-{name}" for name in "abcd")
    route(speak, f"{topic}-1", a, b)
    route(speak, f"{topic}-2", c, d)
    path = f"/v0/routers/{topic}-1"
    both = speak.refused(
        409, "topic_exists_incompatible", "PUT", path, {"source": a, "dest": d}
    )  # a fan-in and another dest
    assert both["reason"] == "router_dest_fan_in"
    absent = {"source": a, "dest": f"{topic}-x", "create_dest": False}
    speak.refused(404, "topic_not_found", "PUT", path, absent)  # not: another dest
    speak.refused(400, "invalid_request", "PUT", "/v0/routers/no%20good", {**absent, "dest": "-"})
    again = {"source": b, "dest": a}  # another source, and a circle
    assert "existing_source" in speak.refused(409, "topic_exists_incompatible", "PUT", path, again)
    begun = {"source": b, "dest": a, "backfill": 9}  # a circle, and a bad start
    speak.refused(409, "router_cycle", "PUT", f"/v0/routers/{topic}-3", begun)


def test_it_starts_at_the_head_and_a_put_keeps_its_place(speak, topic) -> None:
    """§6.1: no backfill; a re-PUT keeps cursor and totals."""
    a, b = f"{topic}-a", f"{topic}-b"
    speak.append(a, 1, 2)
    route(speak, topic, a, b)
    assert speak.state(b)["head_seq"] == 0
    speak.append(a, 3)
    assert [r["data"] for r in speak.diff(b)["records"]] == [3]
    route(speak, topic, a, b, preserve_tag=False, backfill=True)
    assert router(speak, topic)["forwarded_total"] == 1
    speak.append(a, 4)
    assert [r["data"] for r in speak.diff(b)["records"]] == [3, 4]


@pytest.mark.parametrize(
    ("backfill", "copied"),
    [(True, [2, 3, 4]), (False, [4]), (0, [2, 3, 4]), (2, [3, 4]), (3, [4])],
)
def test_a_backfill(speak, topic, backfill, copied) -> None:
    """Ours: `true` begins with what the source holds, a number after that seq."""
    a, b = f"{topic}-a", f"{topic}-b"
    speak.append(a, 1, 2, 3)
    speak.ok("POST", f"/v0/topics/{a}/delete", {"before_seq": 2})
    route(speak, topic, a, b, backfill=backfill)
    speak.append(a, 4)
    page = speak.diff(b)
    assert [r["data"] for r in page["records"]] == copied
    assert page["tombstone"] is None
    assert router(speak, topic)["forwarded_total"] == len(copied)


# §6.2


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_look_has_the_current_total(speak, topic, durability) -> None:
    """§6.2: it drains first, whatever the class of the destination."""
    a, b = f"{topic}-a", f"{topic}-b"
    speak.ok("PUT", f"/v0/topics/{b}", {"durability": durability})
    route(speak, topic, a, b)
    for n in range(1, 6):
        speak.append(a, n)
        assert router(speak, topic)["forwarded_total"] == n


def test_a_state_has_what_routers_owe(speak, topic) -> None:
    """§3.2: it drains first, also along a chain, also where a sync has to be waited for."""
    names = [f"{topic}-{n}" for n in range(4)]
    for source, dest in pairwise(names):
        speak.ok("PUT", f"/v0/topics/{dest}", {"durability": "fsync"})
        route(speak, f"{source}->{dest}", source, dest)
    for n in range(1, 6):
        speak.append(names[0], n)
        assert speak.state(names[-1])["head_seq"] == n
        box = speak.ok("GET", f"/v0/boxes/{names[1]}")
        assert (box["box"], box["count"]) == (names[1], n)


# §6.3


def listed(speak, query: str) -> list[str]:
    return [entry["router"] for entry in speak.ok("GET", f"/v0/routers?{query}")["routers"]]


def test_a_list(speak, topic) -> None:
    """§6.3: by name, five fields each; by prefix, source and dest."""
    a, b, c = (f"{topic}-{name}" for name in "abc")
    route(speak, f"{topic}:2", a, b, guarantee="exactly_once")
    route(speak, f"{topic}:1", a, c)
    route(speak, f"{topic}:3", c, f"{topic}-d")
    speak.append(a, 1)
    assert router(speak, f"{topic}:2")["forwarded_total"] == 1
    found = without_performance(speak.ok("GET", f"/v0/routers?prefix={topic}:2"))
    assert found == {
        "routers": [
            {
                "router": f"{topic}:2",
                "source": a,
                "dest": b,
                "guarantee": "exactly_once",
                "forwarded_total": 1,
            }
        ]
    }
    assert listed(speak, f"prefix={topic}:") == [f"{topic}:{n}" for n in (1, 2, 3)]
    assert listed(speak, f"source={a}") == [f"{topic}:1", f"{topic}:2"]
    assert listed(speak, f"dest={c}") == [f"{topic}:1"]
    assert listed(speak, f"source={a}&dest={b}&prefix={topic}") == [f"{topic}:2"]
    assert listed(speak, f"source={a}&dest=nothing") == []
    assert listed(speak, f"prefix={topic}:&source=&dest=") == [f"{topic}:{n}" for n in (1, 2, 3)]


def test_pages_of_a_list(speak, topic) -> None:
    """§1.6, §1.8: pages by an opaque cursor, either alphabet; undecodable is 400."""
    names = [f"{topic}:{n}" for n in range(7)]
    for name in names:
        route(speak, name, f"{topic}-a", f"{topic}-b")
    seen, cursor = [], ""
    for size in (3, 3, 1):
        page = speak.ok("GET", f"/v0/routers?prefix={topic}:&page_size=3&cursor={cursor}")
        assert len(page["routers"]) == size
        seen += [entry["router"] for entry in page["routers"]]
        assert ("next_cursor" in page) == (len(seen) < 7)
        cursor = page.get("next_cursor", "")
    assert seen == names
    after = b64encode(b'{"after":"%s"}' % names[4].encode()).decode()
    assert listed(speak, f"prefix={topic}:&cursor={after}") == names[5:]
    assert listed(speak, f"prefix={topic}:&page_size=0") == names[:1]
    assert listed(speak, f"prefix={topic}:&page_size=many") == names
    for bad in ("%21%21", "abc", "e30"):
        speak.refused(400, "invalid_request", "GET", f"/v0/routers?cursor={bad}")


# §6.4


def test_a_delete(speak, topic) -> None:
    """§6.4: idempotent; copies stay, what was written before is copied, what comes later is not."""
    a, b = f"{topic}-a", f"{topic}-b"
    route(speak, topic, a, b)
    speak.append(a, 1)
    answer = without_performance(speak.ok("DELETE", f"/v0/routers/{topic}"))
    assert answer == {"router": topic, "deleted": True}
    speak.append(a, 2)
    assert [r["data"] for r in speak.diff(b)["records"]] == [1]
    assert speak.ok("DELETE", f"/v0/routers/{topic}")["deleted"] is False
    detail = speak.refused(404, "router_not_found", "GET", f"/v0/routers/{topic}")
    assert detail == {"router": topic}
    assert listed(speak, f"prefix={topic}") == []
    # The same name may go elsewhere now.
    assert route(speak, topic, b, a)["created"] is True


def test_a_topic_takes_its_routers_with_it(speak, topic) -> None:
    """§3.4: `routers_removed`, sorted, of the routers from and to it; a new topic has none."""
    a, b, c, d = (f"{topic}-{name}" for name in "abcd")
    route(speak, f"{topic}:2", a, b)
    route(speak, f"{topic}:1", b, c)
    route(speak, f"{topic}:3", b, d)
    route(speak, f"{topic}:4", a, f"{topic}-e")
    speak.append(a, 1)
    assert speak.state(c)["head_seq"] == 1
    gone = speak.ok("DELETE", f"/v0/topics/{b}")
    assert gone["routers_removed"] == [f"{topic}:{n}" for n in (1, 2, 3)]
    assert listed(speak, f"prefix={topic}") == [f"{topic}:4"]
    speak.append(b, 2)
    speak.append(a, 3)
    assert speak.state(c)["head_seq"] == 1
    assert speak.state(b)["head_seq"] == 1
    assert speak.ok("DELETE", f"/v0/topics/{b}")["routers_removed"] == []
    assert speak.ok("DELETE", f"/v0/boxes/{a}")["routers_removed"] == [f"{topic}:4"]
    assert route(speak, f"{topic}:1", f"{topic}-x", f"{topic}-y")["created"] is True


def test_an_unemptied_topic_keeps_its_routers(speak, topic) -> None:
    """§3.4: `if_empty` on a topic with records does nothing at all."""
    a, b = f"{topic}-a", f"{topic}-b"
    route(speak, topic, a, b)
    speak.append(a, 1)
    speak.refused(409, "topic_not_empty", "DELETE", f"/v0/topics/{a}?if_empty=true")
    speak.append(a, 2)
    assert router(speak, topic)["forwarded_total"] == 2


def test_a_router_whose_destination_is_full_says_so(speak, topic) -> None:
    source, dest = f"{topic}-a", f"{topic}-b"
    config = {"cap_records": 1, "discard": "reject"}
    speak.ok("PUT", f"/v0/topics/{dest}", config)
    speak.ok("PUT", f"/v0/routers/{topic}", {"source": source, "dest": dest})
    for number in range(2):
        speak.append(source, number)
        assert ("blocked" in router(speak, topic)) == (number == 1)
    listed = speak.ok("GET", f"/v0/routers?source={source}")["routers"]
    assert [row["blocked"] for row in listed] == [True]
    assert "takes no more" in listed[0]["reason"]
    figures = speak("GET", "/v0/metrics").body.decode().splitlines()
    assert "headrace_routers_blocked 0" not in figures
    speak.ok("POST", f"/v0/topics/{dest}/delete", {"before_seq": 2})
    assert "blocked" not in router(speak, topic)
