"""Pipelines over the wire: put, look, list, delete, restart; claims and reports of workers."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from websockets.sync.client import connect

from headrace.api.pipelines import PipelineReport
from headrace.cli.main import main
from headrace.client import AsyncClient, Client
from headrace.core.errors import CheckpointIncompatible, PipelineNotFound, SqlRefused

PATH = "/v0/pipelines"
KEPT = {
    "sources": [
        {
            "topic": "orders",
            "alias": None,
            "schema": None,
            "watermark": None,
            "unique_by": [],
            "start": "earliest",
            "max_records": None,
        }
    ],
    "dest": {"topic": "out", "table": None},
    "sql": "select seq from orders",
    "python": None,
    "trigger": None,
    "output_mode": "append",
    "checkpoint": "1",
    "on_error": "fail",
    "dead_letter": None,
}
BODY = {"sources": [{"topic": "orders"}], "dest": {"topic": "out"}, "sql": "select seq from orders"}


def put(speak, name: str, **fields: object):
    return speak.ok("PUT", f"{PATH}/{name}", {**BODY, **fields})


def settled(answer: dict) -> dict:
    assert isinstance(answer.pop("performance")["server_total_ms"], float)
    return answer


@pytest.fixture
def name(speak, topic: str) -> Iterator[str]:
    """A pipeline's name that no other test uses; it is gone afterwards."""
    yield topic
    for listed in speak.ok("GET", PATH)["pipelines"]:
        speak.ok("DELETE", f"{PATH}/{listed['pipeline']}")


# Declaring


def test_a_put_keeps_every_field(speak, name) -> None:
    reply = speak("PUT", f"{PATH}/{name}", BODY)
    assert reply.status == 201
    said = settled(reply.json)
    version = said.pop("version")
    assert said == {"pipeline": name, "created": True, "declaration": KEPT}
    again = speak("PUT", f"{PATH}/{name}", BODY)
    assert again.status == 200
    assert settled(again.json) == {**said, "created": False, "version": version}
    changed = put(speak, name, trigger="10s")
    assert changed["version"] > version and changed["declaration"]["trigger"] == "10s"
    shown = settled(speak.ok("GET", f"{PATH}/{name}"))
    assert shown == {
        "pipeline": name,
        "version": changed["version"],
        "state": "waiting",
        "worker": None,
        "restarts": 0,
        "declaration": {**KEPT, "trigger": "10s"},
        "progress": None,
    }
    restarted = settled(speak.ok("POST", f"{PATH}/{name}/restart"))
    assert restarted["version"] > changed["version"]
    assert settled(speak.ok("DELETE", f"{PATH}/{name}")) == {"pipeline": name, "deleted": True}
    assert speak.ok("DELETE", f"{PATH}/{name}")["deleted"] is False
    assert speak.refused(404, "pipeline_not_found", "GET", f"{PATH}/{name}") == {"pipeline": name}
    speak.refused(404, "pipeline_not_found", "POST", f"{PATH}/{name}/restart")


def test_null_is_absent_and_unknown_fields_are_ignored(speak, name) -> None:
    fields = dict.fromkeys(set(KEPT) - set(BODY))
    source = {**dict.fromkeys(KEPT["sources"][0]), "topic": "orders", "later": 1}
    said = put(speak, name, later=2, **fields, sources=[source])
    assert said["declaration"] == KEPT


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"sql": "select seq from other"}, "sql_refused"),
        ({"sql": "select"}, "sql_refused"),
        ({"sql": "drop table orders"}, "sql_refused"),
        ({"sql": None}, "invalid_request"),
        ({"sql": 1}, "invalid_request"),
        ({"sources": []}, "invalid_request"),
        ({"sources": None}, "invalid_request"),
        ({"dest": {"topic": "orders"}}, "invalid_request"),
        ({"dest": {"topic": "_pipelines"}}, "invalid_request"),
        ({"python": {"entry": "f"}}, "invalid_request"),
        ({"sql": None, "python": {"entry": "os.system('x')"}}, "invalid_request"),
        ({"output_mode": "sometimes"}, "invalid_request"),
        ({"checkpoint": "../x"}, "invalid_request"),
    ],
)
def test_what_is_refused_changes_nothing(speak, name, fields, code) -> None:
    speak.refused(400, code, "PUT", f"{PATH}/{name}", {**BODY, **fields})
    speak.refused(404, "pipeline_not_found", "GET", f"{PATH}/{name}")


def test_a_refusal_says_where(speak, name) -> None:
    sql = "select seq\nfrom orders\nwhere seq > from"
    detail = speak.refused(400, "sql_refused", "PUT", f"{PATH}/{name}", {**BODY, "sql": sql})
    assert detail == {"line": 3, "column": 13}
    speak.refused(400, "invalid_request", "PUT", f"{PATH}/a%20b", BODY)


