"""What every request has in common: routes, content types, names, limits (native §0, §1)."""

from __future__ import annotations

import gzip
import json
import sys
import zlib

import pytest

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

JSON_TYPE = {"content-type": "application/json"}
RECORD = {"records": [{"data": 1}]}
MIB = 1 << 20


# Routes


@pytest.mark.parametrize(
    "path",
    ["/", "/v0", "/v0/", "/v0/topics/", "/v0/topics/a/", "/v0/topic/a", "/v1/x", "/v0/ready/"],
)
def test_unknown_paths(speak, path) -> None:
    """§0, §1.3: a trailing slash is another path; 404 `not_found` in the envelope."""
    speak.refused(404, "not_found", "GET", path)


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PATCH", "/v0/topics/a", {"GET", "HEAD", "PUT", "POST", "DELETE"}),
        ("GET", "/v0/topics/a/diff", {"POST"}),
        ("PUT", "/v0/topics/a/delete", {"POST"}),
        ("POST", "/v0/topics", {"GET", "HEAD"}),
        ("POST", "/v0/health", {"GET", "HEAD"}),
        ("DELETE", "/v0/watch", {"POST"}),
    ],
)
def test_other_methods(speak, method, path, allow) -> None:
    """§1.3: 405 `method_not_allowed`, with `Allow`."""
    reply = speak(method, path)
    assert (reply.status, reply.error["code"]) == (405, "method_not_allowed")
    assert allow <= {name.strip() for name in reply.headers["allow"].split(",")}


def test_an_error_names_only_what_it_should(speak, topic) -> None:
    """§1.3: code, message, detail and nothing else; no `performance` on errors."""
    reply = speak("GET", f"/v0/topics/{topic}")
    assert reply.status == 404
    assert reply.error.keys() == {"code", "message", "detail"}
    assert speak("GET", "/nowhere").error.keys() <= {"code", "message", "detail"}


def test_segments_of_a_path_are_decoded(speak, topic) -> None:
    """§0: percent-decoded; so one topic has many spellings."""
    speak.append(topic, 1)
    spelled = "".join(f"%{ord(c):02x}" for c in topic)
    assert speak.ok("GET", f"/v0/topics/{spelled}")["topic"] == topic


def test_a_slash_in_a_name_is_not_a_path(speak) -> None:
    """§0, §1.5: `%2F` is part of a segment, and of no valid name."""
    speak.refused(404, "topic_not_found", "GET", "/v0/topics/a%2Fb")
    speak.refused(400, "invalid_request", "PUT", "/v0/topics/a%2Fb")


def test_a_path_that_is_not_utf8(speak) -> None:
    """§1.3: a refusal in the envelope, whatever the bytes."""
    speak.refused(400, "invalid_request", "PUT", "/v0/topics/%ff%fe")


# Names


@pytest.mark.parametrize(
    "name",
    ["a", "9", "Z" * 255, "a.b_c:d-e", "A", "0--", "orders:eu-1.v2_x", "a:", "x" + "-" * 254],
)
def test_good_names(speak, name) -> None:
    """§1.5: 1 to 255 bytes, first a letter or digit, then also . _ : -"""
    assert speak("PUT", f"/v0/topics/{name}").status in (200, 201)
    assert speak.ok("GET", f"/v0/topics/{name}")["topic"] == name
    speak.ok("DELETE", f"/v0/topics/{name}")


@pytest.mark.parametrize(
    "name",
    [
        "x" * 256,
        ".a",
        "-a",
        ":a",
        "a%20b",
        "a%3Eb",
        "a*",
        "%C3%A9",
        "a%00",
        "a%0Ab",
        "a,b",
        "a%25",
    ],
)
def test_bad_names(speak, name) -> None:
    """§1.5: 400 where a name is created, plain 404 where it is read."""
    speak.refused(400, "invalid_request", "PUT", f"/v0/topics/{name}")
    speak.refused(400, "invalid_request", "POST", f"/v0/topics/{name}", RECORD)
    speak.refused(404, "topic_not_found", "GET", f"/v0/topics/{name}")
    speak.refused(404, "topic_not_found", "POST", f"/v0/topics/{name}/diff", {})
    speak.refused(404, "topic_not_found", "POST", f"/v0/topics/{name}/delete", {"before_seq": 1})
    assert speak.ok("DELETE", f"/v0/topics/{name}")["deleted"] is False


