"""What the pages for contributors say of the code is true: pictures, the map, paths that they name.

A picture that is out of date is drawn again by its tool; the failure names the command.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from tests.support.checkout import ROOT


@cache
def tool(name: str) -> ModuleType:
    """A tool as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["architecture_picture", "append_picture", "package_map"])
def test_what_a_tool_writes_is_up_to_date(name: str) -> None:
    command = [sys.executable, str(ROOT / "tools" / f"{name}.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["architecture", "append"])
def test_a_picture_is_well_formed_and_described(name: str) -> None:
    picture = (ROOT / "docs" / "internals" / f"{name}.svg").read_text(encoding="utf-8")
    root = ElementTree.fromstring(picture)
    kinds = [child.tag.rpartition("}")[2] for child in root]
    assert kinds[:2] == ["title", "desc"] and all(child.text for child in root[:2])
    page = (ROOT / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8")
    assert f"({name}.svg)" in page


def has_function(module: str, name: str) -> bool:
    found: object = importlib.import_module(f"headrace.{module}")
    for part in name.split("."):
        found = getattr(found, part, None)
    return callable(found)


def test_every_function_on_the_way_of_an_append_exists() -> None:
    for step in tool("append_picture").STEPS:
        wrong = f"{step.module} has no {step.name}: see tools/append_picture.py"
        assert has_function(step.module, step.name), wrong


def test_every_function_that_the_architecture_page_names_exists() -> None:
    page = (ROOT / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .+ \| `([\w.]+)` \| `([\w/]+)\.py` \|$", page, re.MULTILINE)
    assert len(rows) >= 20
    for name, module in rows:
        assert has_function(module.replace("/", "."), name), f"{module}.py has no {name}"


def test_boxes_lie_below_what_imports_them() -> None:
    picture = tool("architecture_picture")
    graph = picture.imports()
    assert {"cli", "server", "wire", "engine", "storage", "core"} <= graph.keys()
    layers = picture.layers_of(graph)
    for box, names in graph.items():
        assert all(layers[name] < layers[box] for name in names)
    # What is left out follows from what is drawn.
    drawn = picture.without_shortcuts(graph)
    assert all(picture.reach(box, drawn) == picture.reach(box, graph) for box in graph)


def test_boxes_do_not_touch() -> None:
    picture = tool("architecture_picture")
    graph = picture.imports()
    layers = picture.layers_of(graph)
    boxes = [picture.Spot(box, layer, True) for box, layer in layers.items()]
    at = picture.places(picture.routes_of(picture.without_shortcuts(graph), layers), boxes)
    for one in at:
        assert at[one] - picture.width_of(one) / 2 >= picture.MARGIN, one
        assert at[one] + picture.width_of(one) / 2 <= picture.WIDTH - picture.MARGIN, one
        for other in at:
            if one < other and one.layer == other.layer:
                apart = (picture.width_of(one) + picture.width_of(other)) / 2
                assert abs(at[one] - at[other]) >= apart, (one, other)


def test_every_module_is_on_the_map() -> None:
    page = (ROOT / "docs" / "internals" / "map.md").read_text(encoding="utf-8")
    for path in (ROOT / "src" / "headrace").rglob("*.py"):
        if path.name != "__init__.py":
            assert f"(../../{path.relative_to(ROOT).as_posix()})" in page, path


GUIDES = (
    "CONTRIBUTING.md", "docs/internals/architecture.md", "docs/internals/engine.md",
    "docs/spec/README.md",
)  # fmt: skip
# A path is relative to the checkout, to the package, or to the page itself.
NAMED_PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*|[\w-]+\.py)`")
NAMED_MODULE = re.compile(r"`((?:[\w-]+/)*[a-z_0-9]+\.py)`")
# Files that the pages show and a program writes.
WRITTEN = {"transformations/sources.py", "transformations/sinks.py"}
# The map repeats docstrings, which name modules beside them.
PAGES = [
    page
    for page in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    )
    if page.name != "map.md"
]


def exists(path: str, page: Path) -> bool:
    bases = (ROOT, ROOT / "src" / "headrace", page.parent)
    return any((base / path).exists() for base in bases)


@pytest.mark.parametrize("name", GUIDES)
def test_every_path_of_a_guide_exists(name: str) -> None:
    page = ROOT / name
    named = set(NAMED_PATH.findall(page.read_text(encoding="utf-8")))
    missing = sorted(path for path in named if not exists(path, page))
    assert len(named) >= 1 and not missing, missing


def test_every_module_that_a_page_names_exists() -> None:
    """By its path, or by the end of a path that only one file has."""
    places = ("src", "tests", "tools", "bench")
    files = [path.as_posix() for place in places for path in (ROOT / place).rglob("*.py")]
    missing = []
    for page in PAGES:
        for path in set(NAMED_MODULE.findall(page.read_text(encoding="utf-8"))) - WRITTEN:
            ends = sum(name.endswith(f"/{path}") for name in files)
            if ends != 1 and not exists(path, page):
                missing.append(f"{page.relative_to(ROOT)}: {path}")
    assert not missing, missing


@pytest.mark.parametrize("package", ["spark", "lake", "pipelines", "engine"])
def test_the_page_of_a_package_names_its_parts(package: str) -> None:
    """Each sub-package has a row of its table; modules are on the map."""
    page = (ROOT / "docs" / "internals" / f"{package}.md").read_text(encoding="utf-8")
    named = set(re.findall(rf"^\| `{package}/([a-z_]+)/` \|", page, re.MULTILINE))
    directory = ROOT / "src" / "headrace" / package
    assert named == {path.parent.name for path in directory.glob("*/__init__.py")}


# Their words come from the code, where they are checked by reading.
FROM_THE_CODE = {"map.md", "metrics.md", "spark-options.md"}
UNIDIOMATIC = re.compile(r"\b(?:whoever|whomever|anew|of then|of now|so many)\b", re.IGNORECASE)


def test_the_pages_are_written_in_plain_words() -> None:
    """Signs of a sentence that has to be read twice; examples show what a program prints."""
    found = []
    for page in (*PAGES, ROOT / "CHANGELOG.md"):
        prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        if page.name not in FROM_THE_CODE:
            found += [f"{page.relative_to(ROOT)}: {word}" for word in UNIDIOMATIC.findall(prose)]
    assert not found, found


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page: those that are written, and one for each heading, as GitHub does."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    found = set(re.findall(r'<a id="([^"]+)">', text))
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|<[^>]+>", r"\1", heading)
        found.add(re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-"))
    return found


def test_links_into_pages_lead_to_an_anchor() -> None:
    assert "b4" in anchors_of(ROOT / "docs" / "spec" / "engine" / "floors.md")
    assert "durability-classes" in anchors_of(ROOT / "docs" / "concepts" / "model.md")
    missing = []
    for page in (*PAGES, ROOT / "CHANGELOG.md"):
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for path, anchor in re.findall(r"\]\(([^)#\s:]*\.md)?#([^)\s]+)\)", text):
            target = (page.parent / path).resolve() if path else page
            if anchor not in anchors_of(target):
                missing.append(f"{page.relative_to(ROOT)}: {path}#{anchor}")
    assert not missing, missing
