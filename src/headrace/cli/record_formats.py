"""Records as lines: how `headrace append` reads them, and how `read` and `tail` print them.

What is printed with `--format jsonl` is what `append --format records` reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from headrace.core.errors import InvalidRequest
from headrace.wire.rfc3339 import rfc3339

if TYPE_CHECKING:
    from headrace.api.records import Draft, Record, Tombstone

INPUTS: Final = ("jsonl", "text", "records", "raw")
OUTPUTS: Final = ("table", "data", "jsonl")
FIELDS: Final = ("topic", "seq", "ts", "time", "tag", "node", "meta", "data")
DATA_COLUMNS_MAX: Final = 120  # of a table, which is for people


class BadLine(InvalidRequest):
    """A line that is no record."""


def drafts(lines: Iterable[bytes], form: str, tag: str | None, source: str) -> Iterator[Draft]:
    """One record of each line; empty lines are left out, but for `text`."""
    from headrace.api.records import Draft

    for number, line in enumerate(lines, 1):
        text = line.rstrip(b"\r\n")
        if form == "text":
            yield Draft(_text(text, number, source), tag=tag)
        elif text.strip():
            yield _draft(text, form, tag, f"line {number} of {source}")


def _text(line: bytes, number: int, source: str) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise BadLine(
            f"line {number} of {source} is not UTF-8 ({error.reason})",
            fix="use --format raw, which appends everything as one record of bytes",
        ) from None


def _draft(text: bytes, form: str, tag: str | None, where: str) -> Draft:
    import msgspec

    from headrace.api.records import Draft

    try:
        if form == "jsonl":
            text.decode()
            msgspec.json.decode(text)
            return Draft(msgspec.Raw(text), tag=tag)
        draft = msgspec.json.decode(text, type=Draft)
        return draft if draft.tag is not None else msgspec.structs.replace(draft, tag=tag)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        wanted = "JSON" if form == "jsonl" else 'an object such as {"data":1,"tag":"x"}'
        fix = "use --format text, which appends each line as a string"
        raise BadLine(f"{where} is not {wanted} ({error})", fix=fix) from None


def shown(record: Record) -> dict[str, Any]:
    """A record as one JSON object; what it has not is left out."""
    fields: dict[str, Any] = {"seq": record.seq, "ts": record.ts}
    for name in ("tag", "node", "meta"):
        value = getattr(record, name)
        if value is not None:
            fields[name] = value
    fields["data"] = json.loads(bytes(record.raw))
    return fields


class Printer:
    """Prints records one by one, in one of `OUTPUTS` or by a template such as "{seq} {data}"."""

    def __init__(self, form: str, topic: str) -> None:
        if form not in OUTPUTS and "{" not in form:
            raise InvalidRequest(
                f"--format {form!r} is not a format",
                fix=f"use one of {', '.join(OUTPUTS)}, or a template such as '{{seq}} {{data}}'",
            )
        self._form, self._topic = form, topic
        self._headed = False
        if form not in OUTPUTS:
            self._check_template()

    def _check_template(self) -> None:
        try:
            self._form.format(**dict.fromkeys(FIELDS, ""))
        except (KeyError, IndexError, ValueError):
            raise InvalidRequest(
                f"--format {self._form!r} has a field that no record has",
                fix=f"fields are {', '.join('{' + name + '}' for name in FIELDS)}",
            ) from None

    def record(self, record: Record) -> None:
        """Print one record."""
        if self._form == "data":
            print(bytes(record.raw).decode())
        elif self._form == "jsonl":
            print(json.dumps(shown(record), ensure_ascii=False))
        elif self._form == "table":
            self._row(record)
        else:
            print(self._form.format(**self._fields(record)))

    def tombstone(self, lost: Tombstone) -> None:
        """Print that records are gone."""
        if self._form == "jsonl":
            gap = {"gap_from": lost.gap_from, "gap_to": lost.gap_to, "reason": lost.reason}
            print(json.dumps({"tombstone": gap}))
        else:
            print(f"-- seqs {lost.gap_from} to {lost.gap_to} are gone: {lost.reason}")

    def _row(self, record: Record) -> None:
        if not self._headed:
            self._headed = True
            print(f"{'seq':>10}  {'time':24}  {'tag':12}  data")
        fields = self._fields(record)
        data = fields["data"]
        if len(data) > DATA_COLUMNS_MAX:
            data = data[: DATA_COLUMNS_MAX - 1] + "…"
        print(f"{record.seq:>10}  {fields['time']:24}  {fields['tag']:12}  {data}")

    def _fields(self, record: Record) -> dict[str, str]:
        meta = record.meta
        return {
            "topic": self._topic,
            "seq": str(record.seq),
            "ts": str(record.ts),
            "time": rfc3339(record.ts),
            "tag": record.tag or "",
            "node": record.node or "",
            "meta": "" if meta is None else json.dumps(meta, ensure_ascii=False),
            "data": bytes(record.raw).decode().replace("\r", " ").replace("\n", " "),
        }