def test_names_of_the_server_itself(speak) -> None:
    """Nobody makes or changes what begins with `_`, whether it is there or not."""
    speak.refused(400, "invalid_request", "PUT", "/v0/topics/_a")
    speak.refused(400, "invalid_request", "POST", "/v0/topics/_a", RECORD)
    speak.refused(404, "topic_not_found", "GET", "/v0/topics/_a")
    speak.refused(404, "topic_not_found", "POST", "/v0/topics/_a/diff", {})
    speak.refused(403, "forbidden", "POST", "/v0/topics/_a/delete", {"before_seq": 1})
    speak.refused(403, "forbidden", "DELETE", "/v0/topics/_a")


def test_names_are_case_sensitive(speak, topic) -> None:
    """§1.5."""
    speak.append(topic, 1)
    speak.refused(404, "topic_not_found", "GET", f"/v0/topics/{topic.upper()}")


# Bodies


@pytest.mark.parametrize(
    "kind", ["application/json", "  application/json; charset=utf-8", "application/json-patch+json"]
)
def test_json_content_types(speak, topic, kind) -> None:
    """§1.1: beginning with application/json, after blanks; parameters are fine."""
    body = json.dumps(RECORD).encode()
    assert speak("POST", f"/v0/topics/{topic}", body, {"content-type": kind}).status == 201


@pytest.mark.parametrize(
    "kind", ["text/plain", "Application/JSON", "", "multipart/form-data", None]
)
@pytest.mark.parametrize("path", ["/v0/topics/{}", "/v0/topics/{}/diff", "/v0/topics/{}/delete"])
def test_other_content_types(speak, topic, path, kind) -> None:
    """§1.1: 415, before parsing and before the topic is looked up; the prefix is case-sensitive."""
    headers = {} if kind is None else {"content-type": kind}
    reply = speak("POST", path.format(topic), b"{not json", headers)
    assert (reply.status, reply.error["code"]) == (415, "unsupported_media_type")
    if path == "/v0/topics/{}":
        reply = speak("PUT", path.format(topic), b"{}", headers)
        assert reply.status == 415


def test_what_curl_sends_by_itself(speak, topic) -> None:
    """§1.1: a form content type is taken as JSON, unless a web page is asking."""
    form = {"content-type": "application/x-www-form-urlencoded"}
    body = json.dumps(RECORD).encode()
    assert speak("POST", f"/v0/topics/{topic}", body, form).status == 201
    reply = speak("POST", f"/v0/topics/{topic}", body, {**form, "origin": "http://evil.example"})
    assert reply.status in (403, 415)
    assert speak.state(topic)["head_seq"] == 1


@pytest.mark.parametrize("path", ["/v0/topics/{}", "/v0/topics/{}/delete", "/v0/watch"])
def test_an_empty_body(speak, topic, path) -> None:
    """§1.1: 415 without a JSON content type, else 400, where a body is needed."""
    path = path.format(topic)
    assert speak("POST", path, b"").error["code"] == "unsupported_media_type"
    assert speak("POST", path, b"", JSON_TYPE).error["code"] == "invalid_request"


def test_success_is_bare_data(speak, topic) -> None:
    """§1.1: no `ok` or `status` wrappers; a top-level `error` is the only failure mark."""
    for found in (
        speak.append(topic, 1),
        speak.diff(topic),
        speak.state(topic),
        speak.ok("GET", "/v0/topics"),
        speak.ok("PUT", f"/v0/topics/{topic}"),
    ):
        assert not found.keys() & {"ok", "status", "error"}
        assert isinstance(found["performance"]["server_total_ms"], float)


def test_json_is_compact(speak, topic) -> None:
    """§1.1: no blanks between the parts."""
    speak.append(topic, 1)
    body = speak("POST", f"/v0/topics/{topic}/diff").body
    assert b'"records":[{"$seq":1,"$ts":' in body
    assert b'"tombstone":null' in body


