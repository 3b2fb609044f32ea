"""Every rule that a test cites is in docs/spec, and every rule of docs/spec is cited by a test.

A test cites an engine rule by its name (`test_b4_...`) or by the id in its docstring or a comment
(`B4`), and a section of a dialect's contract as `§4.1`.  The docstring of a file says whose
sections it means: `(native §4.1)`.
"""

from __future__ import annotations

import ast
import io
import re
import string
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.checkout import ROOT
from tests.support.source_facts import statements_of

SPEC = ROOT / "docs" / "spec"
TESTS = sorted((ROOT / "tests").rglob("*.py"))

# The name of each dialect's contract in citations, and the directory of its sections.
CONTRACTS = {name: SPEC / name for name in ("native", "durable_streams", "s2")}
DEFAULT = "native"

RULE = re.compile(r"^- <a id=\"(\w+)\"></a>\*\*([A-Z]\d+)\.\*\* \S", re.MULTILINE)
SECTION = re.compile(r"^#{2,3} <a id=\"([\w-]+)\"></a>§(\d+(?:\.\d+)?) \S", re.MULTILINE)
# A sentence of a section, with a letter behind its number.
SENTENCE = re.compile(r"^- <a id=\"([\w-]+)\"></a>\*\*§(\d+(?:\.\d+)?[a-z])\.\*\* \S", re.MULTILINE)
IN_A_NAME = re.compile(r"^test_([a-z]\d+)_")
IN_TEXT = re.compile(r"(?<![\w%`\"'./-])([A-Z]\d{1,2})(?![\w`\"'-])")
# Reading the tokens of a file takes ten times as long as this search.
COMMENT_WITH_A_RULE = re.compile(r"#.*(?:§|[A-Z]\d)")
# Sections of other documents have their name before them.
SECTION_IN_TEXT = re.compile(r"(?:(\w+) )?§(\d+(?:\.\d+)?[a-z]?)(?!\w)")
OUTSIDE = re.compile(
    r"(?:native-api|semantics|design|reliability|durable-streams)(?:\.md)? ?§"
    r"|\bspec/(?:native-api|semantics|spark|s2|durable-streams)\.md"
    r"|\[(?:TEST|GAP|CODE)\]"
)


@cache
def engine_rules() -> dict[str, Path]:
    """The file of each engine rule."""
    found: dict[str, Path] = {}
    for page in sorted((SPEC / "engine").glob("*.md")):
        for anchor, rule in RULE.findall(page.read_text(encoding="utf-8")):
            assert anchor == rule.lower(), f"{page.name}: {rule} has the anchor {anchor}"
            assert rule not in found, f"{rule} is in {page.name} and in {found[rule].name}"
            found[rule] = page
    return found


