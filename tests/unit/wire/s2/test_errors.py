"""Every refusal of S2: its code, its status, and the exact body that tells of it."""

from __future__ import annotations

import json

import pytest

from headrace.core import errors as core
from headrace.wire.s2 import errors
from headrace.wire.s2.errors import failure_body, refusal

# Code, status, whether a client may try again: the table of the API.
TABLE = """
bad_header 400 no
bad_path 400 no
bad_query 400 no
bad_json 400 no
bad_proto 400 no
bad_frame 400 no
decryption_failed 400 no
authn 401 no
permission_denied 403 no
quota_exhausted 403 no
access_token_not_found 404 no
basin_not_found 404 no
stream_not_found 404 no
request_timeout 408 yes
basin_deletion_pending 409 no
resource_already_exists 409 no
stream_deletion_pending 409 no
transaction_conflict 409 yes
invalid 422 no
rate_limited 429 yes
client_hangup 499 no
other 500 yes
storage 500 yes
not_implemented 501 no
hot_server 502 yes
unavailable 503 yes
server_draining 503 yes
upstream_timeout 504 yes
"""
ROWS = [line.split() for line in TABLE.split("\n") if line]


@pytest.mark.parametrize(("code", "status", "retry"), ROWS, ids=lambda value: value)
def test_a_code_has_its_status_and_body(code: str, status: str, retry: str) -> None:
    error = refusal(code, "what went wrong")
    assert (error.code, error.status, error.retryable) == (code, int(status), retry == "yes")
    body = b'{"code":"%b","message":"what went wrong"}' % code.encode()
    assert failure_body(error) == (int(status), body)


def test_there_is_no_code_beside_those_of_the_table() -> None:
    assert sorted(errors.STATUSES) == sorted(code for code, _, _ in ROWS)


def test_each_constructor_makes_the_code_of_its_name() -> None:
    two = (errors.stream_not_found, errors.stream_deletion_pending)
    one = (
        errors.bad_header, errors.bad_path, errors.bad_query, errors.bad_json, errors.bad_proto,
        errors.bad_frame, errors.decryption_failed, errors.invalid, errors.authn,
        errors.permission_denied, errors.quota_exhausted, errors.access_token_not_found,
        errors.basin_not_found, errors.basin_deletion_pending, errors.resource_already_exists,
        errors.not_implemented, errors.unavailable, errors.server_draining,
    )  # fmt: skip
    for constructor in one:
        assert constructor("some-name").code == constructor.__name__
    for of_stream in two:
        assert of_stream("some-basin", "a stream").code == of_stream.__name__


def test_conditions_and_ranges_have_bodies_of_their_own() -> None:
    head = core.HeadMismatch("no", detail={"topic": "s2:b/s", "head_seq": 42})
    assert failure_body(head) == (412, b'{"seq_num_mismatch":42}')
    fence = core.FenceMismatch("no", detail={"topic": "s2:b/s", "fencing_token": 'a"b'})
    assert failure_body(fence) == (412, b'{"fencing_token_mismatch":"a\\"b"}')
    tail = errors.RangeNotSatisfiable(3, 1_700_000_000_000)
    assert failure_body(tail) == (416, b'{"tail":{"seq_num":3,"timestamp":1700000000000}}')


def test_an_unknown_path_or_method_has_no_body() -> None:
    assert failure_body(core.NotFound("no such path")) == (404, b"")
    assert failure_body(core.MethodNotAllowed("not so")) == (405, b"")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (core.InvalidRequest("no"), 422, "invalid"),
        (core.BatchTooLarge("no"), 422, "invalid"),
        (core.RecordTooLarge("no"), 422, "invalid"),
        (core.PayloadTooLarge("no"), 422, "invalid"),
        (core.UnsupportedMediaType("no"), 400, "bad_json"),
        (core.NotAcceptable("no"), 400, "bad_header"),
        (core.HeadersTooLarge("no"), 400, "bad_header"),
        (core.Unauthorized("no"), 401, "authn"),
        (core.Forbidden("no"), 403, "permission_denied"),
        (core.TopicFull("no"), 403, "quota_exhausted"),
        (core.TopicNotFound.named("s2:b/s"), 404, "stream_not_found"),
        (core.RequestTimeout("no"), 408, "request_timeout"),
        (core.StreamDeleted("no"), 409, "stream_deletion_pending"),
        (core.TopicExistsIncompatible("no"), 409, "resource_already_exists"),
        (core.EpochMismatch("no"), 409, "transaction_conflict"),
        (core.Throttled("no"), 429, "rate_limited"),
        (core.Throttled("no", detail={"limit": "max_topics"}), 403, "quota_exhausted"),
        (core.WalCorrupt("no"), 500, "storage"),
        (core.Internal("no"), 500, "other"),
        (core.NotReady("no"), 503, "unavailable"),
        (core.ShuttingDown("no"), 503, "server_draining"),
        (core.LakeUnavailable("no"), 503, "unavailable"),
        # Only what certainly did nothing may be tried again by a writer.
        (core.OutOfResources.told("nothing"), 502, "hot_server"),
        (core.OutOfResources.told(), 503, "unavailable"),
        (core.ProducerGap("no"), 422, "invalid"),
        (core.DataLost("no"), 500, "other"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_errors_of_the_engine_have_codes_of_the_api(
    error: core.HeadraceError, status: int, code: str
) -> None:
    told, body = failure_body(error)
    assert told == status
    found = json.loads(body)
    assert found["code"] == code
    if type(error) in (core.TopicFull, core.TopicNotFound, core.StreamDeleted):
        assert "stream" in found["message"]  # and not the name of a topic
        assert str(error) not in found["message"]
    else:
        assert found["message"] == str(error)


def test_a_message_is_one_line_and_never_empty() -> None:
    assert failure_body(refusal("invalid", "two\n  lines"))[1].endswith(b'"message":"two lines"}')
    assert failure_body(core.Internal(""))[1] == b'{"code":"other","message":"other"}'