def test_the_form_of_a_response(speak) -> None:
    """§1.1: application/json, with its length."""
    reply = speak("GET", "/v0/topics")
    assert reply.headers["content-type"] == "application/json"
    if "content-length" in reply.headers:
        assert int(reply.headers["content-length"]) == len(reply.body)


# Compression


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "identity"])
def test_compressed_requests(speak, topic, encoding) -> None:
    """§0: gzip, and zstd, request bodies."""
    body = json.dumps({"records": [{"data": "x" * 5_000}]}).encode()
    packed = {"gzip": gzip.compress, "zstd": zstd.compress, "identity": bytes}[encoding](body)
    headers = {**JSON_TYPE, "content-encoding": encoding}
    assert speak("POST", f"/v0/topics/{topic}", packed, headers).status == 201
    assert speak.diff(topic)["records"][0]["data"] == "x" * 5_000


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_compressed_responses(speak, topic, encoding) -> None:
    """§0: when asked for; with `Vary`."""
    speak.append(topic, "y" * 20_000)
    unpack = {"gzip": gzip.decompress, "zstd": zstd.decompress}[encoding]
    reply = speak("POST", f"/v0/topics/{topic}/diff", None, {"accept-encoding": encoding})
    assert reply.headers["content-encoding"] == encoding
    assert "accept-encoding" in reply.headers["vary"].lower()
    assert len(reply.body) < 2_000
    assert json.loads(unpack(reply.body))["records"][0]["data"] == "y" * 20_000
    plain = speak("POST", f"/v0/topics/{topic}/diff")
    assert "content-encoding" not in plain.headers


def test_an_encoding_that_nobody_knows(speak, topic) -> None:
    """§1.3: 415."""
    headers = {**JSON_TYPE, "content-encoding": "br"}
    reply = speak("POST", f"/v0/topics/{topic}", b"whatever", headers)
    assert (reply.status, reply.error["code"]) == (415, "unsupported_media_type")


def test_a_damaged_body(speak, topic) -> None:
    """§1.1: 400, and the connection goes on."""
    packed = gzip.compress(json.dumps(RECORD).encode())
    for damaged in (packed[:-10], b"\x00" * 30, zlib.compress(b"{}")):
        headers = {**JSON_TYPE, "content-encoding": "gzip"}
        reply = speak("POST", f"/v0/topics/{topic}", damaged, headers)
        assert (reply.status, reply.error["code"]) == (400, "invalid_request")
    assert speak("GET", "/v0/health").status == 200


# Limits


def test_records_per_append(speak, topic) -> None:
    """§1.8: 10,000, else 400 `batch_too_large`."""
    assert speak.append(topic, *range(10_000))["count"] == 10_000
    body = {"records": [{"data": 1}] * 10_001}
    speak.refused(400, "batch_too_large", "POST", f"/v0/topics/{topic}", body)
    assert speak.state(topic)["head_seq"] == 10_000


def test_bytes_of_a_record(speak, topic) -> None:
    """§1.8: 1 MiB of data and meta as sent, else 400 `record_too_large`."""
    path = f"/v0/topics/{topic}"
    exact = {"records": [{"data": "d" * (MIB - 2 - 9), "meta": {"m": "x"}}]}
    raw = json.dumps(exact, separators=(",", ":")).encode()
    assert speak("POST", path, raw, JSON_TYPE).status == 201
    over = raw.replace(b'"x"', b'"xy"')
    reply = speak("POST", path, over, JSON_TYPE)
    assert (reply.status, reply.error["code"]) == (400, "record_too_large")


@pytest.mark.parametrize(
    ("field", "fits", "too_long"),
    [
        ("tag", "é" * 128, "é" * 128 + "x"),
        ("node", "n" * 128, "n" * 129),
        ("meta", {"m": "x" * (16 * 1024 - 8)}, {"m": "x" * (16 * 1024 - 7)}),
        ("meta", {f"k{n}": n for n in range(64)}, {f"k{n}": n for n in range(65)}),
    ],
    ids=["tag", "node", "meta bytes", "meta keys"],
)
def test_parts_of_a_record(speak, topic, field, fits, too_long) -> None:
    """§1.8: in bytes; 400 `invalid_request` beyond."""
    path = f"/v0/topics/{topic}"

    def body(value: object) -> bytes:
        records = {"records": [{"data": 1, field: value}]}
        return json.dumps(records, separators=(",", ":"), ensure_ascii=False).encode()

    assert speak("POST", path, body(fits), JSON_TYPE).status == 201
    reply = speak("POST", path, body(too_long), JSON_TYPE)
    assert (reply.status, reply.error["code"]) == (400, "invalid_request")
    assert speak.state(topic)["head_seq"] == 1


