"""Configurations of streams and basins: what a client may send, how they resolve, what it sees.

Only this file knows the fields of a configuration and their defaults.  A field that is absent and
one that is null are the same in a configuration, and two things in a reconfiguration: keep it, and
reset it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final, Literal, Protocol, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from headrace.wire.s2.errors import S2Refusal, bad_header, bad_json, invalid
from headrace.wire.s2.records import U64_MAX

TimestampingMode = Literal["client-prefer", "client-require", "arrival"]
Cipher = Literal["aegis-256", "aes-256-gcm"]

DEFAULT_STORAGE_CLASS: Final = "express"
DEFAULT_RETENTION_SECS: Final = 7 * 24 * 3600
DEFAULT_MODE: Final[TimestampingMode] = "client-prefer"
# A class is any text, kept in the state of every stream.
STORAGE_CLASS_BYTES_MAX: Final = 64

Refuse = Callable[[str], S2Refusal]
T = TypeVar("T")


class Infinite(msgspec.Struct, frozen=True):
    """A retention without an end has nothing to say."""


class RetentionPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """How long records live: for an age in seconds, or without an end.

    >>> msgspec.json.encode(RetentionPolicy.of(0)), msgspec.json.encode(RetentionPolicy.of(60))
    (b'{"infinite":{}}', b'{"age":60}')
    """

    age: int | UnsetType = UNSET
    infinite: Infinite | UnsetType = UNSET

    def __post_init__(self) -> None:
        if (self.age is UNSET) == (self.infinite is UNSET):
            raise ValueError("a retention policy is either an age or infinite")
        _check_u64(self.age)

    @classmethod
    def of(cls, seconds: int) -> RetentionPolicy:
        """The policy of this many seconds; 0: without an end."""
        return cls(age=seconds) if seconds else cls(infinite=Infinite())

    @property
    def seconds(self) -> int:
        """The age in seconds; 0: without an end."""
        return 0 if isinstance(self.age, UnsetType) else self.age


class Timestamping(msgspec.Struct, frozen=True):
    """Which timestamps records get; None: the default's."""

    mode: TimestampingMode | None = None
    uncapped: bool | None = None


class DeleteOnEmpty(msgspec.Struct, frozen=True):
    """After how many seconds an empty stream goes; 0: never."""

    min_age_secs: int = 0

    def __post_init__(self) -> None:
        _check_u64(self.min_age_secs)


class OptionalStreamConfig(msgspec.Struct, frozen=True):
    """What a client, or a basin's default, says about a stream; None: nothing."""

    storage_class: str | None = None
    retention_policy: RetentionPolicy | None = None
    timestamping: Timestamping | None = None
    delete_on_empty: DeleteOnEmpty | None = None

    def reduced(self) -> OptionalStreamConfig | None:
        """The same without parts that say nothing; None: all of it says nothing.

        >>> OptionalStreamConfig(timestamping=Timestamping()).reduced() is None
        True
        """
        stamping = self.timestamping
        if stamping is not None and stamping == Timestamping():
            return msgspec.structs.replace(self, timestamping=None).reduced()
        return None if self == OptionalStreamConfig() else self

    def check(self, refuse: Refuse = invalid) -> None:
        """Refuse values that no stream can have."""
        _check_storage_class(self.storage_class, refuse)
        _check_retention(self.retention_policy, refuse)


class StreamConfig(msgspec.Struct, array_like=True, frozen=True):
    """The configuration of a stream, complete.  On-disk field order: add only at the end."""

    storage_class: str = DEFAULT_STORAGE_CLASS
    retention_secs: int = DEFAULT_RETENTION_SECS  # 0: without an end
    mode: TimestampingMode = DEFAULT_MODE
    uncapped: bool = False
    min_age_secs: int = 0  # of an empty stream that is to go; 0: it stays

    def to_json(self) -> bytes:
        """What a client is shown.

        >>> StreamConfig().to_json()[:61]
        b'{"storage_class":"express","retention_policy":{"age":604800},'
        """
        return _encode(self.shown())

    def shown(self) -> OptionalStreamConfig:
        """The same in the form of the API, with a value in every field."""
        return OptionalStreamConfig(
            self.storage_class,
            RetentionPolicy.of(self.retention_secs),
            Timestamping(self.mode, self.uncapped),
            DeleteOnEmpty(self.min_age_secs),
        )


