"""Every setting: its name, default, bounds and meaning, and where its value came from.

Only this file knows a setting.  The rules it owns: a flag beats a `HEADRACE_*` variable, which
beats a line of the TOML file, which beats the default; names are flat; an unknown name, a value
that does not parse and two settings that contradict each other refuse to start, naming what the
operator wrote.  Files are read by the caller: `load` gets their text.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Literal, NamedTuple, get_type_hints

from headrace.core import limits
from headrace.core.errors import ConfigError
from headrace.core.limits import KIB, MIB
from headrace.core.units import format_duration_ms, format_size, parse_duration_ms, parse_size

Value = str | int

# Variables that only the tests read.
TEST_VARIABLE_PREFIX = "HEADRACE_TEST_"
COLD_SCHEMES = ("s3", "gs", "file")


@dataclass(frozen=True, slots=True)
class Rule:
    """What a setting may be."""

    doc: str
    kind: Literal["text", "size", "duration", "count"]
    low: int = 1
    high: int | None = None
    choices: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()  # the first is the documented one; HEADRACE_<NAME> if empty


def _text(doc: str, *, choices: tuple[str, ...] = (), variables: tuple[str, ...] = ()) -> Rule:
    return Rule(doc, "text", choices=choices, variables=variables)


def _size(doc: str, low: int = 1, *, variables: tuple[str, ...] = ()) -> Rule:
    return Rule(doc, "size", low, variables=variables)


def _duration(doc: str, low: int = 1, high: int | None = None) -> Rule:
    return Rule(doc, "duration", low, high)


def _count(doc: str, low: int = 1, high: int | None = None) -> Rule:
    return Rule(doc, "count", low, high)


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one process; valid once constructed.

    >>> Settings(port=0).port
    0
    >>> Settings(port=70_000)
    Traceback (most recent call last):
    headrace.core.errors.ConfigError: port is 70000; use 65535 or less
    """

    # What a person sets.
    data_dir: Annotated[str, _text("Directory that holds everything stored.")] = "./headrace-data"
    host: Annotated[str, _text("Address to listen on: a host, or host:port.")] = "127.0.0.1"
    port: Annotated[int, _count("TCP port to listen on; 0 takes a free one.", 0, 65_535)] = 4000
    port_file: Annotated[str, _text("File that gets the port once ready; empty: none.")] = ""
    log: Annotated[
        str, _text("Least severe log level shown.", choices=("debug", "info", "warning", "error"))
    ] = "info"
    cold_url: Annotated[
        str,
        _text(
            "Where old segments go: a directory, or an s3:// or gs:// address; empty: nowhere.",
            variables=("HEADRACE_COLD_URL", "HEADRACE_COLD_DIR"),
        ),
    ] = ""

    # The write-ahead log.
    wal_shards: Annotated[
        int, _count("Logs written side by side; recovery accepts any.", 1, limits.wal_shards_max)
    ] = 1
    wal_file_bytes: Annotated[int, _size("Size of one log file.", 64 * KIB)] = 128 * MIB
    wal_batch_bytes_max: Annotated[int, _size("Most bytes one group commit holds.", 4 * KIB)] = (
        4 * MIB
    )
    wal_pending_bytes_max: Annotated[int, _size("Most bytes waiting for the log.", 4 * KIB)] = (
        64 * MIB
    )
    sync_interval_ms: Annotated[
        int, _duration("Longest time until classes `memory` and `disk` are synced.", 1, 60_000)
    ] = 50

    # Checkpoints and segments.
    checkpoint_wal_bytes: Annotated[int, _size("Log bytes that start a checkpoint.")] = 64 * MIB
    checkpoint_age_ms: Annotated[int, _duration("Age that starts a checkpoint.")] = 600_000
    segment_max_events: Annotated[
        int, _count("Rows in shared files that give a topic segments of its own.")
    ] = 10_000
    segment_max_bytes: Annotated[int, _size("Most payload bytes of a topic's segment.")] = 64 * MIB
    segment_max_age_ms: Annotated[
        int, _duration("Age of unsealed rows that seals a topic's segment.")
    ] = 3_600_000
    hot_retain_segments: Annotated[
        int, _count("Own segments a topic keeps on local disk; 0: no bound.", 0)
    ] = 4
    hot_retain_bytes: Annotated[
        int, _size("Sealed bytes a topic keeps on local disk; 0: no bound.", 0)
    ] = 0

    # Memory and threads.
    memory_budget_bytes: Annotated[
        int, _size("Memory for unsealed records, indexes and caches together.", MIB)
    ] = 512 * MIB
    read_cache_bytes: Annotated[int, _size("Verified segment blocks kept.", 0)] = 128 * MIB
    tag_index_bytes_max: Annotated[int, _size("Index of the tags of unsealed records.", 0)] = (
        64 * MIB
    )
    replay_memory_bytes: Annotated[int, _size("Memory for replay at start.", MIB)] = 64 * MIB
    reader_threads: Annotated[
        int, _count("Threads that read from disk.", 1, limits.reader_threads_max)
    ] = 2

    # Caps on the whole.
    idempotency_entries_max: Annotated[
        int, _count("Idempotency keys remembered; a full table answers 429.")
    ] = 1_000_000
    max_topics: Annotated[int, _count("Most topics; 0: no bound.", 0)] = 100_000
    max_total_bytes: Annotated[int, _size("Most live bytes of all topics; 0: no bound.", 0)] = 0

    # Limits on one request.
    records_per_append_max: Annotated[int, _count("Records in one append.")] = 10_000
    record_bytes_max: Annotated[int, _size("Data and meta of one record.")] = MIB
    body_bytes_max: Annotated[
        int, _size("Body of one request.", variables=("HEADRACE_MAX_BODY_BYTES",))
    ] = 64 * MIB
    meta_bytes_max: Annotated[int, _size("Meta of one record.")] = 16 * KIB
    meta_keys_max: Annotated[int, _count("Top-level keys in meta.")] = 64
    tag_bytes_max: Annotated[int, _size("A tag.")] = 256
    node_bytes_max: Annotated[int, _size("A node name.")] = 128
    idempotency_key_bytes_max: Annotated[int, _size("An idempotency key.")] = 256
    read_limit_default: Annotated[int, _count("Records in a read that names no limit.")] = 256
    read_limit_max: Annotated[int, _count("Records in one read.")] = 1_000
    wait_ms_max: Annotated[int, _duration("Longest wait of a long poll.", 0)] = 30_000
    read_bytes_default: Annotated[int, _size("Bytes in a read that names no budget.")] = MIB
    read_bytes_max: Annotated[int, _size("Bytes in one read.")] = 8 * MIB

    def __post_init__(self) -> None:
        for name, rule in RULES.items():
            _check_value(name, rule, getattr(self, name))
        _check_relations(asdict(self), lambda name: name)