def test_another_state_asks_for_another_checkpoint(speak, name) -> None:
    put(speak, name, sql="select tag, count(*) n from orders group by tag", output_mode="update")
    other = {**BODY, "sql": "select count(*) n from orders", "output_mode": "update"}
    detail = speak.refused(409, "checkpoint_incompatible", "PUT", f"{PATH}/{name}", other)
    assert detail == {"pipeline": name, "checkpoint": "1"}
    put(speak, name, **{**other, "checkpoint": "2"})


def test_pages(speak, name) -> None:
    for n in range(5):
        put(speak, f"{name}-{n}")
    page = speak.ok("GET", f"{PATH}?prefix={name}&page_size=2")
    assert [one["pipeline"] for one in page["pipelines"]] == [f"{name}-0", f"{name}-1"]
    assert page["pipelines"][0] == {
        "pipeline": f"{name}-0",
        "version": page["pipelines"][0]["version"],
        "state": "waiting",
        "worker": None,
        "sources": ["orders"],
        "dest": {"topic": "out", "table": None},
        "lag": None,
        "error": None,
    }
    cursor = page["next_cursor"]
    page = speak.ok("GET", f"{PATH}?prefix={name}&page_size=3&cursor={cursor}")
    assert [one["pipeline"] for one in page["pipelines"]] == [f"{name}-{n}" for n in (2, 3, 4)]
    assert "next_cursor" not in page


# Working


def test_a_worker_claims_reports_and_gives_back(speak, name) -> None:
    version = put(speak, name)["version"]
    (job,) = speak.ok("POST", PATH, {"node": "w1", "max": 5})["claimed"]
    assert (job["pipeline"], job["version"], job["declaration"]) == (name, version, KEPT)
    assert speak.ok("POST", PATH, {"node": "w2"})["claimed"] == []
    held = {"node": "w1", "lease_id": job["lease_id"], "version": version}
    assert speak.ok("GET", f"{PATH}/{name}")["state"] == "starting"
    said = {"state": "running", "batch": 3, "rows": 10, "rows_per_s": 2.5, "lag": 1}
    answer = settled(speak.ok("POST", f"{PATH}/{name}/progress", {**held, **said}))
    deadline = answer.pop("deadline")
    assert answer == {"pipeline": name, "held": True, "current": True}
    assert deadline >= job["deadline"]
    shown = speak.ok("GET", f"{PATH}/{name}")
    assert (shown["state"], shown["worker"]) == ("running", "w1")
    assert said.items() <= shown["progress"].items()
    (record,) = speak.diff("_pipelines.progress", last=1, include_tags=True)["records"]
    assert record["$tag"] == name
    assert record["data"] == shown["progress"]
    # Somebody else's report counts for nothing.
    other = speak.ok("POST", f"{PATH}/{name}/progress", {**held, "node": "w2", **said})
    assert (other["held"], other["deadline"]) == (False, 0)
    # A new version waits until the old one is given back.
    put(speak, name, trigger="1s")
    answer = speak.ok("POST", f"{PATH}/{name}/progress", held)
    assert (answer["held"], answer["current"]) == (True, False)
    assert speak.ok("POST", PATH, {"node": "w2"})["claimed"] == []
    assert speak.ok("POST", f"{PATH}/{name}/release", held)["released"] is True
    assert speak.ok("POST", f"{PATH}/{name}/release", held)["released"] is False
    claimed = []
    while not claimed:
        claimed = speak.ok("POST", PATH, {"node": "w2"})["claimed"]
    assert claimed[0]["declaration"]["trigger"] == "1s"
    speak.refused(400, "invalid_request", "POST", PATH, {"node": ""})
    for rest in ("progress", "release"):
        nameless = {**held, "lease_id": ""}  # a name alone is not enough: it can be read by all
        speak.refused(400, "invalid_request", "POST", f"{PATH}/{name}/{rest}", nameless)
    speak.refused(400, "invalid_request", "POST", f"{PATH}/{name}/progress", {"node": "w1"})
    nonsense = {**held, "state": "flying"}
    speak.refused(400, "invalid_request", "POST", f"{PATH}/{name}/progress", nonsense)


# Topics of the server itself


