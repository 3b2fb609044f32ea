"""What the client refuses before it sends anything, and what it shows of what it got."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from headrace.api.topics import CONFIG_FIELDS
from headrace.client import Client, Draft, Record
from headrace.core.errors import InvalidRequest
from headrace.engine.topics.config import TopicConfig


def record_of(text: str) -> Record:
    return msgspec.json.decode(text, type=Record)


@pytest.mark.parametrize("records", ["hello", b"hello", bytearray(b"x"), {"n": 1}, 7, None])
def test_what_is_no_list_of_records(scripted, make_client, records) -> None:
    with pytest.raises(InvalidRequest, match="records is not a list; send a list of payloads"):
        make_client(scripted.url).append("t", records)
    assert scripted.requests == []


@pytest.mark.parametrize("records", [(1,), range(1), iter([1]), [Draft(1)]])
def test_what_does_as_well_as_a_list(scripted, make_client, records) -> None:
    scripted.script = [scripted.APPENDED]
    assert make_client(scripted.url).append("t", records).count == 1


@pytest.mark.parametrize("payload", [b"raw", bytearray(b"raw"), memoryview(b"raw"), Draft(b"raw")])
def test_bytes_are_not_changed_in_secret(scripted, make_client, payload) -> None:
    with pytest.raises(InvalidRequest, match="append_arrow"):
        make_client(scripted.url).append("t", [1, payload])
    assert scripted.requests == []


def test_what_is_no_arrow_table(scripted, make_client) -> None:
    with pytest.raises(InvalidRequest, match=r"list is no Arrow table; send a pyarrow\.Table"):
        make_client(scripted.url).append_arrow("t", [{"data": b"x"}])
    assert scripted.requests == []


def test_a_slip_in_a_config(scripted, make_client) -> None:
    client = make_client(scripted.url)
    with pytest.raises(InvalidRequest, match=r"'tll_ms' is not .* did you mean ttl_ms"):
        client.put_topic("t", {"tll_ms": 1})
    with pytest.raises(InvalidRequest, match="did you mean durability"):
        client.append("t", [1], config={"ttl_ms": 5, "durabilty": "disk"})
    assert scripted.requests == []


def test_the_client_knows_every_field_of_a_config() -> None:
    assert TopicConfig.__struct_fields__ == CONFIG_FIELDS


@pytest.mark.parametrize("token", ["sesame\n", "sesam\u00e9", "sesame\x00"])
def test_no_message_has_the_token(token) -> None:
    with pytest.raises(InvalidRequest, match="the token") as caught:
        Client("http://localhost:1", token=token)
    assert "sesam" not in str(caught.value) + repr(caught.value.detail)


@pytest.mark.parametrize("url", ["http://u:sesame@x", "http://x?token=sesame"])
def test_no_message_has_a_secret_of_the_address(url) -> None:
    with pytest.raises(InvalidRequest, match="keys by `token`") as caught:
        Client(url)
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    ("meta", "data", "expected"),
    [
        ('{"$encoding":"base64"}', '"AAH/"', b"\x00\x01\xff"),
        ('{"a":1,"$encoding":"base64"}', '""', b""),
        ('{"$encoding":"base64"}', '"no base64!"', "no base64!"),
        ('{"$encoding":"base64"}', '{"a":1}', {"a": 1}),
        ('{"$encoding":"gzip"}', '"AAH/"', "AAH/"),
        ('["$encoding","base64"]', '"AAH/"', "AAH/"),
        ("null", '"AAH/"', "AAH/"),
    ],
)
def test_bytes_come_back_as_bytes(meta, data, expected) -> None:
    assert record_of(f'{{"$seq":1,"$ts":2,"data":{data},"meta":{meta}}}').data == expected


def test_a_record_shows_what_it_holds() -> None:
    full = '{"$seq":1,"$ts":2,"$tag":"x","$node":"n","data":{"a":[1]},"meta":{"m":1}}'
    shown = "Record(seq=1, ts=2, data={'a': [1]}, tag='x', node='n', meta={'m': 1})"
    assert repr(record_of(full)) == str(record_of(full)) == shown
    assert repr(record_of('{"$seq":1,"$ts":2}')) == "Record(seq=1, ts=2, data=None)"


def test_arrow_columns_of_bytes_are_sent(scripted, make_client) -> None:
    scripted.script = [scripted.APPENDED]
    make_client(scripted.url).append_arrow("t", pa.table({"data": [b"\x00raw"]}))
    assert b"\x00raw" in scripted.requests[0]
