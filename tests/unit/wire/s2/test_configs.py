"""Configurations: absent and null, layers, changes, and what a client is shown."""

from __future__ import annotations

import json

import pytest

from headrace.wire.s2.configs import (
    BasinConfig,
    BasinReconfiguration,
    OptionalStreamConfig,
    StreamConfig,
    StreamReconfiguration,
    creation_key,
    decode_config,
    decode_stream_config_header,
    reconfigured,
    resolve,
)
from headrace.wire.s2.errors import S2Refusal
from headrace.wire.s2.stream_own import TTL_MS_MAX, StreamOwn, decode_own, topic_config


def stream_config(text: str) -> OptionalStreamConfig:
    return decode_config(text.encode(), OptionalStreamConfig)


def changes(text: str) -> StreamReconfiguration:
    return decode_config(text.encode(), StreamReconfiguration)


def basin_config(text: str) -> BasinConfig:
    return decode_config(text.encode(), BasinConfig)


def test_a_stream_without_a_word_about_it_has_the_defaults() -> None:
    assert resolve().to_json() == (
        b'{"storage_class":"express","retention_policy":{"age":604800},'
        b'"timestamping":{"mode":"client-prefer","uncapped":false},'
        b'"delete_on_empty":{"min_age_secs":0}}'
    )


def test_every_field_comes_from_the_first_layer_that_has_it() -> None:
    given = stream_config('{"storage_class":null,"timestamping":{"uncapped":false}}')
    basin = stream_config(
        '{"storage_class":"standard","retention_policy":{"infinite":{}},'
        '"timestamping":{"mode":"arrival","uncapped":true},"delete_on_empty":{"min_age_secs":60}}'
    )
    assert resolve(given, basin) == StreamConfig("standard", 0, "arrival", False, 60)
    assert json.loads(resolve(basin).to_json())["retention_policy"] == {"infinite": {}}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "bad_json"),
        ("[]", "bad_json"),
        ('{"retention_policy":{}}', "bad_json"),
        ('{"retention_policy":{"age":1,"infinite":{}}}', "bad_json"),
        ('{"retention_policy":{"forever":{}}}', "bad_json"),
        ('{"retention_policy":{"age":-1}}', "bad_json"),
        ('{"retention_policy":{"age":18446744073709551616}}', "bad_json"),
        ('{"retention_policy":{"age":"1"}}', "bad_json"),
        ('{"timestamping":{"mode":"server"}}', "bad_json"),
        ('{"timestamping":{"uncapped":1}}', "bad_json"),
        ('{"delete_on_empty":{"min_age_secs":-1}}', "bad_json"),
        ('{"storage_class":7}', "bad_json"),
        ('{"storage_class":"%s"}' % ("x" * 65), "invalid"),
        ('{"retention_policy":{"age":0}}', "invalid"),
    ],
)
def test_what_is_no_configuration_is_refused(text: str, code: str) -> None:
    for form in (OptionalStreamConfig, StreamReconfiguration):
        with pytest.raises(S2Refusal) as caught:
            decode_config(text.encode(), form)
        assert caught.value.code == code, form
    with pytest.raises(S2Refusal) as caught:
        decode_stream_config_header(text.encode())
    assert caught.value.code == "bad_header"


def test_unknown_fields_are_ignored() -> None:
    assert stream_config('{"colour":"red","timestamping":{"zone":1}}').reduced() is None


def test_a_basin_shows_only_what_was_set() -> None:
    nothing = (
        b'{"default_stream_config":null,"stream_cipher":null,'
        b'"create_stream_on_append":false,"create_stream_on_read":false}'
    )
    assert basin_config("{}").to_json() == nothing
    assert basin_config('{"default_stream_config":{"timestamping":{}}}').to_json() == nothing
    set_once = basin_config(
        '{"default_stream_config":{"timestamping":{"mode":"arrival"}},"stream_cipher":"aegis-256",'
        '"create_stream_on_append":true}'
    )
    assert set_once.to_json() == (
        b'{"default_stream_config":{"storage_class":null,"retention_policy":null,'
        b'"timestamping":{"mode":"arrival","uncapped":null},"delete_on_empty":null},'
        b'"stream_cipher":"aegis-256","create_stream_on_append":true,'
        b'"create_stream_on_read":false}'
    )