@cache
def sections(contract: str) -> frozenset[str]:
    """The numbers of the sections of a contract, and of the sentences in them: 4.1, 4.1b."""
    found: list[str] = []
    for page in sorted(CONTRACTS[contract].glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for anchor, number in SECTION.findall(text) + SENTENCE.findall(text):
            assert anchor == "s" + number.replace(".", "-"), f"{page.name}: {number}, {anchor}"
            found.append(number)
        bare = re.findall(r"^- (?!<a id=)", text, re.MULTILINE)
        assert not bare, f"{page.name}: {len(bare)} sentences have no id"
    assert len(found) == len(set(found)), f"{contract}: a number is given twice"
    return frozenset(found)


class Citations(NamedTuple):
    """What a file cites: its tests, and everything else that it says."""

    by_tests: frozenset[str]
    elsewhere: frozenset[str]


def prose_of(node: ast.AST) -> Iterator[str]:
    """The docstring of a function, and the words of the assertions inside it."""
    for inner in (node, *statements_of(node)):
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            yield ast.get_docstring(inner) or ""
        elif isinstance(inner, ast.Assert) and isinstance(inner.msg, ast.Constant):
            yield str(inner.msg.value)


def comments_of(text: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def citations_of(text: str) -> Citations:
    """What a file of tests cites, by its tests and in its comments and other docstrings."""
    tree = ast.parse(text)
    opening = ast.get_docstring(tree) or ""
    named = [word for word, _ in SECTION_IN_TEXT.findall(opening)]
    contract = next((word for word in named if word in CONTRACTS), DEFAULT)
    by_tests: set[str] = set()
    elsewhere = set(citations_in(opening, contract))
    for node in tree.body:
        name = getattr(node, "name", "")
        found = {rule for prose in prose_of(node) for rule in citations_in(prose, contract)}
        if name.startswith("test_"):
            match = IN_A_NAME.match(name)
            by_tests |= found | ({match[1].upper()} if match else set())
        else:
            elsewhere |= found
    if COMMENT_WITH_A_RULE.search(text):
        for comment in comments_of(text):
            elsewhere |= set(citations_in(comment, contract))
    return Citations(frozenset(by_tests), frozenset(elsewhere))


@cache
def letters() -> frozenset[str]:
    return frozenset(rule[0] for rule in engine_rules())


def citations_in(prose: str, contract: str) -> Iterator[str]:
    """Engine rules and sections of contracts; those of an RFC are not ours."""
    mine = re.sub(r"RFC \d+(?:,? ?§\d+(?:\.\d+)*)+", "", prose)
    yield from (rule for rule in IN_TEXT.findall(mine) if rule[0] in letters())
    for word, number in SECTION_IN_TEXT.findall(mine):
        yield f"{word if word in CONTRACTS else contract} §{number}"


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def cited() -> dict[str, Citations]:
    """What each file of the tests cites; a seeded bug cites the rule that it breaks."""
    found = {name_of(path): citations_of(path.read_text(encoding="utf-8")) for path in TESTS}
    for path in sorted((ROOT / "tests" / "mutants").glob("*.toml")):
        lines = path.read_text(encoding="utf-8").splitlines()
        broken = (line for line in lines if line.startswith("breaks = "))
        rules = frozenset(rule for line in broken for rule in citations_in(line, DEFAULT))
        found[name_of(path)] = Citations(frozenset(), rules)
    return found


def known() -> set[str]:
    every = set(engine_rules())
    for contract in CONTRACTS:
        every |= {f"{contract} §{number}" for number in sections(contract)}
    return every


def test_every_cited_rule_is_in_the_spec() -> None:
    missing = {name: set().union(*found) - known() for name, found in cited().items()}
    missing = {name: rules for name, rules in missing.items() if rules}
    assert not missing, f"cited, but not in docs/spec: {missing}"


def is_tested(rule: str, tested: set[str]) -> bool:
    """Whether a test cites the rule, the section that it is a sentence of, or a part of it."""
    section = rule.rstrip(string.ascii_lowercase)
    if rule in tested or section in tested:
        return True
    part = re.compile(re.escape(section) + r"(?:\.\d+)?[a-z]?")
    return "§" in rule and rule == section and any(part.fullmatch(one) for one in tested)


def test_every_rule_is_cited_by_a_test() -> None:
    tested = {rule for found in cited().values() for rule in found.by_tests}
    missing = sorted(rule for rule in known() if not is_tested(rule, tested))
    assert not missing, f"no test cites {missing}"


def test_every_rule_of_a_page_is_of_its_letter() -> None:
    letters: dict[Path, set[str]] = {}
    for rule, page in engine_rules().items():
        letters.setdefault(page, set()).add(rule[0])
    assert all(len(found) == 1 for found in letters.values()), letters
    assert len(letters) == len({next(iter(found)) for found in letters.values()})


def test_the_index_names_every_page() -> None:
    index = (SPEC / "README.md").read_text(encoding="utf-8")
    pages = (page.relative_to(SPEC).as_posix() for page in SPEC.rglob("*.md"))
    missing = [page for page in pages if f"({page})" not in index and page != "README.md"]
    assert not missing, missing


@pytest.mark.parametrize("place", ["src", "tests", "tools", "bench", "docs"])
def test_no_citation_leads_out_of_the_repository(place: str) -> None:
    found = []
    for path in sorted((ROOT / place).rglob("*")):
        if path.suffix in {".py", ".md", ".toml", ".js"} and path != Path(__file__).resolve():
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                if OUTSIDE.search(line):
                    found.append(f"{name_of(path)}:{number}: {line.strip()}")
    assert not found, "\n".join(found)


def test_citations_are_found() -> None:
    file = '"""Reads (native §4.1), RFC 9113 §8.2."""\n# B4\ndef test_a1_x():\n    """§5: J1."""\n'
    assert citations_of(file) == ({"native §5", "A1", "J1"}, {"native §4.1", "B4"})
    assert set(citations_in('"A1.b" %C3 SHA256 `B64` (H3)', "native")) == {"H3"}
    assert set(citations_in("§4.1b, §5.", "native")) == {"native §4.1b", "native §5"}


def test_a_part_stands_for_its_section_and_nothing_beyond() -> None:
    assert is_tested("native §4.1b", {"native §4.1"}) and is_tested("native §4", {"native §4.1b"})
    assert not is_tested("native §1", {"native §12"}) and not is_tested("A1", {"A10"})
    assert not is_tested("native §4.1b", {"native §4.1a"})
