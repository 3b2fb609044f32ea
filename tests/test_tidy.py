"""The rules of this code base that a program can check, each with what to do instead.

An exception is a line of `EXCEPTIONS` with its reason; one that is no longer needed fails as well.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from headrace.core import config
from tests.support.checkout import ROOT
from tests.support.source_facts import depth_of, facts_of, imports_of, texts_of, uses_of

PACKAGE = ROOT / "src" / "headrace"

MODULE_LINES_MAX = 500
MODULE_LINES_SOFT_MAX = 400  # of a module that is shipped; above it, a reason in EXCEPTIONS
FUNCTION_LINES_MAX = 70
NESTING_MAX = 4
LINE_COLUMNS_MAX = 100
DOCSTRING_WORDS_MIN = 5

# (rule, file, detail) -> the reason.
EXCEPTIONS: dict[tuple[str, str, str], str] = {
    ("randomness", "storage/fs.py", "os.urandom"): (
        "it stands for a boot id that the machine does not tell; no decision follows from its value"
    ),
    ("sockets", "core/thread_runtime.py", "select"): (
        "it asks the descriptor that its loop waits on whether there is news, and speaks to nobody"
    ),
    ("filesystem", "server/fan_out.py", "os.write"): (
        "its descriptors are those of sockets, whose transports write one at a time"
    ),
    ("module soft limit", "core/errors.py", ""): (
        "the list of all errors: one short class for each code, and nothing else defines any"
    ),
}

# What a layer may import beside itself.  Written out, so that a new arrow is a change to see here.
LAYERS = {
    "core": (),
    # The structs of requests, answers and events.
    "api": ("core",),
    "storage": ("core",),
    "engine": ("api", "core", "storage"),
    # Its worker uses client and spark; the part that a server imports, neither.
    "pipelines": ("api", "core", "storage", "engine", "client", "spark"),
    # Reads what it shows off the parts that do the work.
    "metrics": ("core", "storage", "engine", "pipelines"),
    "wire": ("api", "core", "metrics", "storage", "engine", "pipelines"),
    "server": ("core", "metrics", "storage", "engine", "wire"),
    "testing": ("core", "storage", "engine"),
    "client": ("api", "core"),
    "console": ("api", "client", "core", "wire"),
    "spark": ("api", "client", "core", "storage"),
    "lake": ("api", "client", "core", "spark", "storage"),
    "cli": (
        "api", "client", "console", "core", "lake", "metrics", "pipelines", "storage", "engine",
        "wire", "server", "spark",
    ),
}  # fmt: skip


class Seam(NamedTuple):
    """Calls that only `home` may make; `instead` is what the others use."""

    name: str
    home: tuple[str, ...]
    modules: tuple[str, ...]  # not imported elsewhere
    calls: tuple[str, ...]  # not named elsewhere, as module.attribute or a builtin
    instead: str


OS_FILE_FUNCTIONS = re.findall(
    r"[\w.]+",
    """
    access chmod close copy_file_range dup dup2 fallocate fchmod fdatasync fdopen fstat fsync
    ftruncate link listdir lseek lstat makedirs mkdir open openat pipe posix_fallocate pread preadv
    pwrite pwritev read readlink readv remove removedirs rename renames replace rmdir scandir
    sendfile stat statvfs symlink sync truncate unlink utime walk write writev
    path.exists path.getsize path.isdir path.isfile path.lexists path.getmtime
