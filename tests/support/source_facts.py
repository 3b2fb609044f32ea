"""What the rules of this code base ask of a Python file, read once for each file.

Only these facts are kept.  The trees of all files together take a gigabyte, which every collection
of garbage in the same process would walk through.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.support.checkout import SOURCES


class Function(NamedTuple):
    """A function, its length, and how deep its blocks nest."""

    name: str
    lines: int
    depth: int


class Facts(NamedTuple):
    """What one file holds; uses and texts only of what is shipped."""

    docstring: str
    imports: list[tuple[int, str]]
    functions: list[Function]
    uses: list[tuple[int, str]]
    texts: list[tuple[int, str]]


@cache
def facts_of(path: Path) -> Facts:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    is_shipped = path.is_relative_to(SOURCES)
    return Facts(
        docstring=ast.get_docstring(tree) or "",
        imports=list(imports_of(tree)),
        functions=[
            Function(node.name, (node.end_lineno or node.lineno) - node.lineno + 1, depth_of(node))
            for node in statements_of(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ],
        uses=list(uses_of(tree)) if is_shipped else [],
        texts=list(texts_of(tree)) if is_shipped else [],
    )


def statements_in(node: ast.AST) -> Iterator[ast.AST]:
    """What stands directly inside a statement: statements, and the cases and handlers of them."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        yield from getattr(node, field, ())


def statements_of(node: ast.AST) -> Iterator[ast.AST]:
    """Every statement below this one.  Expressions hold none, and are most of a tree."""
    for inner in statements_in(node):
        yield inner
        yield from statements_of(inner)


def imports_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Each imported module, wherever in the file; `from a import b` gives both a and a.b."""
    for node in statements_of(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.lineno, node.module or ""
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else None
    return None


def uses_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Each call of a plain name, and each dotted name, called or passed on."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.lineno, node.func.id
        elif isinstance(node, ast.Attribute):
            name = dotted(node)
            if name is not None:
                yield node.lineno, name


def texts_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Each literal text, and each literal of bytes as text."""
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, bytes):
            value = value.decode("latin-1")
        if isinstance(value, str):
            assert isinstance(node, ast.Constant)
            yield node.lineno, value


BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)


def depth_of(node: ast.AST, depth: int = 0) -> int:
    """Blocks inside blocks; an `elif` is beside its `if`, and an inner function starts again."""
    deepest = depth
    for child in statements_in(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and child in node.orelse
        inner = depth + (isinstance(child, BLOCKS) and not is_elif)
        deepest = max(deepest, depth_of(child, inner))
    return deepest
