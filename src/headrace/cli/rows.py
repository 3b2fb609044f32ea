"""Rows of text on a terminal and as CSV: widths, nulls, and characters that would do harm."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

Cell = str | None

CELL_COLUMNS_MAX = 80
NULL = "NULL"
_NUMBERS = re.compile(r"(tinyint|smallint|int|bigint|float|double|decimal\(.*\))$")
# What a terminal would obey instead of showing it: controls, and marks of writing direction.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def print_cells(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Cell]]) -> bool:
    """An aligned table under the columns' names; returns whether a value was cut.

    One value on its own, such as a plan, is printed as it is.
    """
    names = [shown(name)[0] for name, _ in columns]
    if len(columns) == len(rows) == 1 and "\n" in (rows[0][0] or ""):
        print("\n".join(harmless(line) for line in (rows[0][0] or "").splitlines()))
        return False
    right = [bool(_NUMBERS.match(kind)) for _, kind in columns]
    cells = [[shown(cell) for cell in row] for row in rows]
    texts = [names, *([text for text, _ in row] for row in cells)]
    widths = [max(map(width, column)) for column in zip(*texts, strict=True)]
    print(_line(names, widths, right))
    print("  ".join("-" * size for size in widths))
    for row in texts[1:]:
        print(_line(row, widths, right))
    return any(cut for row in cells for _, cut in row)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = []
    for cell, size, at_right in zip(cells, widths, right, strict=True):
        space = " " * (size - width(cell))
        padded.append(space + cell if at_right else cell + space)
    return "  ".join(padded).rstrip()


def shown(cell: Cell) -> tuple[str, bool]:
    """A cell as a table has it, and whether it is longer than that.

    >>> shown(None), shown("a\\nb"), shown("x" * 99)[0][-3:]
    (('NULL', False), ('a\\\\nb', False), 'xx…')
    """
    if cell is None:
        return NULL, False
    text = harmless(cell[: CELL_COLUMNS_MAX * 4])
    if len(cell) <= CELL_COLUMNS_MAX and width(text) <= CELL_COLUMNS_MAX:
        return text, False
    while width(text) >= CELL_COLUMNS_MAX:
        text = text[:-1]
    return text + "…", True


def harmless(text: str) -> str:
    """The same without characters that a terminal would obey.

    >>> harmless("a\\x1b[2Jb\\tc")
    'a\\\\x1b[2Jb\\\\tc'
    """
    return _CONTROLS.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def width(text: str) -> int:
    """How many columns of a terminal a text takes.

    >>> width("abc"), width("日本"), width("e\\u0301")
    (3, 4, 1)
    """
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) != 0 for c in text)


def csv_line(cells: Sequence[Cell]) -> str:
    """One line of CSV: a null is an empty field, an empty text is two quotes.

    >>> csv_line(["a", None, "b,c", "5'"])
    'a,,"b,c",5\\'\\n'
    """
    return ",".join(map(_csv_cell, cells)) + "\n"


def _csv_cell(cell: Cell) -> str:
    if cell is None:
        return ""
    if cell and not any(character in cell for character in ',"\r\n'):
        return cell
    return '"' + cell.replace('"', '""') + '"'
