"""The protobuf messages of S2 as the protobuf library has them, for tests and measurements.

Built from a description instead of a compiled file, so that nothing is generated.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)

_PACKAGE: Final = "headrace.tests.s2"
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    "u64": _Field.TYPE_UINT64,
    "bytes": _Field.TYPE_BYTES,
    "string": _Field.TYPE_STRING,
}
# Message -> its fields in order of their numbers: label, type, name.
_MESSAGES: Final = {
    "StreamPosition": ("plain u64 seq_num", "plain u64 timestamp"),
    "Header": ("plain bytes name", "plain bytes value"),
    "AppendRecord": ("optional u64 timestamp", "repeated Header headers", "plain bytes body"),
    "AppendInput": (
        "repeated AppendRecord records",
        "optional u64 match_seq_num",
        "optional string fencing_token",
    ),
    "AppendAck": (
        "plain StreamPosition start",
        "plain StreamPosition end",
        "plain StreamPosition tail",
    ),
    "SequencedRecord": (
        "plain u64 seq_num",
        "plain u64 timestamp",
        "repeated Header headers",
        "plain bytes body",
    ),
    "ReadBatch": ("repeated SequencedRecord records", "optional StreamPosition tail"),
}


def _described() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="headrace_tests_s2.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, text in enumerate(fields, start=1):
            label, kind, field_name = text.split()
            field = message.field.add(name=field_name, number=number)
            field.label = _Field.LABEL_REPEATED if label == "repeated" else _Field.LABEL_OPTIONAL
            if kind in _SCALARS:
                field.type = _SCALARS[kind]
            else:
                field.type = _Field.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{kind}"
            if label == "optional":
                field.proto3_optional = True
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field_name}")
    return file


_POOL: Final = descriptor_pool.DescriptorPool()
_POOL.Add(_described())


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


AppendInput: Final = _message("AppendInput")
AppendAck: Final = _message("AppendAck")
ReadBatch: Final = _message("ReadBatch")