""",
)

SEAMS = (
    Seam(
        "filesystem",
        home=("storage/fs.py",),
        modules=("fcntl", "glob", "mmap", "pathlib", "shutil", "tempfile"),
        calls=("open", "io.open", "io.FileIO", *(f"os.{name}" for name in OS_FILE_FUNCTIONS)),
        instead="use a `Filesystem` of storage/fs.py",
    ),
    Seam(
        "clock",
        home=("core/clock.py",),
        modules=("sched", "time"),
        calls=tuple(
            f"{prefix}{name}"
            for prefix in ("", "datetime.")
            for name in ("datetime.now", "datetime.utcnow", "datetime.today", "date.today")
        ),
        instead="take a `Clock` of core/clock.py, or the time as an argument",
    ),
    Seam(
        "randomness",
        home=("core/clock.py",),
        modules=("random", "secrets", "uuid"),
        calls=("os.urandom", "os.getrandom"),
        instead="take a `Random` of core/clock.py",
    ),
    Seam(
        "sockets",
        home=("server/", "client/"),
        modules=("http", "select", "selectors", "socket", "socketserver", "ssl", "urllib.request"),
        calls=(),
        instead="only server/ and client/ speak to the network",
    ),
    Seam(
        "arrow files",
        home=("storage/files/object_store.py", "storage/files/tier.py"),
        modules=("pyarrow.fs",),
        calls=("pa.OSFile", "pa.memory_map", "pyarrow.OSFile", "pyarrow.memory_map"),
        instead="build in memory and write through storage/fs.py",
    ),
    Seam(
        "numpy",
        home=(),
        modules=("numpy", "pandas"),
        calls=(),
        instead="use array, struct or pyarrow: numpy is not in the server's import path",
    ),
)

SOURCES = sorted(PACKAGE.rglob("*.py"))
PROGRAMS = sorted(p for d in ("tests", "tools", "bench") for p in (ROOT / d).rglob("*.py"))


def name_of(path: Path) -> str:
    """As the rules and exceptions write it: relative to the package, or to the checkout."""
    base = PACKAGE if path.is_relative_to(PACKAGE) else ROOT
    return path.relative_to(base).as_posix()


def expect_none(rule: str, found: list[tuple[str, str, str]]) -> None:
    """Fail with every (file, detail, message) that has no exception, or with a stale exception."""
    seen = {(rule, file, detail) for file, detail, _ in found}
    stale = [key for key in EXCEPTIONS if key[0] == rule and key not in seen]
    left = [
        f"{file}: {text}" for file, detail, text in found if (rule, file, detail) not in EXCEPTIONS
    ]
    assert not left, "\n" + "\n".join(left)
    assert not stale, f"exceptions that are no longer needed: {stale}"


def layer_of_import(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "headrace" and len(parts) > 1 and parts[1] in LAYERS else None


def test_imports_go_one_way() -> None:
    found = []
    for path in SOURCES:
        name = name_of(path)
        layer = name.partition("/")[0] if "/" in name else None
        if layer is None:
            continue
        assert layer in LAYERS, f"{layer}/ is not a layer: add it to LAYERS"
        for line, module in facts_of(path).imports:
            target = layer_of_import(module)
            if target is not None and target != layer and target not in LAYERS[layer]:
                allowed = ", ".join(LAYERS[layer]) or "nothing"
                text = f"line {line}: {layer} imports {module}; it may import {allowed}"
                found.append((name, module, text))
    expect_none("import direction", found)


# A dialect is a package of wire/ with a module `dialect`; only the composition root names them.
DIALECTS = sorted(path.parent.name for path in (PACKAGE / "wire").glob("*/dialect.py"))
COMPOSITION_ROOT = "cli/compose.py"
DIALECT_PATH = re.compile(r"/v\d+\b")


def dialect_of(name: str) -> str | None:
    """The dialect that a module belongs to, by its file's or its dotted name."""
    parts = name.removeprefix("headrace.").replace("/", ".").split(".")
    return parts[1] if parts[0] == "wire" and len(parts) > 1 and parts[1] in DIALECTS else None


def breaks_of_dialects(
    name: str, imports: Iterable[tuple[int, str]], texts: Iterable[tuple[int, str]]
) -> Iterator[tuple[str, str, str]]:
    """Each import of a dialect from outside of it, and each path of one in what serves them all."""
    if name == COMPOSITION_ROOT:
        return
    own = dialect_of(name)
    for line, module in imports:
        used = dialect_of(module)
        if used is not None and used != own:
            text = f"line {line}: imports {module}; only {COMPOSITION_ROOT} and the dialect may"
            yield name, module, text
    if own is None and name.startswith(("server/", "metrics/", "wire/")):
        for line, value in texts:
            if DIALECT_PATH.match(value):
                yield name, value, f"line {line}: {value!r} is a dialect's path; ask the dialect"


def test_only_the_composition_root_knows_a_dialect() -> None:
    assert "native" in DIALECTS
    found = [
        item
        for path in SOURCES
        for item in breaks_of_dialects(name_of(path), facts_of(path).imports, facts_of(path).texts)
    ]
    expect_none("dialects", found)