def test_the_node_of_a_batch_has_the_same_limit(speak, topic) -> None:
    """§1.8."""
    body = {**RECORD, "node": "n" * 129}
    speak.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}", body)


def test_bytes_of_a_key(speak, topic) -> None:
    """§1.8: 256, in the body and in the header."""
    path = f"/v0/topics/{topic}"
    assert speak.append(topic, 1, idempotency_key="k" * 256)["deduped"] is False
    body = {**RECORD, "idempotency_key": "k" * 257}
    speak.refused(400, "invalid_request", "POST", path, body)
    speak.refused(400, "invalid_request", "POST", path, RECORD, idempotency_key="k" * 257)


SMALL = {
    "body_bytes_max": 20_000,
    "record_bytes_max": 10_000,
    "meta_bytes_max": 100,
    "meta_keys_max": 2,
    "tag_bytes_max": 5,
    "node_bytes_max": 5,
    "idempotency_key_bytes_max": 5,
    "records_per_append_max": 3,
    "read_limit_default": 2,
    "read_limit_max": 4,
    "page_size_default": 2,
    "page_size_max": 3,
}


def test_limits_are_settings(speak_to, topic) -> None:
    """§1.8, §11: each of them is read."""
    speak = speak_to(**SMALL)
    path = f"/v0/topics/{topic}"

    def refused(code: str, **record: object) -> None:
        body = {"records": [{"data": 1, **record}]}
        speak.refused(400, code, "POST", path, body)

    refused("record_too_large", data="x" * 10_000)
    refused("invalid_request", meta={"a": "x" * 100})
    refused("invalid_request", meta={"a": 1, "b": 2, "c": 3})
    refused("invalid_request", tag="123456")
    refused("invalid_request", node="123456")
    speak.refused(400, "batch_too_large", "POST", path, {"records": [{"data": 1}] * 4})
    key = {**RECORD, "idempotency_key": "123456"}
    speak.refused(400, "invalid_request", "POST", path, key)
    for _ in range(2):
        speak.append(topic, 1, 2, 3)
    assert len(speak.diff(topic)["records"]) == 2
    assert len(speak.diff(topic, limit=100)["records"]) == 4
    for n in range(4):
        speak.ok("PUT", f"{path}-{n}")
    assert len(speak.ok("GET", f"/v0/topics?prefix={topic}-")["topics"]) == 2
    assert len(speak.ok("GET", f"/v0/topics?prefix={topic}-&page_size=9")["topics"]) == 3


def test_a_body_that_is_too_large(speak_to, topic) -> None:
    """§1.8: 413 `payload_too_large`, before it is parsed; the server goes on."""
    speak = speak_to(**SMALL)
    reply = speak("POST", f"/v0/topics/{topic}", b"x" * 20_001, JSON_TYPE)
    assert (reply.status, reply.error["code"]) == (413, "payload_too_large")
    reply = speak("PUT", f"/v0/topics/{topic}", b"{" + b" " * 19_998 + b"}", JSON_TYPE)
    assert reply.status == 201


def test_a_body_that_unpacks_too_large(speak_to, topic) -> None:
    """§1.8: the limit holds for what comes out of a compressed body."""
    speak = speak_to(**SMALL)
    for encoding, packed in (
        ("gzip", gzip.compress(b" " * 50_000_000)),
        ("zstd", zstd.compress(b" " * 50_000_000)),
    ):
        assert len(packed) < 60_000
        headers = {**JSON_TYPE, "content-encoding": encoding}
        reply = speak("POST", f"/v0/topics/{topic}", packed[:20_000], headers)
        assert (reply.status, reply.error["code"]) == (413, "payload_too_large")
