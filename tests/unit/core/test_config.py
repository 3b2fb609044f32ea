"""Settings: where a value comes from, and what refuses to start."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from headrace.core import config
from headrace.core.config import load
from headrace.core.errors import ConfigError
from headrace.core.settings import Settings

MIB = 1 << 20


def test_a_flag_beats_a_variable_beats_the_file_beats_the_default() -> None:
    file = ("h.toml", 'port = 1\nlog = "error"\nhost = "::1"\nwal_file_bytes = "256MiB"\n')
    environ = {"HEADRACE_PORT": "2", "HEADRACE_LOG": "debug", "OTHER": "x"}
    settings, origins = load({"port": "3"}, environ, file)
    assert (settings.port, settings.log, settings.host) == (3, "debug", "::1")
    assert settings.wal_file_bytes == 256 * MIB
    assert settings.wal_shards == 1
    assert origins["port"] == "flag --port"
    assert origins["log"] == "environment HEADRACE_LOG"
    assert origins["host"] == "file h.toml"
    assert origins["wal_shards"] == "default"
    assert origins.keys() == config.RULES.keys()


def test_variables_of_those_who_call_a_server_are_known_and_left_alone() -> None:
    environ = dict.fromkeys(config.CLIENT_VARIABLES, "x")
    assert {"HEADRACE_URL", "HEADRACE_TOKEN"} < environ.keys()
    assert load({}, environ).settings == Settings()
    with pytest.raises(ConfigError, match="did you mean HEADRACE_TOKEN"):
        load({}, {"HEADRACE_TOKENS": "x"})


def test_nothing_given_is_all_defaults() -> None:
    assert load({}, {}).settings == Settings()
    assert Settings().memory_budget_bytes == 160 * MIB


def test_settings_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({"HEADRACE_PORT": "http"}, ["HEADRACE_PORT"]),
        ({"HEADRACE_PORT": "70000"}, ["HEADRACE_PORT", "65535"]),
        ({"HEADRACE_PORT": ""}, ["HEADRACE_PORT"]),
        ({"HEADRACE_WAL_SHARDS": "0"}, ["HEADRACE_WAL_SHARDS", "1 or more"]),
        ({"HEADRACE_INLINE_SYNC_US_MAX": "-1"}, ["HEADRACE_INLINE_SYNC_US_MAX", "0 or more"]),
        ({"HEADRACE_INLINE_SYNC_US_MAX": "100001"}, ["HEADRACE_INLINE_SYNC_US_MAX", "100000"]),
        ({"HEADRACE_MAX_BODY_BYTES": "lots"}, ["HEADRACE_MAX_BODY_BYTES", "64MiB"]),
        ({"HEADRACE_CHECKPOINT_AGE_MS": "5 parsecs"}, ["HEADRACE_CHECKPOINT_AGE_MS", "30s"]),
        ({"HEADRACE_LOG": "loud"}, ["HEADRACE_LOG", "warning"]),
        ({"HEADRACE_DATA_DIR": ""}, ["HEADRACE_DATA_DIR"]),
        ({"HEADRACE_COLD_URL": "ftp://x"}, ["HEADRACE_COLD_URL", "s3://"]),
        ({"HEADRACE_COLD_DIR": "./headrace-data/"}, ["HEADRACE_COLD_DIR", "data directory"]),
        ({"HEADRACE_COLD_URL": "a", "HEADRACE_COLD_DIR": "b"}, ["HEADRACE_COLD_DIR", "_URL"]),
        ({"HEADRACE_HOST": "::1:80", "HEADRACE_PORT": "x"}, ["HEADRACE_PORT"]),
        ({"HEADRACE_HOST": "a:80", "HEADRACE_PORT": "81"}, ["HEADRACE_HOST", "HEADRACE_PORT"]),
        ({"HEADRACE_WAL_FILE_BYTES": "1MiB"}, ["HEADRACE_WAL_FILE_BYTES", "wal_batch_bytes_max"]),
        ({"HEADRACE_READ_LIMIT_MAX": "10"}, ["HEADRACE_READ_LIMIT_MAX", "read_limit_default"]),
        ({"HEADRACE_MEMORY_BUDGET_BYTES": "2MiB"}, ["HEADRACE_MEMORY_BUDGET_BYTES"]),
        ({"HEADRACE_PROT": "1"}, ["HEADRACE_PROT", "did you mean HEADRACE_PORT"]),
        ({"HEADRACE_BODY_BYTES_MAX": "1"}, ["did you mean HEADRACE_"]),
    ],
)
def test_a_wrong_variable_is_refused_by_name(environ: dict[str, str], names: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load({}, environ)
    assert caught.value.fix
    for name in names:
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("port = [", ["h.toml", "TOML"]),
        ("prot = 1", ["prot in h.toml", "did you mean port?"]),
        ("port = true", ["port in h.toml"]),
        ("port = 1.5", ["port in h.toml"]),
        ("[server]\nport = 1", ["server in h.toml"]),
        ("port = -1", ["port in h.toml", "0 or more"]),
        ('max_topics = "many"', ["max_topics in h.toml"]),
    ],
)
def test_a_wrong_line_of_the_file_is_refused_by_name(text: str, names: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load({}, {}, ("h.toml", text))
    for name in names:
        assert name in str(caught.value)


def test_variables_of_the_tests_are_not_settings() -> None:
    assert load({}, {"HEADRACE_TEST_SEED": "1"}).settings == Settings()


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("0.0.0.0:5000", "0.0.0.0", 5000),
        ("0.0.0.0", "0.0.0.0", 4000),
        ("[::1]:5000", "::1", 5000),
        ("::1", "::1", 4000),
    ],
)
def test_the_host_may_carry_the_port(text: str, host: str, port: int) -> None:
    found = load({}, {"HEADRACE_HOST": text})
    assert (found.settings.host, found.settings.port) == (host, port)
    assert (found.origins["port"] == "default") == (port == 4000)


def test_a_small_body_alone_is_a_setting_that_works() -> None:
    """An existing deployment sets this one only; a record is part of a body."""
    settings, origins = load({}, {"HEADRACE_MAX_BODY_BYTES": "1024"})
    assert settings.body_bytes_max == settings.record_bytes_max == settings.meta_bytes_max == 1024
    assert origins["record_bytes_max"] == "default, not above body_bytes_max"
    assert load({}, {"HEADRACE_MAX_BODY_BYTES": "2MiB"}).settings.record_bytes_max == MIB
    with pytest.raises(ConfigError, match="record_bytes_max"):
        load({"record_bytes_max": "2048"}, {"HEADRACE_MAX_BODY_BYTES": "1024"})


def test_settings_made_in_a_program_are_checked_too() -> None:
    with pytest.raises(ConfigError, match="port is '80'"):
        Settings(port="80")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="port is True"):
        Settings(port=True)
    with pytest.raises(ConfigError, match=r"read_bytes_default .* is above read_bytes_max"):
        Settings(read_bytes_default=9 * MIB)


def test_what_is_shown_can_be_given_back() -> None:
    shown = config.show(load({}, {}))
    assert [name for name, _, _ in shown] == list(config.RULES)
    assert load({name: value for name, value, _ in shown}, {}).settings == Settings()
    environ = {config.variables_of(name)[0]: value for name, value, _ in shown}
    assert load({}, environ).settings == Settings()
