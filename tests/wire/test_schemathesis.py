"""Our own OpenAPI document against a real server: what it says is what happens.

schemathesis makes requests out of `/openapi.json`, right ones and wrong ones, alone and in
sequences.  No answer may be a 5xx; its status, content type, headers and body must be what the
document says; what the document allows is taken, and what it forbids refused.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from typing import Any, NamedTuple

import pytest
import schemathesis
from schemathesis import engine
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events

from headrace.core.limits import claims_per_request_max
from headrace.testing.process import ServerProcess
from headrace.wire.native.topics import write_cursor
from headrace.wire.native.watch_ids import Position, encode_id

# What Hypothesis says of a large body that it made itself.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

# A long poll that finds nothing must not cost the suite its time.
SETTINGS = {"wait_ms_max": 20}
# Examples of each operation -> the least number of requests that they make.
# Most are the edges that the document names, whatever the number of random examples.
EXAMPLES = {3: 400, 20: 700}
CASES_PER_PASS_MIN = 500
KEY = "a-key-of-the-tests"
REQUEST_SECONDS_MAX = 20

# Only the server makes these words, so what is made up would never get past them.
LIST_CURSOR = write_cursor("orders")
WATCH_CURSOR = encode_id([Position("orders", 1, 0)]).decode()
UNKNOWN_WID = "wid_" + "A" * 22
LEASE_ID = re.compile("lease_[0-9a-fA-F]{1,16}", re.ASCII)
UNKNOWN_QUEUE = "a-queue-that-nobody-makes"

OPERATIONS = [
    # A request that is no WebSocket handshake is refused, and the document has no word for those.
    {"include-name": "GET /v0/ws", "checks": {"positive_data_acceptance": {"enabled": False}}}
]
# Refusals of what is right in itself: a topic that is not there, that is full, that has changed.
REFUSALS = ["2xx", "401", "403", "404", "409", "422", "429"]
# What no schema can say: values that are right one by one and cannot be together, and lengths in
# bytes, where a schema counts characters.
UNSAYABLE = (
    "can never fit into", "is its own dead letter topic", " bytes; use ",
    "source and dest are both",
    "; send true, or a seq from 0 to ",  # a backfill, beyond the head of its source
    "; send a seq that was read from the topic",  # an archive, beyond the head
    "the past of such a topic cannot be served", "; send retain_bytes_max, the bytes that may wait",
    # Of pipelines: SQL, and how sources, schemas and destinations go together.
    '"code":"sql_refused"', "is no name that SQL takes", "two sources are called",
    "no source has a schema", "of data without a schema", "would read what it writes",
    "topic dead_letter together", "unique_by without a watermark",
)  # fmt: skip


class Report(NamedTuple):
    cases: int
    checks: Counter[str]
    failures: list[str]


def config_of(examples: int, seed: int, **more: object) -> SchemathesisConfig:
    return SchemathesisConfig.from_dict(
        {
            "seed": seed,
            "suppress-health-check": ["all"],
            "request-timeout": REQUEST_SECONDS_MAX,
            "generation": {"max-examples": examples, "database": "none"},
            "checks": {"positive_data_acceptance": {"expected-statuses": REFUSALS}},
            "operations": OPERATIONS,
            **more,
        }
    )


def whole(value: Any) -> Any:
    """`2.0` is an integer to JSON Schema, and not to us: integers are strict."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [whole(item) for item in value]
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    return value


def one_for_each(ids: Any, seqs: Any) -> Any:
    """Good lease ids, as many as there are seqs; a schema cannot say that."""
    good = isinstance(ids, list) and all(id == "" or LEASE_ID.fullmatch(str(id)) for id in ids)
    if not good or not isinstance(seqs, list) or len(ids) > claims_per_request_max:
        return ids
    return (ids + [""] * len(seqs))[: len(seqs)]


@schemathesis.hook
def before_call(context: object, case: Any, kwargs: object) -> None:
    """A stream has no end, and tests of its own."""
    if "wid" in (case.path_parameters or {}):
        case.path_parameters["wid"] = UNKNOWN_WID
    if case.operation.path.endswith("/work"):
        case.path_parameters["topic"] = UNKNOWN_QUEUE
    if isinstance(case.body, dict) and "lease_ids" in case.body:
        case.body["lease_ids"] = one_for_each(case.body["lease_ids"], case.body.get("seqs"))


