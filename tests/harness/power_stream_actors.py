"""Actors that ask things of a server whose machine loses power: Durable Streams, and S2."""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import quote

from headrace.client import Response
from tests.harness.events import Violation
from tests.harness.power_actors import Actor, Lost, difference
from tests.harness.power_history import History, State
from tests.support.stream_http_calls import JSON, PREFIX

STREAMS_MAX: Final = 12  # of one actor, that are there at once
GONE: Final = (404, 410)
TRIM_BYTES: Final = 8


class _HttpActor(Actor):
    """Makes calls by plain HTTP."""

    def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> Response:
        data = b"" if body is None else json.dumps(body).encode()
        given = {"content-type": JSON} if body is not None else {}
        return self.client.request(method, path, headers={**given, **(headers or {})}, body=data)

    def insist(self, wanted: tuple[int, ...], answer: Response) -> Response:
        if answer.status not in wanted:
            raise Lost(f"{self.name}: {answer.status} {answer.body!r}")
        return answer


class DurableStreamsActor(_HttpActor):
    """JSON streams with a numbered producer: appended to, forked, closed, deleted."""

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name, seed)
        # By path: the messages, whether it is closed, the number of the producer's next append.
        self.history = History({})
        self._streams: dict[str, dict[str, Any]] = {}
        self._last: tuple[str, int, list[str]] | None = None  # an append, to be sent again

    def step(self) -> None:
        kind, paths = self.chance.random(), sorted(self._streams)
        if not paths or (kind < 0.08 and len(paths) < STREAMS_MAX):
            self._create(f"{self.name}/{self.life}-{self.steps}")
            return
        path = self.chance.choice(paths)
        if kind < 0.14 and len(paths) < STREAMS_MAX:
            self._fork(path, f"{self.name}/{self.life}-{self.steps}")
        elif kind < 0.17 or (kind < 0.25 and len(paths) == STREAMS_MAX):
            self._change("DELETE", path, (204,), lambda state: state.pop(path, None))
        elif self._streams[path]["closed"]:
            self._refused(path)
        elif kind < 0.21:
            closing = {"stream-closed": "true"}
            self._change(
                "POST", path, (204,), lambda state: state[path].update(closed=True), closing
            )
        else:
            self._append(path)

    def _change(
        self, method: str, path: str, wanted: tuple[int, ...], change: Any,
        headers: dict[str, str] | None = None, body: object = None,
    ) -> None:  # fmt: skip
        self.history.begin(change)
        self.insist(wanted, self.ask(method, PREFIX + path, body, headers))
        self.history.done()
        change(self._streams)

    def _create(self, path: str) -> None:
        made = {"messages": [], "closed": False, "next": 0}
        self._change(
            "PUT", path, (201,), lambda state: state.update({path: {**made, "messages": []}}),
            {"content-type": JSON},
        )  # fmt: skip

    def _fork(self, source: str, path: str) -> None:
        def change(state: State) -> None:
            messages = list(state[source]["messages"])
            state[path] = {"messages": messages, "closed": False, "next": 0}

        self._change("PUT", path, (201,), change, {"stream-forked-from": PREFIX + source})

    def _append(self, path: str) -> None:
        texts, number = self.texts(5), self._streams[path]["next"]

        def change(state: State) -> None:
            state[path]["messages"] += texts
            state[path]["next"] += 1

        self._last = (path, number, texts)
        self._change("POST", path, (200,), change, self._numbered(number), texts)

    def _numbered(self, number: int) -> dict[str, str]:
        return {"producer-id": self.name, "producer-epoch": "1", "producer-seq": str(number)}

    def _refused(self, path: str) -> None:
        answer = self.ask("POST", PREFIX + path, ["late"])
        if answer.status in (200, 204):
            raise Violation(f"{path} is closed, and takes an append")
        self.insist((409,), answer)

    def check(self) -> int:
        found: dict[str, tuple[list[str], bool]] = {}
        listed = [one.topic for one in self.client.topics(f"ds:{self.name}/")]
        paths = {topic.removeprefix("ds:") for topic in listed} | self.history.base.keys()
        for path in sorted(paths | self._streams.keys()):
            one = self._read(path)
            if one is not None:
                found[path] = one

        def compare(state: State) -> str | None:
            due = {path: (one["messages"], one["closed"]) for path, one in state.items()}
            if found == due:
                return None
            return difference(found, due)[:2_000]

        self.history.judge(compare)
        self._streams = self.history.base
        self._repeat()
        # The model that steps change and the one that is judged are two again.
        self._streams = {
            path: {**one, "messages": list(one["messages"])}
            for path, one in self.history.base.items()
        }
        return sum(len(messages) for messages, _ in found.values())

    def _read(self, path: str) -> tuple[list[str], bool] | None:
        offset, messages = "-1", []
        while True:
            answer = self.ask("GET", f"{PREFIX}{path}?offset={offset}")
            if answer.status in GONE:
                return None
            self.insist((200,), answer)
            messages += json.loads(answer.body)
            offset = answer.headers["stream-next-offset"]
            if "stream-up-to-date" in answer.headers:
                return messages, answer.headers.get("stream-closed") == "true"

    def _repeat(self) -> None:
        """The producer's last append, again: it is stored once."""
        if self._last is None:
            return
        path, number, texts = self._last
        self._last = None
        stream = self.history.base.get(path)
        if stream is None or stream["closed"]:
            return
        known = number < stream["next"]
        answer = self.ask("POST", PREFIX + path, texts, self._numbered(number))
        if answer.status != (204 if known else 200):
            raise Violation(f"append {number} to {path} again: {answer.status}, stored: {known}")
        if not known:
            stream["messages"] += texts
            stream["next"] += 1