class BasinConfig(msgspec.Struct, frozen=True):
    """The configuration of a basin, as it was given and as it is shown and kept."""

    default_stream_config: OptionalStreamConfig | None = None
    stream_cipher: Cipher | None = None
    create_stream_on_append: bool = False
    create_stream_on_read: bool = False

    def reduced(self) -> BasinConfig:
        """The same without parts that say nothing."""
        default = self.default_stream_config
        if default is None:
            return self
        return msgspec.structs.replace(self, default_stream_config=default.reduced())

    def check(self, refuse: Refuse = invalid) -> None:
        """Refuse values that no basin can have."""
        if self.default_stream_config is not None:
            self.default_stream_config.check(refuse)

    def to_json(self) -> bytes:
        """What a client is shown."""
        return _encode(self.reduced())


class TimestampingReconfiguration(msgspec.Struct, frozen=True):
    """Changes of timestamping."""

    mode: TimestampingMode | UnsetType | None = UNSET
    uncapped: bool | UnsetType | None = UNSET


class DeleteOnEmptyReconfiguration(msgspec.Struct, frozen=True):
    """Changes of when an empty stream goes."""

    min_age_secs: int | UnsetType | None = UNSET

    def __post_init__(self) -> None:
        _check_u64(self.min_age_secs)


class StreamReconfiguration(msgspec.Struct, frozen=True):
    """Changes of a stream's configuration, or of a basin's default one."""

    storage_class: str | UnsetType | None = UNSET
    retention_policy: RetentionPolicy | UnsetType | None = UNSET
    timestamping: TimestampingReconfiguration | UnsetType | None = UNSET
    delete_on_empty: DeleteOnEmptyReconfiguration | UnsetType | None = UNSET

    def check(self, refuse: Refuse = invalid) -> None:
        """Refuse values that no stream can have."""
        _check_storage_class(self.storage_class, refuse)
        _check_retention(self.retention_policy, refuse)

    def applied(self, current: OptionalStreamConfig) -> OptionalStreamConfig:
        """The configuration after the changes; what is reset says nothing."""
        return OptionalStreamConfig(
            _changed(self.storage_class, current.storage_class),
            _changed(self.retention_policy, current.retention_policy),
            self._timestamping(current.timestamping),
            self._delete_on_empty(current.delete_on_empty),
        )

    def _timestamping(self, current: Timestamping | None) -> Timestamping | None:
        change = self.timestamping
        if isinstance(change, UnsetType):
            return current
        if change is None:
            return None
        current = current or Timestamping()
        return Timestamping(
            _changed(change.mode, current.mode), _changed(change.uncapped, current.uncapped)
        )

    def _delete_on_empty(self, current: DeleteOnEmpty | None) -> DeleteOnEmpty | None:
        change = self.delete_on_empty
        if isinstance(change, UnsetType):
            return current
        if change is None:
            return None
        age = _changed(change.min_age_secs, None if current is None else current.min_age_secs)
        return None if age is None else DeleteOnEmpty(age)


class BasinReconfiguration(msgspec.Struct, frozen=True):
    """Changes of a basin's configuration; its switches cannot be reset."""

    default_stream_config: StreamReconfiguration | UnsetType | None = UNSET
    stream_cipher: Cipher | UnsetType | None = UNSET
    create_stream_on_append: bool | UnsetType = UNSET
    create_stream_on_read: bool | UnsetType = UNSET

    def check(self, refuse: Refuse = invalid) -> None:
        """Refuse values that no basin can have."""
        if isinstance(self.default_stream_config, StreamReconfiguration):
            self.default_stream_config.check(refuse)

    def applied(self, current: BasinConfig) -> BasinConfig:
        """The configuration after the changes."""
        default = current.default_stream_config
        change = self.default_stream_config
        if change is None:
            default = None
        elif not isinstance(change, UnsetType):
            default = change.applied(default or OptionalStreamConfig())
        return BasinConfig(
            default,
            _changed(self.stream_cipher, current.stream_cipher),
            _changed(self.create_stream_on_append, current.create_stream_on_append),
            _changed(self.create_stream_on_read, current.create_stream_on_read),
        ).reduced()