RULES: Mapping[str, Rule] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(Settings, include_extras=True).items()
}


class Configuration(NamedTuple):
    """Settings, and for each the place its value came from."""

    settings: Settings
    origins: Mapping[str, str]


class _Given(NamedTuple):
    value: Value
    label: str  # what the operator wrote: --port, HEADRACE_PORT, port in headrace.toml
    origin: str


def variables_of(name: str) -> tuple[str, ...]:
    """The environment variables of a setting, the documented one first.

    >>> variables_of("cold_url"), variables_of("port")
    (('HEADRACE_COLD_URL', 'HEADRACE_COLD_DIR'), ('HEADRACE_PORT',))
    """
    return RULES[name].variables or (f"HEADRACE_{name.upper()}",)


def flag_of(name: str) -> str:
    """The command-line flag of a setting.

    >>> flag_of("data_dir")
    '--data-dir'
    """
    return "--" + name.replace("_", "-")


def load(
    flags: Mapping[str, str],
    environ: Mapping[str, str],
    file: tuple[str, str] | None = None,
) -> Configuration:
    """Settings from flags, the environment and the TOML file's (name, text).

    >>> found = load({"port": "5000"}, {"HEADRACE_PORT": "6000", "HEADRACE_LOG": "debug"})
    >>> found.settings.port, found.settings.log, found.origins["log"]
    (5000, 'debug', 'environment HEADRACE_LOG')
    """
    given = _from_file(*file) if file else {}
    given |= _from_environment(environ)
    given |= {
        name: _Given(text, flag_of(name), "flag " + flag_of(name)) for name, text in flags.items()
    }
    _split_host(given)

    values: dict[str, Value] = dict(DEFAULTS)
    for name, item in given.items():
        values[name] = _parse(item.label, RULES[name], item.value)

    def label(name: str) -> str:
        return given[name].label if name in given else f"{name} (by default)"

    _check_relations(values, label)
    origins = {name: given[name].origin if name in given else "default" for name in RULES}
    return Configuration(Settings(**values), origins)  # type: ignore[arg-type]


def show_value(name: str, value: Value) -> str:
    """A value as an operator would write it.

    >>> show_value("wal_file_bytes", 134217728), show_value("log", "info")
    ('128MiB', 'info')
    """
    if isinstance(value, str):
        return value
    kind = RULES[name].kind
    return {"size": format_size, "duration": format_duration_ms}.get(kind, str)(value)


def show(configuration: Configuration) -> list[tuple[str, str, str]]:
    """Each setting's name, its value as an operator would write it, and its origin."""
    settings, origins = configuration
    return [(name, show_value(name, getattr(settings, name)), origins[name]) for name in RULES]


def _from_file(file_name: str, text: str) -> dict[str, _Given]:
    # tomllib is imported here because most starts have no file.
    import tomllib

    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file_name} is not TOML: {error}", fix="mend that line") from None
    given = {}
    for name, value in table.items():
        label = f"{name} in {file_name}"
        if name not in RULES:
            raise _unknown(label, name, RULES)
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ConfigError(
                f"{label} is {type(value).__name__}",
                fix="write a string or a whole number",
                detail={"setting": name},
            )
        given[name] = _Given(value, label, f"file {file_name}")
    return given


