"""Public names: the package, its type hints and the reference pages say the same."""

from __future__ import annotations

import ast
import doctest
import re
import subprocess
import sys

import pytest

import headrace
from headrace.core import errors
from tests.support.checkout import ROOT

REFERENCE = ROOT / "docs" / "reference"


def headings(page: str, level: int) -> list[str]:
    text = (REFERENCE / page).read_text(encoding="utf-8")
    return re.findall(rf"^{'#' * level} `(\w+)`$", text, re.MULTILINE)


def test_the_reference_page_has_a_section_for_each_public_name_and_no_other() -> None:
    assert sorted(headings("api.md", 3)) == sorted(headrace.__all__)


def test_every_public_name_can_be_imported_and_says_what_it_is() -> None:
    for name in headrace.__all__:
        value = getattr(headrace, name)
        assert value.__name__ == name
        assert value.__doc__ and len(value.__doc__.split()) > 3, name
        assert value.__module__.startswith("headrace.")


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="headrace"):
        _ = headrace.nothing  # type: ignore[attr-defined]


def test_type_checkers_see_the_same_names() -> None:
    """Names that are loaded late are also imported where only a type checker looks."""
    tree = ast.parse((ROOT / "src" / "headrace" / "__init__.py").read_text(encoding="utf-8"))
    seen = {
        alias.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headrace.")
        for alias in node.names
    }
    assert seen == set(headrace.__all__)


def test_the_package_is_light_until_it_is_used() -> None:
    """`import headrace` does not wait for Arrow."""
    program = "import sys, headrace; print('pyarrow' in sys.modules); headrace.Engine"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("False", 0), done.stderr


def test_the_examples_of_the_reference_page_are_true() -> None:
    result = doctest.testfile(
        str(REFERENCE / "api.md"), module_relative=False, encoding="utf-8", report=True
    )
    assert result.attempted > 30
    assert result.failed == 0


def test_links_within_the_reference_pages_lead_somewhere() -> None:
    text = (REFERENCE / "api.md").read_text(encoding="utf-8")
    anchors = {name.lower() for name in headings("api.md", 3)}
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in anchors, target
        else:
            assert (REFERENCE / target).exists(), target


def test_every_error_has_its_section() -> None:
    classes = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type)
        and issubclass(kind, errors.HeadraceError)
        and kind not in (errors.HeadraceError, errors.ClientError, errors.ServerError)
    ]
    assert sorted(headings("errors.md", 3)) == sorted({kind.code for kind in classes})
    text = (REFERENCE / "errors.md").read_text(encoding="utf-8")
    for kind in classes:
        section = re.search(rf"### `{kind.code}`\n`{kind.__name__}`, (\d+)([^.]*)\.", text)
        assert section, kind.__name__
        assert int(section[1]) == kind.status
        assert ("retryable" in section[2]) == kind.retryable
