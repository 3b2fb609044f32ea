"""Watchers that come and go while topics are written, trimmed, deleted and made anew.

The rule: whatever a watcher has not seen is in a gap it was told of, or was deleted by somebody who
asked for it; nothing comes twice to who sends the last id; what comes is what was written.
"""

from __future__ import annotations

import base64
import json
import random
import threading
from typing import Any, NamedTuple

import pytest

from tests.support.seqs import json_seqs

SETTINGS = {"variables": {"HEADRACE_TEST_MIN_HEARTBEAT_MS": "20"}}
ROUNDS = 150
CAP = 5


def id_of(event: Any) -> dict[str, Any]:
    padded = event.id + "=" * (-len(event.id) % 4)
    return json.loads(base64.urlsafe_b64decode(padded))


class Instance(NamedTuple):
    """A topic from its creation to its end."""

    name: str
    epoch: int


class Traffic(threading.Thread):
    """Appends, deletes and new topics, and the truth about them."""

    def __init__(self, speak: Any, names: list[str], seed: int) -> None:
        super().__init__()
        self._speak = speak
        self._names = names
        self._random = random.Random(seed)
        self.written: dict[Instance, dict[int, str]] = {}
        self.deleted_to: dict[Instance, int] = {}
        self.heads: dict[str, tuple[int, int]] = {}

    def run(self) -> None:
        for number in range(ROUNDS):
            name = self._random.choice(self._names)
            lot = self._random.random()
            if lot < 0.05:
                self._speak.ok("DELETE", f"/v0/topics/{name}")
            elif lot < 0.15:
                self._trim(name)
            else:
                self._append(name, number)
        for name in self._names:
            self._append(name, ROUNDS)
            state = self._speak.state(name)
            self.heads[name] = state["epoch"], state["head_seq"]

    def _append(self, name: str, number: int) -> None:
        values = [f"{number}-{n}" for n in range(self._random.choice([1, 2, 12]))]
        config = {"cap_records": CAP if name.endswith("0") else 0}
        answer = self._speak.append(name, *values, config=config)
        written = self.written.setdefault(Instance(name, answer["epoch"]), {})
        written.update(enumerate(values, start=answer["first_seq"]))

    def _trim(self, name: str) -> None:
        reply = self._speak("GET", f"/v0/topics/{name}?touch=false")
        if reply.status == 200 and reply.json["head_seq"]:
            last = reply.json["head_seq"] // 2
            body = {"before_seq": last + 1}
            self._speak.ok("POST", f"/v0/topics/{name}/delete", body)
            self.deleted_to[Instance(name, reply.json["epoch"])] = last


class View:
    """What one watcher has seen."""

    def __init__(self) -> None:
        self.seen: dict[Instance, dict[int, str]] = {}
        self.gaps: dict[Instance, list[tuple[int, int]]] = {}
        self.places: dict[str, tuple[int, int]] = {}
        self.last_id = ""

    def take(self, event: Any) -> None:
        self.last_id = event.id
        name, place = event.data["topic"], id_of(event)
        if event.event == "topic-deleted":
            assert name not in place["$e"]
            self.places.pop(name, None)
            return
        instance = Instance(name, place["$e"][name])
        if event.event == "tombstone":
            gap = event.data["gap_from"], event.data["gap_to"]
            self.gaps.setdefault(instance, []).append(gap)
        if event.event == "record":
            seen = self.seen.setdefault(instance, {})
            before = max(seen, default=0)
            for record in event.data["records"]:
                assert record["$seq"] > before, "twice, or in the wrong order"
                before = record["$seq"]
                seen[before] = record["data"]
            assert event.data["to_seq"] == place[name] >= before
        self.places[name] = place["$e"][name], place[name]

    def is_at(self, heads: dict[str, tuple[int, int]]) -> bool:
        """Whether it has seen all that there is of what it still follows."""
        return all(heads[name] == place for name, place in self.places.items())

    def check(self, traffic: Traffic) -> None:
        for instance, seen in self.seen.items():
            written = traffic.written[instance]
            assert seen.items() <= written.items()
            gaps = self.gaps.get(instance, [])
            deleted_to = traffic.deleted_to.get(instance, 0)
            for seq in range(1, max(seen)):
                told = any(first <= seq <= last for first, last in gaps)
                assert seq in seen or told or seq <= deleted_to, (instance, seq, gaps)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("pattern", [True, False])
def test_watchers_that_come_back_miss_nothing(speak, topic, seed, pattern) -> None:
    """§7.3, §7.4, K2: with the last id, at any moment, however much was written meanwhile."""
    names = [f"{topic}:{n}" for n in range(4)]
    traffic = Traffic(speak, names, seed)
    for name in names:
        traffic._append(name, -1)
    followed = {f"{topic}:*": {}} if pattern else {name: {} for name in names}
    body = {"topics": followed, "heartbeat_ms": 20, "limit": 3}
    url = speak.ok("POST", "/v0/watch", body)["stream_url"]
    lot, view = random.Random(seed), View()
    traffic.start()
    while traffic.is_alive() or not view.is_at(traffic.heads):
        headers = {"last_event_id": view.last_id} if view.last_id else {}
        with speak.stream(url, **headers) as stream:
            if stream.status == 404:
                break  # all topics were gone at once, and the session with them
            for event in stream.events():
                if event.id:
                    view.take(event)
                # Who has no id yet would go on from where the server is.
                if view.last_id and lot.random() < 0.1:
                    break
    traffic.join()
    assert pattern <= (len(view.places) == len(names))
    view.check(traffic)


def test_an_end_that_did_not_arrive_is_told_again(speak, topic) -> None:
    """§7.4: an id that still has a topic says that its end was not heard of."""
    gone, other = f"{topic}-gone", f"{topic}-other"
    speak.append(gone, 1)
    speak.append(other, 1)
    url = speak.ok("POST", "/v0/watch", {"topics": {gone: {}, other: {}}})["stream_url"]
    with speak.stream(url) as stream:
        before = stream.until("caught-up", topic=other)[-1].id
        speak.ok("DELETE", f"/v0/topics/{gone}")
        told = stream.next("topic-deleted").id
    with speak.stream(url, last_event_id=before) as stream:
        assert stream.next("topic-deleted").data["topic"] == gone
    with speak.stream(url, last_event_id=told) as stream:
        assert [event.event for event in stream.until("caught-up")] == ["retry", "caught-up"]


def test_a_new_session_goes_on_from_an_id(speak, topic) -> None:
    """§7.3: the `cursor` of the body; it beats where the topics say to begin."""
    speak.append(topic, 1, 2, 3)
    cursor = base64.urlsafe_b64encode(json.dumps({topic: 2}).encode()).decode().rstrip("=")
    for start in ({}, {"tail": True}, {"from_seq": 1}):
        answer = speak.ok("POST", "/v0/watch", {"topics": {topic: start}, "cursor": cursor})
        assert answer["topics"][topic]["from_seq"] == 2
        with speak.stream(answer["stream_url"]) as stream:
            assert json_seqs(stream.next("record").data) == [3]
    body = {"topics": {topic: {}}, "cursor": "!"}
    speak.refused(400, "invalid_request", "POST", "/v0/watch", body)