def resolve(*layers: OptionalStreamConfig | None) -> StreamConfig:
    """A complete configuration: each field is what the first layer says that says something.

    >>> given = OptionalStreamConfig(timestamping=Timestamping(mode="arrival"))
    >>> basin = OptionalStreamConfig(timestamping=Timestamping("client-require", True))
    >>> resolve(given, basin).mode, resolve(given, basin).uncapped, resolve().uncapped
    ('arrival', True, False)
    """
    storage_class = retention = mode = uncapped = age = None
    for layer in layers:
        if layer is None:
            continue
        storage_class = layer.storage_class if storage_class is None else storage_class
        if retention is None and layer.retention_policy is not None:
            retention = layer.retention_policy.seconds
        if layer.timestamping is not None:
            mode = layer.timestamping.mode if mode is None else mode
            uncapped = layer.timestamping.uncapped if uncapped is None else uncapped
        if age is None and layer.delete_on_empty is not None:
            age = layer.delete_on_empty.min_age_secs
    return StreamConfig(
        DEFAULT_STORAGE_CLASS if storage_class is None else storage_class,
        DEFAULT_RETENTION_SECS if retention is None else retention,
        DEFAULT_MODE if mode is None else mode,
        bool(uncapped),
        age or 0,
    )


def reconfigured(
    current: StreamConfig, changes: StreamReconfiguration, basin: OptionalStreamConfig | None
) -> StreamConfig:
    """A stream's configuration after changes; what is reset is the basin's default again."""
    return resolve(changes.applied(current.shown()), basin)


class Checked(Protocol):
    """A configuration or reconfiguration, whose values can be checked."""

    def check(self, refuse: Refuse = invalid) -> None: ...


C = TypeVar("C", bound=Checked)


def decode_config(
    body: bytes, form: type[C], refuse: Refuse = bad_json, refuse_value: Refuse = invalid
) -> C:
    """A configuration from JSON, checked.

    `refuse` is the refusal of what is not one, `refuse_value` of values that it cannot have.

    >>> decode_config(b'{"timestamping":{"mode":"now"}}', OptionalStreamConfig)
    Traceback (most recent call last):
    headrace.wire.s2.errors.S2_bad_json: Invalid enum value 'now' - at `$.timestamping.mode`
    >>> decode_config(b'{"retention_policy":{"age":0}}', OptionalStreamConfig)
    Traceback (most recent call last):
    headrace.wire.s2.errors.S2_invalid: a retention age must be at least 1 second
    """
    try:
        config = msgspec.json.decode(body, type=form)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise refuse(str(error)) from None
    config.check(refuse_value)
    return config


def decode_stream_config_header(value: bytes) -> OptionalStreamConfig:
    """The header `s2-stream-config`, whose every fault is one of the header."""
    return decode_config(value, OptionalStreamConfig, bad_header, bad_header)


def creation_key(token: str, config: OptionalStreamConfig | BasinConfig | None) -> bytes:
    """What tells a repeated creation: the request's token and what it asked for.

    A configuration that says nothing is the same as none.
    """
    reduced = None if config is None else config.reduced()
    asked = b"" if reduced is None or reduced == BasinConfig() else _encode(reduced)
    token_bytes = token.encode()
    return hashlib.sha256(b"%d:%b%b" % (len(token_bytes), token_bytes, asked)).digest()


def _changed(change: T | UnsetType, current: T) -> T:
    return current if isinstance(change, UnsetType) else change


def _check_u64(value: int | UnsetType | None) -> None:
    if isinstance(value, int) and not 0 <= value <= U64_MAX:
        raise ValueError(f"{value} is not a whole number of 64 bits")


def _check_retention(policy: RetentionPolicy | UnsetType | None, refuse: Refuse) -> None:
    if isinstance(policy, RetentionPolicy) and policy.age == 0:
        raise refuse("a retention age must be at least 1 second")


def _check_storage_class(name: str | UnsetType | None, refuse: Refuse) -> None:
    if isinstance(name, str) and len(name.encode()) > STORAGE_CLASS_BYTES_MAX:
        raise refuse(f"a storage class has at most {STORAGE_CLASS_BYTES_MAX} bytes")


_encode = msgspec.json.Encoder().encode