def adapt(schema: Any) -> None:
    """What JSON Schema cannot say."""

    @schema.hook
    def map_body(context: object, body: Any) -> Any:
        body = whole(body)
        if isinstance(body, dict) and isinstance(body.get("cursor"), str):
            body["cursor"] = WATCH_CURSOR
        return body

    @schema.hook
    def map_query(context: object, query: Any) -> Any:
        if isinstance(query, dict) and isinstance(query.get("cursor"), str):
            query["cursor"] = LIST_CURSOR
        return query


def run(server: ServerProcess, config: SchemathesisConfig, until: float | None = None) -> Report:
    """All phases: the document's examples, its edges, random requests, sequences of requests."""
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json", config=config)
    adapt(schema)
    cases = 0
    checks: Counter[str] = Counter()
    failures: list[str] = []
    stream = engine.from_schema(schema).execute()
    for event in stream:
        if isinstance(event, events.NonFatalError):
            failures.append(f"{event.label}: {event.value!r}")
        elif isinstance(event, events.FatalError):
            raise event.exception
        elif isinstance(event, events.ScenarioFinished):
            cases += len(event.recorder.cases)
            for case, found in event.recorder.checks.items():
                checks.update(check.name for check in found)
                failed = [check for check in found if check.failure_info]
                failures += [
                    told(event, case, check) for check in failed if not excused(event, case, check)
                ]
            if until is not None and time.monotonic() > until:
                stream.stop()
    return Report(cases, checks, failures)


def excused(event: events.ScenarioFinished, case: str, check: Any) -> bool:
    """A header of no account, and what no schema can say."""
    if check.name == "negative_data_rejection":
        # A key in the body makes the header of no account, whatever is in it.
        return "Idempotency-Key" in check.failure_info.failure.message
    response = event.recorder.interactions[case].response
    if check.name != "positive_data_acceptance" or response is None:
        return False
    return any(words in response.text for words in UNSAYABLE)


def told(event: events.ScenarioFinished, case: str, check: Any) -> str:
    response = event.recorder.interactions[case].response
    answer = None if response is None else (response.status_code, response.text[:500])
    found = check.failure_info
    failure = found.failure
    return "\n".join(
        map(str, [event.recorder.label, failure.title, failure.message, answer, found.code_sample])
    )


def check_alive(server: ServerProcess, speak: Any) -> None:
    assert server.process.poll() is None
    assert speak("GET", "/v0/health").status == 200


@pytest.mark.parametrize("examples", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_the_document_is_what_happens(servers, server, examples: int) -> None:
    report = run(server, config_of(examples, seed=1))
    cases_min = EXAMPLES[examples]
    assert not report.failures, "\n\n".join(report.failures)
    assert report.cases >= cases_min
    for name in ("negative_data_rejection", "positive_data_acceptance", "not_a_server_error"):
        assert report.checks[name] > cases_min // 2, report.checks
    check_alive(server, servers.speaker(server, "h1"))


@pytest.mark.slow
def test_with_keys(servers) -> None:
    """Each operation that asks for a key refuses whoever has none, or a wrong one."""
    server = servers.start(api_keys=KEY, **SETTINGS)
    config = config_of(
        5,
        seed=2,
        headers={"Authorization": f"Bearer {KEY}"},
        phases={"stateful": {"enabled": False}},
    )
    report = run(server, config)
    assert not report.failures, "\n\n".join(report.failures)
    assert report.cases >= CASES_PER_PASS_MIN
    assert report.checks["ignored_auth"], report.checks


@pytest.mark.long
def test_the_document_is_what_happens_for_long(servers, sweep) -> None:
    server = servers.start(**SETTINGS)
    until = time.monotonic() + sweep.seconds
    seed = sweep.seed
    cases = 0
    while time.monotonic() < until:
        report = run(server, config_of(200, seed), until)
        assert not report.failures, f"seed {seed}\n" + "\n\n".join(report.failures)
        cases += report.cases
        seed += 1
    print(f"{cases} cases")
    check_alive(server, servers.speaker(server, "h1"))