def test_nobody_else_writes_to_the_topics_of_pipelines(speak, name) -> None:
    """Every way to write, by every route that takes a topic's name; reading is allowed."""
    version = put(speak, name)["version"]
    before = speak.diff("_pipelines")["records"]
    held = {"node": "w", "seqs": [version]}
    for path in ("/v0/topics/_pipelines", "/v0/boxes/_pipelines"):
        for method, rest, body in [
            ("PUT", "", {}),
            ("DELETE", "", None),
            ("POST", "", {"records": [{"data": 1}]}),
            ("POST", "/delete", {"before_seq": 1 << 40}),
            ("POST", "/claim", {"node": "w"}),
            ("POST", "/ack", held),
            ("POST", "/nack", held),
            ("POST", "/extend", {**held, "lease_ms": 1000}),
            ("POST", "/redrive", {}),
        ]:
            speak.refused(403, "forbidden", method, path + rest, body)
        reply = speak("GET", f"{path}/work?node=w", headers={"accept": "text/event-stream"})
        assert (reply.status, reply.error["code"]) == (403, "forbidden")
    router = {"source": "orders", "dest": "_pipelines"}
    speak.refused(403, "forbidden", "PUT", f"/v0/routers/{name}", router)
    speak.refused(400, "invalid_request", "PUT", "/v0/topics/_mine", {})
    speak.refused(400, "invalid_request", "POST", "/v0/topics/_mine", {"records": [{"data": 1}]})
    letter = {"data": 1, "meta": {"$dead_letter_from": "_pipelines"}}
    speak.ok("POST", f"/v0/topics/{name}-dead", {"records": [letter]})
    speak("POST", f"/v0/topics/{name}-dead/redrive", {})
    assert speak.diff("_pipelines")["records"] == before
    assert speak.state("_pipelines")["config"]["leases_durable"] is True
    assert speak.ok("PUT", f"/v0/routers/{name}", {"source": "_pipelines", "dest": f"{name}-copy"})


def test_nor_over_a_websocket(server, speak, name) -> None:
    put(speak, name)
    head = speak.state("_pipelines")["head_seq"]
    with connect(f"ws://{server.address}/v0/ws", compression=None, proxy=None) as socket:
        command = {"op": "publish", "topic": "_pipelines", "records": [{"data": 1}]}
        socket.send(json.dumps(command))
        answer = json.loads(socket.recv(20))
    assert (answer["op"], answer["code"]) == ("error", "forbidden"), answer
    assert speak.state("_pipelines")["head_seq"] == head


# The client and the command


def test_the_client(server, speak, name) -> None:
    with Client(server.url) as client:
        made = client.put_pipeline(name, BODY)
        assert made.created and made.declaration == KEPT
        assert [one.pipeline for one in client.pipelines(name)] == [name]
        (job,) = client.claim_pipelines("w1", lease_ms=60_000)
        assert job.declaration == KEPT
        said = PipelineReport(state="running", batch=1, rows=5, lag=0)
        assert client.report_pipeline(job, "w1", 60_000, said).held
        state = client.pipeline(name)
        assert state.progress is not None
        assert (state.state, state.worker, state.progress.rows) == ("running", "w1", 5)
        assert client.release_pipeline(job, "w1").released
        assert client.restart_pipeline(name).version > made.version
        with pytest.raises(SqlRefused, match="line 1, column 15"):
            client.put_pipeline(name, {**BODY, "sql": "select * from nothing"})
        counted = {**BODY, "sql": "select count(*) from orders", "output_mode": "complete"}
        with pytest.raises(CheckpointIncompatible, match="another name as `checkpoint`"):
            client.put_pipeline(name, counted)
        assert client.delete_pipeline(name).deleted
        with pytest.raises(PipelineNotFound):
            client.pipeline(name)


async def look(url: str, name: str) -> list[str]:
    async with AsyncClient(url) as client:
        await client.put_pipeline(name, BODY)
        return [one.pipeline async for one in client.pipelines(name)]


def test_the_client_for_asyncio(server, speak, name) -> None:
    import asyncio

    assert asyncio.run(look(server.url, name)) == [name]


def test_the_command(server, speak, name, tmp_path, capsys) -> None:
    def run(*words: str) -> str:
        assert main(["pipelines", *words, "--url", server.url]) == 0
        return capsys.readouterr().out

    file = tmp_path / "p.toml"
    file.write_text(
        'trigger = "10s"\nsql = """\nselect seq\nfrom orders\n"""\n'
        '[dest]\ntopic = "out"\n[[sources]]\ntopic = "orders"\nwatermark = {delay = "1m"}\n'
    )
    assert run("put", name, str(file)).startswith(f"declared {name}, version ")
    as_json = tmp_path / "p.json"
    as_json.write_text(json.dumps(BODY))
    put_again = json.loads(run("put", name, str(as_json), "--json"))
    assert (put_again["created"], put_again["declaration"]) == (False, KEPT)
    assert json.loads(run("show", name, "--json"))["state"] == "waiting"
    shown = run("show", name)
    assert "state        waiting" in shown and shown.rstrip().endswith("select seq from orders")
    table = run("list").splitlines()
    assert table[0].split()[:3] == ["pipeline", "state", "worker"]
    assert table[1].split()[:2] == [name, "waiting"]
    listed = json.loads(run("list", name, "--json"))["pipelines"]
    assert [one["pipeline"] for one in listed] == [name]
    assert run("restart", name).startswith(f"restarted {name}")
    assert run("delete", name) == f"deleted {name}\n"
    assert json.loads(run("delete", name, "--json"))["deleted"] is False
    assert main(["pipelines", "show", name, "--url", server.url]) == 1
    assert capsys.readouterr().err == f"headrace: no pipeline '{name}'; declare it first\n"
    as_json.write_text("[1]")
    assert main(["pipelines", "put", name, str(as_json), "--url", server.url]) == 2