class S2Actor(_HttpActor):
    """Streams of a basin: appended to under fences and conditions, changed, trimmed, deleted."""

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name, seed)
        self.basin = f"basin-{name}"
        # By stream: its records by number, its tail, its fencing token, its age, its trim.
        self.history = History({})
        self._streams: dict[str, dict[str, Any]] = {}
        self._created = False

    def send(self, method: str, path: str, body: object = None) -> Response:
        return self.ask(method, f"/v1/{path}", body, {"s2-basin": self.basin})

    def step(self) -> None:
        if not self._created:
            self.insist((200, 201), self.ask("PUT", f"/v1/basins/{self.basin}", {}))
            self._created = True
        kind, names = self.chance.random(), sorted(self._streams)
        if not names or (kind < 0.06 and len(names) < STREAMS_MAX):
            self._create(f"s{self.life}-{self.steps}")
            return
        name = self.chance.choice(names)
        if kind < 0.08 or (kind < 0.2 and len(names) == STREAMS_MAX):
            self._change(
                "DELETE", f"streams/{name}", lambda state: state.pop(name, None), None, 202
            )
        elif kind < 0.14:
            age = self.chance.randrange(100_000, 1_000_000)
            self._change(
                "PATCH", f"streams/{name}", lambda state: state[name].update(age=age),
                {"retention_policy": {"age": age}},
            )  # fmt: skip
        elif kind < 0.2:
            self._fence(name)
        elif kind < 0.24:
            self._trim(name)
        else:
            self._append(name, [{"body": text} for text in self.texts(6)])

    def _change(
        self, method: str, path: str, change: Any, body: object = None, wanted: int = 200
    ) -> None:
        self.history.begin(change)
        self.insist((wanted,), self.send(method, path, body))
        self.history.done()
        change(self._streams)

    def _create(self, name: str) -> None:
        def change(state: State) -> None:
            state[name] = {"records": {}, "tail": 0, "token": "", "age": 604_800, "trim": 0}

        age = {"retention_policy": {"age": 604_800}}
        self._change("POST", "streams", change, {"stream": name, "config": age}, 201)

    def _append(self, name: str, records: list[dict[str, Any]], **effect: object) -> None:
        stream = self._streams[name]
        first, token = stream["tail"], stream["token"]
        bodies = [record["body"] for record in records]

        def change(state: State) -> None:
            own = state[name]
            own["records"].update(enumerate(bodies, first))
            own["tail"] = first + len(bodies)
            own.update(effect)

        body = {"records": records, "match_seq_num": first, "fencing_token": token}
        self._change("POST", f"streams/{name}/records", change, body)

    def _fence(self, name: str) -> None:
        token = f"t{self.life}-{self.steps}"
        self._append(name, [{"headers": [["", "fence"]], "body": token}], token=token)

    def _trim(self, name: str) -> None:
        """To a number in eight bytes that are text."""
        stream = self._streams[name]
        to = self.chance.randrange(stream["trim"], stream["tail"] + 1)
        if to >= 128:  # would be no text of eight bytes
            return
        text = to.to_bytes(TRIM_BYTES, "big").decode()
        self._append(name, [{"headers": [["", "trim"]], "body": text}], trim=to)

    def check(self) -> int:
        listed = self.send("GET", "streams")
        if listed.status == 404 and not self._created:
            return 0
        names = [
            one["name"]
            for one in json.loads(self.insist((200,), listed).body)["streams"]
            if one.get("deleted_at") is None
        ]
        self._created = True
        read = {name: self._read(name) for name in names}
        found = {name: one for name, one in read.items() if one is not None}

        def compare(state: State) -> str | None:
            if found.keys() != state.keys():
                return f"there are {sorted(found)}, not {sorted(state)}"
            for name, (records, tail, age) in found.items():
                own = state[name]
                if (tail, age) != (own["tail"], own["age"]):
                    return f"{name}: tail, age are {(tail, age)}, not {(own['tail'], own['age'])}"
                trimmed = {seq: own["records"][seq] for seq in own["records"] if seq < own["trim"]}
                late = {seq: body for seq, body in records.items() if seq < own["trim"]}
                if not late.items() <= trimmed.items():
                    return f"{name}: {difference(late, trimmed)}"
                left = {seq: body for seq, body in records.items() if seq >= own["trim"]}
                due = {seq: body for seq, body in own["records"].items() if seq >= own["trim"]}
                if left != due:
                    return f"{name}: {difference(left, due)}"
            return None

        self.history.judge(compare)
        for name, own in self.history.base.items():
            self._check_fence(name, own["token"])
        self._streams = {
            name: {**own, "records": dict(own["records"])}
            for name, own in self.history.base.items()
        }
        return sum(len(records) for records, _, _ in found.values())

    def _read(self, name: str) -> tuple[dict[int, str], int, int] | None:
        quoted = quote(name, safe="")
        tail_answer = self.send("GET", f"streams/{quoted}/records/tail")
        if tail_answer.status in (404, 409):  # deleted, and perhaps not gone yet
            return None
        tail = json.loads(self.insist((200,), tail_answer).body)["tail"]["seq_num"]
        config = json.loads(self.insist((200,), self.send("GET", f"streams/{quoted}")).body)
        records: dict[int, str] = {}
        at = 0
        while at < tail:
            path = f"streams/{quoted}/records?seq_num={at}&clamp=true&count=1000"
            answer = self.insist((200,), self.send("GET", path))
            page = json.loads(answer.body)["records"]
            if not page:
                break
            records.update({record["seq_num"]: record["body"] for record in page})
            at = page[-1]["seq_num"] + 1
        return records, tail, config["retention_policy"]["age"]

    def _check_fence(self, name: str, token: str) -> None:
        body = {"records": [{"body": "no"}], "fencing_token": "of nobody"}
        answer = self.send("POST", f"streams/{name}/records", body)
        told = json.loads(answer.body)
        if answer.status != 412 or told.get("fencing_token_mismatch") != token:
            raise Violation(f"{name} has the token {token!r}, and says {answer.status} {told}")