@pytest.mark.parametrize("field", ["create_stream_on_append", "create_stream_on_read"])
def test_a_basins_switches_cannot_be_null(field: str) -> None:
    for form in (BasinConfig, BasinReconfiguration):
        with pytest.raises(S2Refusal) as caught:
            decode_config(b'{"%b":null}' % field.encode(), form)
        assert caught.value.code == "bad_json"


def test_a_change_keeps_what_is_absent_and_resets_what_is_null() -> None:
    current = StreamConfig("standard", 60, "arrival", True, 5)
    basin = stream_config('{"retention_policy":{"age":90},"timestamping":{"uncapped":true}}')
    assert reconfigured(current, changes("{}"), basin) == current
    after = reconfigured(
        current,
        changes('{"storage_class":null,"retention_policy":null,"timestamping":{"mode":null}}'),
        basin,
    )
    assert after == StreamConfig("express", 90, "client-prefer", True, 5)
    nulls = changes('{"timestamping":null,"delete_on_empty":null}')
    assert reconfigured(current, nulls, None) == StreamConfig("standard", 60)
    inner = changes('{"timestamping":{"uncapped":false},"delete_on_empty":{"min_age_secs":null}}')
    assert reconfigured(current, inner, basin) == StreamConfig("standard", 60, "arrival", False, 0)


def test_a_basins_default_is_changed_field_by_field() -> None:
    current = basin_config(
        '{"default_stream_config":{"storage_class":"standard","timestamping":{"mode":"arrival"}},'
        '"stream_cipher":"aes-256-gcm","create_stream_on_read":true}'
    )

    def after(text: str) -> BasinConfig:
        return decode_config(text.encode(), BasinReconfiguration).applied(current)

    assert after("{}") == current
    assert after('{"stream_cipher":null}').stream_cipher is None
    assert after('{"default_stream_config":null}').default_stream_config is None
    assert after('{"create_stream_on_read":false}').create_stream_on_read is False
    default = after(
        '{"default_stream_config":{"storage_class":null,"delete_on_empty":{"min_age_secs":9}}}'
    ).default_stream_config
    assert default == stream_config(
        '{"timestamping":{"mode":"arrival"},"delete_on_empty":{"min_age_secs":9}}'
    )
    nothing = '{"default_stream_config":{"storage_class":null,"timestamping":{"mode":null}}}'
    assert after(nothing).default_stream_config is None


def test_a_creation_is_repeated_by_the_same_token_and_configuration_only() -> None:
    plain = creation_key("token", None)
    same = (
        stream_config("{}"),
        stream_config('{"timestamping":{"mode":null}}'),
        basin_config("{}"),
    )
    assert {creation_key("token", config) for config in same} == {plain}
    others = [
        creation_key("tokem", None),
        creation_key("token", stream_config('{"storage_class":"express"}')),
        creation_key("token", basin_config('{"create_stream_on_append":true}')),
        creation_key('token{"storage_class"', None),
    ]
    assert len({plain, *others}) == 5


def test_what_a_stream_keeps_comes_back() -> None:
    own = StreamOwn(5, StreamConfig("x", 0, "arrival", True, 7), "aes-256-gcm", b"k" * 32, b"id")
    assert decode_own(own.encode()) == own


def test_the_bytes_that_a_stream_keeps_are_these() -> None:
    """On-disk values never change, and those of an older server, with less in them, are read."""
    written = bytes.fromhex("92 05 95 a7 65787072657373 3c ad 636c69656e742d707265666572 c2 00")
    assert decode_own(written) == StreamOwn(5, StreamConfig(retention_secs=60))
    assert StreamOwn(5, StreamConfig(retention_secs=60)).encode() == bytes.fromhex(
        "95 05 95 a7 65787072657373 3c ad 636c69656e742d707265666572 c2 00 c0 c400 c400"
    )


def test_retention_is_the_ttl_of_the_topic() -> None:
    assert topic_config(StreamConfig(retention_secs=0), "fsync").ttl_ms == 0
    config = topic_config(StreamConfig(retention_secs=3600), "disk")
    assert (config.ttl_ms, config.durability, config.type) == (3_600_000, "disk", "log")
    assert topic_config(StreamConfig(retention_secs=(1 << 64) - 1), "fsync").ttl_ms == TTL_MS_MAX
