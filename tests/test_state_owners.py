"""Who may change the engine's state, checked by a program: its own methods, and nothing else.

The layers above the engine use `Engine` (`engine/engine.py`) and never its shared state.  Inside
the engine every package may read the attributes of a topic and of the shared state; an attribute is
assigned, and its container changed, only through `self` in the module of its class.

A program sees no types, so it goes by names: an attribute that only one of these classes has is
theirs whatever the object is called, one that other classes have too is theirs when the object is
called as they usually are (`topic.head`, `router.dest.bytes`, `self._state.ready`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "headrace"
BELOW_THE_ENGINE = ("core/", "storage/")  # which cannot know it
SOURCES = sorted(PACKAGE.rglob("*.py"))

# Methods of built-in and bitmap containers that change them.
CHANGING = frozenset(
    re.findall(
        r"\w+",
        """
        add add_range append appendleft clear discard extend insert pop popitem popleft remove
        remove_range reverse setdefault sort update
        """,
    )
)


class Owned(NamedTuple):
    """Classes whose attributes change in their modules alone, and what their objects are called."""

    classes: dict[str, str]  # class -> module
    called: frozenset[str]
    helpers: frozenset[str] = frozenset()  # modules that may change it as well


TOPIC = Owned(
    {
        "LiveSeqs": "engine/topics/live_seqs.py",
        "ForkedSeqs": "engine/topics/forks.py",
        "StoredBlocks": "engine/topics/stored_blocks.py",
        "ArchivedSeqs": "engine/topics/archived_seqs.py",
        "StreamedTopic": "engine/topics/streamed_topic.py",
        "Topic": "engine/topics/topic.py",
    },
    frozenset({"topic", "_topic", "dest", "_dest", "source", "_source"}),
)
OWNED = (
    TOPIC,
    Owned({"Reservation": "engine/topics/reservation.py"}, frozenset({"reservation"})),
    # Each topic keeps the sums over all topics in step with itself.
    Owned(
        {"Totals": "engine/topics/totals.py"},
        frozenset({"totals", "_totals"}),
        helpers=frozenset(TOPIC.classes.values()),
    ),
    Owned({"TopicDirectory": "engine/topics/directory.py"}, frozenset({"topics"})),
    Owned({"EngineState": "engine/state.py"}, frozenset({"state", "_state"})),
)


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


class Facts(NamedTuple):
    """What one file holds; its tree is not kept."""

    reaches: list[tuple[int, str]]
    attributes: dict[str, set[str]]  # by class
    changes: list[Change]


@cache
def facts_of(path: Path) -> Facts:
    tree = tree_of(path)
    nodes = list(ast.walk(tree))
    return Facts(
        list(reaches_into_the_engine(nodes)),
        {node.name: attributes_of(node) for node in nodes if isinstance(node, ast.ClassDef)},
        [change for node in nodes for change in changes_by(node)],
    )


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


# The engine's facade


def reaches_into_the_engine(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Each use of `engine.state`, of a private part of an engine, and each import of the state."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "headrace.engine.state":
            yield node.lineno, "imports headrace.engine.state"
        elif isinstance(node, ast.Attribute) and last_word(node.value) in ("engine", "_engine"):
            private = node.attr.startswith("_") and not node.attr.startswith("__")
            if private or node.attr == "state":
                yield node.lineno, f"uses engine.{node.attr}"


def test_only_the_engine_knows_its_state() -> None:
    found = [
        f"{name_of(path)}: line {line}: {what}; use a method of Engine, or add one"
        for path in SOURCES
        if not name_of(path).startswith("engine/")
        for line, what in facts_of(path).reaches
    ]
    assert not found, "\n" + "\n".join(found)


def test_the_check_notices_a_reach_into_the_engine() -> None:
    tree = ast.parse(
        "from headrace.engine.state import EngineState\n"
        "topic = self.hub.engine.state.find('a')\n"
        "engine._appender.append('a', batch)\n"
        "engine.figures.topics\n"
    )
    assert [line for line, _ in reaches_into_the_engine(ast.walk(tree))] == [1, 2, 3]


# Attributes and their owners


def last_word(node: ast.expr) -> str:
    """What an object is called last: `topic` of `self.router.topic`."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def attributes_of(node: ast.ClassDef) -> set[str]:
    """The attributes that a class gives its objects: slots, annotations, what it sets on `self`."""
    found: set[str] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            if last_word(inner.value) == "self":
                found.add(inner.attr)
        elif isinstance(inner, ast.Assign) and last_word(inner.targets[0]) == "__slots__":
            found |= {str(s.value) for s in ast.walk(inner.value) if isinstance(s, ast.Constant)}
        elif isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
            found.add(inner.target.id)
    return found


@cache
def attributes_by_class() -> dict[str, set[str]]:
    """The attributes of every class of the package, under `module:Class`."""
    return {
        f"{name_of(path)}:{name}": attributes
        for path in SOURCES
        for name, attributes in facts_of(path).attributes.items()
    }


@cache
def parts_by_class() -> dict[str, set[str]]:
    """By class: attributes that are objects of our own classes, which change by their methods."""
    ours = {key.partition(":")[2] for key in attributes_by_class()}
    found: dict[str, set[str]] = {}
    for owned in OWNED:
        for name, module in owned.classes.items():
            for node in ast.walk(tree_of(PACKAGE / module)):
                if isinstance(node, ast.ClassDef) and node.name == name:
                    found[f"{module}:{name}"] = set(parts_of(node, ours))
    return found