def _from_environment(environ: Mapping[str, str]) -> dict[str, _Given]:
    names = {variable: name for name in RULES for variable in variables_of(name)}
    given: dict[str, _Given] = {}
    for variable in sorted(environ):
        if not variable.startswith("HEADRACE_") or variable.startswith(TEST_VARIABLE_PREFIX):
            continue
        if variable not in names:
            raise _unknown(variable, variable, names)
        name, value = names[variable], environ[variable]
        if name in given and given[name].value != value:
            raise ConfigError(
                f"{given[name].label} and {variable} are the same setting with two values",
                fix="set only one of them",
                detail={"setting": name},
            )
        given[name] = _Given(value, variable, f"environment {variable}")
    return given


def _split_host(given: dict[str, _Given]) -> None:
    """`host:port` in the host setting is both settings at once."""
    if "host" not in given:
        return
    value, label, origin = given["host"]
    host, colon, port = str(value).rpartition(":")
    bare_ipv6 = ":" in host and not host.endswith("]")
    if not colon or bare_ipv6:
        return
    if "port" in given and str(given["port"].value) != port:
        raise ConfigError(
            f"{label}={value} and {given['port'].label}={given['port'].value} name two ports",
            fix="set the port in one of them",
            detail={"setting": "port"},
        )
    given["host"] = _Given(host.strip("[]"), label, origin)
    given["port"] = _Given(port, label, origin)


def _unknown(label: str, name: str, known: Mapping[str, object]) -> ConfigError:
    # difflib is imported here because it is needed once in a thousand starts.
    import difflib

    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
    return ConfigError(
        f"{label} is not a setting",
        fix=f"did you mean {nearest}? `headrace config show` lists them all",
        detail={"setting": name, "nearest": nearest},
    )


def _parse(label: str, rule: Rule, value: Value) -> Value:
    if rule.kind == "text":
        parsed: Value = str(value)
    elif isinstance(value, int):
        parsed = value
    else:
        try:
            if rule.kind == "size":
                parsed = parse_size(value)
            elif rule.kind == "duration":
                parsed = parse_duration_ms(value)
            else:
                parsed = int(value)
        except ValueError as error:
            fix = "write a whole number" if rule.kind == "count" else str(error)
            raise ConfigError(f"{label}={value!r} does not parse", fix=fix) from None
    _check_value(label, rule, parsed)
    return parsed


def _check_value(label: str, rule: Rule, value: Value) -> None:
    if isinstance(value, bool) or isinstance(value, str) != (rule.kind == "text"):
        wanted = "text" if rule.kind == "text" else "a whole number"
        raise ConfigError(f"{label} is {value!r}", fix=f"give {wanted}")
    if isinstance(value, str):
        if rule.choices and value not in rule.choices:
            raise ConfigError(f"{label} is {value!r}", fix=f"use one of {', '.join(rule.choices)}")
    elif value < rule.low:
        raise ConfigError(f"{label} is {value}", fix=f"use {rule.low} or more")
    elif rule.high is not None and value > rule.high:
        raise ConfigError(f"{label} is {value}", fix=f"use {rule.high} or less")


# Each pair: the first must not be above the second.
_ORDERED = (
    ("wal_batch_bytes_max", "wal_file_bytes"),
    ("wal_batch_bytes_max", "wal_pending_bytes_max"),
    ("record_bytes_max", "body_bytes_max"),
    ("meta_bytes_max", "record_bytes_max"),
    ("read_limit_default", "read_limit_max"),
    ("read_bytes_default", "read_bytes_max"),
    ("read_cache_bytes", "memory_budget_bytes"),
    ("tag_index_bytes_max", "memory_budget_bytes"),
)


def _check_relations(values: Mapping[str, Value], label: Callable[[str], str]) -> None:
    for small, large in _ORDERED:
        below, above = values[small], values[large]
        assert isinstance(below, int)
        assert isinstance(above, int)
        if below > above:
            raise ConfigError(
                f"{label(small)} ({below}) is above {label(large)} ({above})",
                fix=f"lower {small} or raise {large}",
                detail={"settings": [small, large]},
            )
    if not values["data_dir"]:
        raise ConfigError(f"{label('data_dir')} is empty", fix="name a directory")
    _check_cold(str(values["cold_url"]), str(values["data_dir"]), label)


def _check_cold(cold_url: str, data_dir: str, label: Callable[[str], str]) -> None:
    scheme, separator, _ = cold_url.partition("://")
    if separator and scheme not in COLD_SCHEMES:
        raise ConfigError(
            f"{label('cold_url')} has the scheme {scheme!r}",
            fix=f"use a directory or one of {', '.join(s + '://' for s in COLD_SCHEMES)}",
        )
    local = cold_url.removeprefix("file://")
    if cold_url and os.path.abspath(local) == os.path.abspath(data_dir):
        raise ConfigError(
            f"{label('cold_url')} is the data directory",
            fix="name another directory; the cold copy must not replace the hot one",
            detail={"settings": ["cold_url", "data_dir"]},
        )


# Last, because the defaults are checked like any other values.
DEFAULTS: Mapping[str, Value] = asdict(Settings())
assert RULES.keys() == DEFAULTS.keys()