def test_the_check_notices_a_dialect_where_it_must_not_be() -> None:
    tree = ast.parse(
        "from headrace.wire.native.vocabulary import TOPICS\n"
        "from headrace.wire import native, exchange\n"
        "PATH = '/v0/topics'\n"
        "MORE = [b'/v1/stream/', 'see /v0/topics', '/version']\n"
    )

    def breaks(name: str) -> list[str]:
        return [text for *_, text in breaks_of_dialects(name, imports_of(tree), texts_of(tree))]

    def lines(name: str) -> set[str]:
        return {text.partition(":")[0] for text in breaks(name)}

    everywhere = {"line 1", "line 2", "line 3", "line 4"}
    for name in ("server/app.py", "metrics/engine.py", "wire/sse.py", "wire/openapi/page.py"):
        assert lines(name) == everywhere, name
    assert lines("engine/engine.py") == {"line 1", "line 2"}
    assert lines("wire/native/append.py") == set()
    assert lines(COMPOSITION_ROOT) == set()
    assert [text for text in breaks("wire/sse.py") if "/version" in text] == []


def breaks_of_seam(seam: Seam, path: Path) -> Iterator[tuple[str, str, str]]:
    name = name_of(path)
    if any(name == home or (home.endswith("/") and name.startswith(home)) for home in seam.home):
        return
    seen = set()
    for line, module in facts_of(path).imports:
        root = next((m for m in seam.modules if module == m or module.startswith(m + ".")), None)
        if (root or module in seam.calls) and (line, root) not in seen:
            seen.add((line, root))
            yield name, root or module, f"line {line}: imports {module}; {seam.instead}"
    for line, use in facts_of(path).uses:
        if use in seam.calls:
            yield name, use, f"line {line}: {use}; {seam.instead}"


def test_tests_share_only_through_support_and_the_harness() -> None:
    found = [
        (name_of(path), name, f"{line}: imports {name}; move what it shares into tests/support/")
        for path in PROGRAMS
        for line, name in facts_of(path).imports
        if re.match(r"tests\.(.+\.)?(conftest|test_\w+)(\.|$)", name)
    ]
    expect_none("helpers", found)


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.name)
def test_seams(seam: Seam) -> None:
    # What is shipped for tests may stand in for the clock and the network, not for our own files.
    paths = [p for p in SOURCES if seam.name != "sockets" or "testing" not in p.parts]
    expect_none(seam.name, [item for path in paths for item in breaks_of_seam(seam, path)])


def test_modules_are_short() -> None:
    found = []
    for path in SOURCES + PROGRAMS:
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MODULE_LINES_MAX:
            text = f"{lines} lines, more than {MODULE_LINES_MAX}: split it by what it owns"
            found.append((name_of(path), "", text))
    expect_none("module length", found)


def test_modules_over_the_soft_limit_have_a_reason() -> None:
    found = []
    for path in SOURCES:
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MODULE_LINES_SOFT_MAX:
            text = f"{lines} lines, more than {MODULE_LINES_SOFT_MAX}: it may be two ideas"
            found.append((name_of(path), "", text))
    expect_none("module soft limit", found)


def test_functions_are_short() -> None:
    found = []
    for path in SOURCES + PROGRAMS:
        for name, lines, _ in facts_of(path).functions:
            if lines > FUNCTION_LINES_MAX:
                text = f"{name} has {lines} lines, more than {FUNCTION_LINES_MAX}: split it"
                found.append((name_of(path), name, text))
    expect_none("function length", found)


def test_blocks_are_shallow() -> None:
    found = []
    for path in SOURCES + PROGRAMS:
        for name, _, depth in facts_of(path).functions:
            if depth > NESTING_MAX:
                text = f"{name} nests {depth} blocks, more than {NESTING_MAX}: split it"
                found.append((name_of(path), name, text))
    expect_none("nesting", found)


def test_every_module_says_what_it_owns() -> None:
    found = []
    for path in SOURCES + PROGRAMS:
        first = facts_of(path).docstring.split("\n\n")[0]
        words = re.findall(r"[\w']+", first)
        name = name_of(path)
        if len(words) < DOCSTRING_WORDS_MIN or not first.rstrip().endswith((".", ":", "?")):
            found.append((name, "", "the docstring must open with a sentence of what it owns"))
    expect_none("docstring", found)


