"""Options of Spark as values: one reader of each kind of value, and errors that name the option.

`options.py` says which options there are and what follows from them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from headrace.core.errors import ConfigError
from headrace.core.units import parse_duration_ms
from headrace.spark import option_table as table

VALUE_SHOWN_MAX: Final = 100
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)


class GivenOptions:
    """The options as they were given, read one by one as what they should be."""

    def __init__(self, options: Mapping[str, str], uses: Collection[str], *, path: str) -> None:
        self._values: dict[str, str] = {}
        for name, value in options.items():
            lower = name.lower()
            if value is not None and lower not in table.OF_SPARK and lower != "path":
                _check_name(name, uses)
                self._values[lower] = str(value).strip()
        for lower, value in self._values.items():
            if not value:
                option = table.BY_LOWER[lower]
                raise ConfigError(f"{option.name} is empty", fix=f"give {option.values}")
        self._take_path(options, path)

    def _take_path(self, options: Mapping[str, str], option: str) -> None:
        """`.load("orders")` and `.save("orders")` name a topic too."""
        path = next((v for name, v in options.items() if name.lower() == "path" and v), None)
        if path is None:
            return
        if self._values.get(option.lower(), path) != path:
            raise ConfigError(
                f"{option} is {self.text(option)!r}, and the path of load or save {path!r}",
                fix="give one of them",
            )
        self._values[option.lower()] = path

    def has(self, name: str) -> bool:
        return name.lower() in self._values

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def wrong(self, name: str, why: str = "") -> ConfigError:
        """The error about the value of an option."""
        value = self._values[name.lower()]
        shown = value if len(value) <= VALUE_SHOWN_MAX else value[:VALUE_SHOWN_MAX] + "..."
        because = f": {why}" if why else ""
        option = table.BY_LOWER[name.lower()]
        return ConfigError(f"{name} is {shown!r}{because}", fix=f"give {option.values}")

    def word(self, name: str, words: tuple[str, ...], default: str) -> str:
        value = self._values.get(name.lower(), default).lower()
        if value not in words:
            raise self.wrong(name)
        return value

    def flag(self, name: str, default: bool) -> bool:
        return self.word(name, ("true", "false"), str(default).lower()) == "true"

    def count(self, name: str, least: int = 1) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not re.fullmatch("[0-9]{1,18}", value) or int(value) < least:
            raise self.wrong(name)
        return int(value)

    def duration_ms(self, name: str, default: int) -> int:
        value = self.text(name)
        if value is None:
            return default
        try:
            return parse_duration_ms(value)
        except ValueError:
            raise self.wrong(name) from None

    def names(self, name: str) -> tuple[str, ...]:
        """A list with commas, each entry once."""
        value = self.text(name)
        if value is None:
            return ()
        found = tuple(part.strip() for part in value.split(","))
        if "" in found:
            raise self.wrong(name, "a name is empty")
        twice = next((part for at, part in enumerate(found) if part in found[:at]), None)
        if twice is not None:
            raise self.wrong(name, f"{twice!r} is named twice")
        return found

    def time_ms(self, name: str) -> int:
        value = self._values[name.lower()]
        try:
            return time_ms(int(value) if re.fullmatch("[0-9]{1,15}", value) else value)
        except ValueError as error:
            raise self.wrong(name, str(error)) from None

    def map(self, name: str) -> dict[str, Any]:
        try:
            return msgspec.json.decode(self._values[name.lower()], type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise self.wrong(name, str(error)) from None


def _check_name(name: str, uses: Collection[str]) -> None:
    lower = name.lower()
    option = table.BY_LOWER.get(lower)
    if option is not None and not set(uses).isdisjoint(option.uses):
        return
    here = {o.name.lower(): o.name for o in table.TABLE if not set(uses).isdisjoint(o.uses)}
    what = " or ".join(uses)
    if option is not None:
        instead = "subscribe" if option.name == "topic" else ""
        instead = "topic" if option.name == "subscribe" else instead
        raise ConfigError(
            f"{option.name} is an option of a {' or a '.join(option.uses)}, and this is a {what}",
            fix=f"use {instead}" if instead else "leave it out",
        )
    known = table.ELSEWHERE.get(lower)
    if known is not None and known.lower() in here:
        raise ConfigError(f"there is no option {name!r}", fix=f"here it is {known}")
    nearest = difflib.get_close_matches(lower, here, n=1, cutoff=0.0)[0]
    raise ConfigError(
        f"there is no option {name!r} of a {what}", fix=f"did you mean {here[nearest]}?"
    )


def time_ms(value: object) -> int:
    """Milliseconds since 1970, of a number of them or a time of ISO 8601; the next full one.

    >>> time_ms(5), time_ms("1970-01-01T00:00:01.0001Z"), time_ms("1970-01-02")
    (5, 1001, 86400000)
    """
    if type(value) is int and value >= 0:
        return value
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no time")
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(f"{value!r} is no time") from None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    if at < _EPOCH:
        raise ValueError(f"{value!r} is before 1970")
    return -((_EPOCH - at) // _MS)
