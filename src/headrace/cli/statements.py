"""Where one SQL statement ends and the next begins: a semicolon outside quotes and comments."""

from __future__ import annotations

import re

# A piece is a quoted text, a comment, a semicolon, or anything else.  A quote or a comment that is
# still open at the end of the text is a piece of its own kind.
_PIECE = re.compile(
    r"""
    (?P<quoted> '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `[^`]*` )
    | (?P<comment> --[^\n]* | /\*.*?\*/ )
    | (?P<open> '.*\Z | ".*\Z | `.*\Z | /\*.*\Z )
    | (?P<end> ; )
    | (?P<other> [^'"`;/-]+ | . )
    """,
    re.VERBOSE | re.DOTALL,
)


def split_statements(text: str) -> tuple[list[str], str]:
    """The statements that are complete, and what is left behind the last semicolon.

    >>> split_statements("select ';' -- a; b\\n from t; select 2")
    (["select ';' -- a; b\\n from t"], 'select 2')
    >>> split_statements("select 'it;")
    ([], "select 'it;")
    """
    statements: list[str] = []
    parts: list[str] = []
    blank = True
    for match in _PIECE.finditer(text):
        if match.lastgroup != "end":
            parts.append(match[0])
            blank = blank and (match.lastgroup == "comment" or match[0].isspace())
            continue
        if not blank:
            statements.append("".join(parts).strip())
        parts, blank = [], True
    return statements, "" if blank else "".join(parts).strip()


def all_statements(text: str) -> list[str]:
    """Every statement of a text; the last needs no semicolon."""
    statements, rest = split_statements(text)
    return [*statements, rest] if rest else statements
