"""Where one SQL statement ends and the next begins: a semicolon outside quotes and comments."""

from __future__ import annotations

import re
from collections.abc import Iterator

# A piece is a quoted text, a comment, a semicolon, or anything else.  A quote or a comment that is
# still open at the end of the text is a piece of its own kind.  In r'...' a backslash is itself.
_PIECE = re.compile(
    r"""
    (?P<quoted> (?<=\b[rR])(?:'[^']*'|"[^"]*") | '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `[^`]*` )
    | (?P<comment> --[^\n]* )
    | (?P<block> /\* )
    | (?P<open> '.*\Z | ".*\Z | `.*\Z )
    | (?P<end> ; )
    | (?P<other> [^'"`;/-]+ | . )
    """,
    re.VERBOSE | re.DOTALL,
)
_BLOCK_EDGE = re.compile(r"/\*|\*/")


def _pieces(text: str) -> Iterator[tuple[str, str]]:
    """The kind and the text of each piece."""
    at = 0
    while at < len(text):
        match = _PIECE.match(text, at)
        assert match is not None and match.lastgroup is not None, "any character is a piece"
        kind, stop = match.lastgroup, match.end()
        if kind == "block":
            kind, stop = _block(text, at)
        yield kind, text[at:stop]
        at = stop


def _block(text: str, start: int) -> tuple[str, int]:
    """What a comment that starts here is, and where it ends: there may be others within it."""
    depth = 0
    for edge in _BLOCK_EDGE.finditer(text, start):
        depth += 1 if edge[0] == "/*" else -1
        if not depth:
            return "comment", edge.end()
    return "open", len(text)


def split_statements(text: str) -> tuple[list[str], str]:
    """The statements that are complete, and what is left behind the last semicolon.

    >>> split_statements("select ';' -- a; b\\n from t; select 2")
    (["select ';' -- a; b\\n from t"], 'select 2')
    >>> split_statements("select 'it;")
    ([], "select 'it;")
    >>> split_statements("select 1 /* a /* b */ ; */ ; select 2")
    (['select 1 /* a /* b */ ; */'], 'select 2')
    """
    statements: list[str] = []
    parts: list[str] = []
    blank = True
    for kind, piece in _pieces(text):
        if kind != "end":
            parts.append(piece)
            blank = blank and (kind == "comment" or piece.isspace())
            continue
        if not blank:
            statements.append("".join(parts).strip())
        parts, blank = [], True
    return statements, "" if blank else "".join(parts).strip()


def all_statements(text: str) -> list[str]:
    """Every statement of a text; the last needs no semicolon."""
    statements, rest = split_statements(text)
    return [*statements, rest] if rest else statements