def parts_of(node: ast.ClassDef, classes: set[str]) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Assign) and isinstance(inner.value, ast.Call):
            target = inner.targets[0]
            if isinstance(target, ast.Attribute) and last_word(inner.value.func) in classes:
                yield target.attr


def keys_of(owned: Owned) -> set[str]:
    return {f"{module}:{name}" for name, module in owned.classes.items()}


def attributes_owned(owned: Owned) -> tuple[set[str], set[str]]:
    """All attributes of these classes, and those that no other class has."""
    by_class, mine = attributes_by_class(), keys_of(owned)
    all_of_them: set[str] = set().union(*(by_class[key] for key in mine))
    others: set[str] = set().union(*(by_class[key] for key in by_class if key not in mine))
    return all_of_them, all_of_them - others


WITH_A_TARGET = (
    ast.AugAssign, ast.AnnAssign, ast.For, ast.AsyncFor, ast.NamedExpr, ast.comprehension,
)  # fmt: skip


class Change(NamedTuple):
    """An attribute that is assigned or deleted, or whose value a method changes."""

    line: int
    target: ast.Attribute
    by_method: bool


def changes_by(node: ast.AST) -> Iterator[Change]:
    """What a statement or a call assigns, deletes or changes."""
    targets: list[ast.expr] = []
    by_method = False
    if isinstance(node, ast.Assign | ast.Delete):
        targets = list(node.targets)
    elif isinstance(node, WITH_A_TARGET):
        targets = [node.target]
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        targets = [node.optional_vars]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in CHANGING:
            targets, by_method = [node.func.value], True
    elif isinstance(node, ast.Call) and last_word(node.func) in ("setattr", "delattr"):
        literal = node.args[1]
        name = literal.value if isinstance(literal, ast.Constant) else "?"
        targets = [ast.Attribute(node.args[0], str(name), ast.Store(), lineno=node.lineno)]
    while targets:
        target = targets.pop()
        if isinstance(target, ast.Tuple | ast.List):
            targets.extend(target.elts)
        elif isinstance(target, ast.Starred | ast.Subscript):
            targets.append(target.value)
        elif isinstance(target, ast.Attribute):
            yield Change(target.lineno, target, by_method)


def foreign_changes(
    owned: Owned, module: str, changes: Iterable[Change]
) -> Iterator[tuple[int, str]]:
    """Each change of an attribute of these classes that is not their own."""
    everything, only_here = attributes_owned(owned)
    parts: set[str] = set().union(*(parts_by_class()[key] for key in keys_of(owned)))
    at_home = module in owned.classes.values()
    for line, target, by_method in changes:
        name, called = target.attr, last_word(target.value)
        if name not in everything or (by_method and name in parts):
            continue
        if called == "self" or (at_home and isinstance(target.value, ast.Name)):
            continue  # of its own class, or of one that a class method makes
        if called in owned.called and module in owned.helpers:
            continue
        if called in owned.called or name in only_here:
            yield line, f"changes {called}.{name}"


@pytest.mark.parametrize("owned", OWNED, ids=lambda owned: "-".join(owned.classes))
def test_state_changes_only_through_its_own_methods(owned: Owned) -> None:
    found = [
        f"{name_of(path)}: line {line}: {what}; call a method of {', '.join(owned.classes)}"
        for path in SOURCES
        if not name_of(path).startswith(BELOW_THE_ENGINE)
        for line, what in foreign_changes(owned, name_of(path), facts_of(path).changes)
    ]
    assert not found, "\n" + "\n".join(found)


def changes_of(text: str) -> list[Change]:
    return [change for node in ast.walk(ast.parse(text)) for change in changes_by(node)]


SEEDED = """
topic.head = 5
router.dest.bytes += 1
self.topic.gaps.append((1, 2))
a, (copy.logged_to, b) = 1, (2, 3)
topic.producers["p"] = accepted
anything.sealing_to = 1
setattr(topic, "head", 5)
del topic.waiters[:]
self._state.ready = True
state.totals.changed[topic.id] = topic
topic.reservation.valid_to = 9
state.topics.by_name["a"] = topic
state.catalog.add(segment)
page.head = 5
router.live = False
topic.publish(block, True, False, 0, 0)
self.head = 5
"""


@pytest.mark.parametrize(
    ("owned", "lines"),
    [*zip(OWNED, ([2, 3, 4, 5, 6, 7, 8, 9], [12], [11], [13], [10]), strict=True)],
    ids=lambda value: "-".join(value.classes) if isinstance(value, Owned) else "",
)
def test_the_check_notices_a_change_by_others(owned: Owned, lines: list[int]) -> None:
    seeded = changes_of(SEEDED)
    found = [line for line, _ in foreign_changes(owned, "engine/elsewhere.py", seeded)]
    assert sorted(found) == lines


def test_a_module_may_not_change_what_another_owns() -> None:
    seeded = changes_of("state.ready = True\ntopic.totals.bytes += 1\nself.totals.bytes += 1\n")
    state, totals = OWNED[4], OWNED[2]
    assert len(list(foreign_changes(state, "engine/topics/topic.py", seeded))) == 1
    assert not list(foreign_changes(totals, "engine/topics/topic.py", seeded))
    assert len(list(foreign_changes(totals, "engine/removal/retention.py", seeded))) == 2
