"""What one setting may be: its kind, its bounds, and how a value outside of them is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.core.errors import ConfigError
from headrace.core.setting_relations import Value


@dataclass(frozen=True, slots=True)
class Rule:
    """What a setting may be."""

    doc: str
    kind: Literal["text", "size", "duration", "count", "flag"]
    low: int = 1
    high: int | None = None
    choices: tuple[str, ...] = ()
    secret: bool = False  # never shown
    variables: tuple[str, ...] = ()  # the first is the documented one; HEADRACE_<NAME> if empty


def text(
    doc: str,
    *,
    choices: tuple[str, ...] = (),
    secret: bool = False,
    variables: tuple[str, ...] = (),
) -> Rule:
    """The rule of a text."""
    return Rule(doc, "text", choices=choices, secret=secret, variables=variables)


def flag(doc: str) -> Rule:
    """The rule of a flag."""
    return Rule(doc, "flag", 0, 1)


def size(doc: str, low: int = 1, *, variables: tuple[str, ...] = ()) -> Rule:
    """The rule of a number of bytes."""
    return Rule(doc, "size", low, variables=variables)


def duration(doc: str, low: int = 1, high: int | None = None) -> Rule:
    """The rule of a number of milliseconds."""
    return Rule(doc, "duration", low, high)


def count(doc: str, low: int = 1, high: int | None = None) -> Rule:
    """The rule of a number."""
    return Rule(doc, "count", low, high)


def check_value(label: str, rule: Rule, value: Value) -> None:
    """Refuse a value that the rule does not allow."""
    if rule.kind == "flag":
        if not isinstance(value, bool):
            raise ConfigError(f"{label} is {value!r}", fix="give true or false")
        return
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