@cache
def text_files() -> list[tuple[str, str]]:
    """Every text file of the checkout that git would track, by name."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0:
        names = done.stdout.splitlines()
    else:
        roots = ("src", "tests", "docs", "tools", "bench", "requirements", ".ci")
        names = [str(p.relative_to(ROOT)) for d in roots for p in (ROOT / d).rglob("*")]
        names += ["run", "pyproject.toml", "README.md", "CHANGELOG.md"]
    found = []
    for name in names:
        path = ROOT / name
        if path.is_file() and "__pycache__" not in path.parts:
            try:
                found.append((name, path.read_text(encoding="utf-8")))
            except UnicodeDecodeError:
                pytest.fail(f"{name} is not UTF-8 text; make such data in the test that needs it")
    return found


# Spelt in two parts, so that this file does not break its own rule.
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
MACHINE = re.compile(
    r"(?<![\w.~$}/-])/(?:root|home|Users|work|opt)/\w"
    r"|https?://[\w.-]*(?:py" + r"pi|python" + r"hosted|artifactory|nexus|devpi)[\w.-]*"
)


def lines_matching(pattern: re.Pattern[str], text: str) -> Iterator[tuple[str, str, str]]:
    for name, content in text_files():
        # No pattern matches a line's end, so most files are done at once.
        lines = content.split("\n") if pattern.search(content) else ()
        for number, line in enumerate(lines, start=1):
            match = pattern.search(line)
            if match:
                yield name, match[0], f"line {number}: {match[0]!r}: {text}"


def test_nothing_is_left_for_later() -> None:
    text = "do it, or open an issue and say why in a whole sentence"
    expect_none("unfinished", list(lines_matching(UNFINISHED, text)))


def test_no_control_characters() -> None:
    expect_none("control characters", list(lines_matching(CONTROL, "write it as an escape")))


def test_no_machine_is_named() -> None:
    text = "a checkout must work anywhere; use a relative path or the tool's own configuration"
    expect_none("machine", list(lines_matching(MACHINE, text)))


def test_lines_are_short() -> None:
    found = []
    for name, content in text_files():
        if not name.endswith((".py", ".sh")) and name not in ("run", ".ci/run"):
            continue
        for number, line in enumerate(content.split("\n"), start=1):
            if len(line) > LINE_COLUMNS_MAX or line != line.rstrip():
                found.append((name, line.strip(), f"line {number}: too long, or spaces at its end"))
    expect_none("line length", found)


def test_every_variable_is_documented() -> None:
    """The reference page names each HEADRACE_ variable that the code reads, and no other."""
    page = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(HEADRACE_[A-Z0-9_]+[A-Z])`", page))
    known = {variable for name in config.RULES for variable in config.variables_of(name)}
    for path in SOURCES + PROGRAMS:
        if path.name.startswith("test_"):
            continue
        source = path.read_text(encoding="utf-8")
        if "HEADRACE_" not in source:
            continue
        for _, text in texts_of(ast.parse(source)):
            known |= {text} & set(re.findall(r"HEADRACE_[A-Z0-9_]+[A-Z]", text))
    assert named == known, (sorted(known - named), sorted(named - known))


def test_the_settings_page_is_what_the_settings_say() -> None:
    command = [sys.executable, str(ROOT / "tools" / "settings_page.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_checks_see_what_they_should() -> None:
    tree = ast.parse("import time\nfrom os import urandom\nopen('x')\nf = os.path.exists\n")
    assert {"time", "os", "os.urandom"} == {module for _, module in imports_of(tree)}
    assert {"open", "os.path.exists"} <= {use for _, use in uses_of(tree)}
    chain = ast.parse("if a:\n  pass\nelif b:\n  pass\nelif c:\n  for x in y:\n    pass\n")
    assert depth_of(chain) == 2
    assert layer_of_import("headrace.storage.fs") == "storage"
    assert MACHINE.search("see " + "/ho" + "me/someone/file")
    assert not MACHINE.search("docs/work/home/page")
    assert UNFINISHED.search("# TO" + "DO later")
    assert CONTROL.search("\x1b[0m")


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for name, content in text_files():
        if name.endswith(".md"):
            for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", content):
                if "://" not in target and not (ROOT / name).parent.joinpath(target).exists():
                    broken.append((name, target, f"the link to {target} leads nowhere"))
    expect_none("links", broken)


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = (path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))
    missing = [page for page in pages if f"({page})" not in index and page != "README.md"]
    assert not missing, f"docs/README.md does not link to {missing}"
