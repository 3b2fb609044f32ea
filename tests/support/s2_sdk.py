"""The publisher's Python SDK for S2, installed when a test first asks for it.

It is pinned alone in requirements/s2_sdk.txt: it asks for an older protobuf than Spark's, and runs
with Spark's.  So it is installed without what it needs, once, into the virtual environment.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.support.checkout import ROOT
from tests.support.node_programs import SKIP_VARIABLE, held
from tests.support.servers import numbers

LISTED = ROOT / "requirements" / "s2_sdk.txt"
INSTALL_SECONDS_MAX = 120
# A story that takes longer hangs.
STORY_SECONDS_MAX = 90.0
Result = TypeVar("Result")


def load_sdk() -> Any:
    """The module `s2_sdk`; fails where it cannot be had."""
    if os.environ.get(SKIP_VARIABLE):
        pytest.skip(f"{SKIP_VARIABLE} is set")
    digest = hashlib.sha256(LISTED.read_bytes()).hexdigest()[:16]
    directory = Path(sys.prefix) / f"s2-sdk-{digest}"
    with held(Path(sys.prefix) / "s2-sdk.lock"):
        if not directory.exists():
            for old in directory.parent.glob("s2-sdk-*"):
                shutil.rmtree(old)
            _install(directory)
    if str(directory) not in sys.path:
        sys.path.append(str(directory))
    return importlib.import_module("s2_sdk")


def _install(directory: Path) -> None:
    begun = Path(tempfile.mkdtemp(prefix="s2-sdk.", dir=directory.parent))
    options = ["--require-hashes", "--no-deps", "--target", str(begun), "-r", str(LISTED)]
    uv = [str(Path(sys.executable).parent / "uv"), "pip", "install", "--quiet"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    said = ""
    try:
        # As in `./run`: often only one of the two is told of the index to use.
        for command in (uv, pip):
            done = subprocess.run(
                [*command, *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=INSTALL_SECONDS_MAX,
            )
            if done.returncode == 0:
                begun.rename(directory)
                return
            said += done.stdout[-1000:]
    finally:
        shutil.rmtree(begun, ignore_errors=True)
    pytest.fail(
        f"could not install {LISTED.name}; it needs an index of packages, or {SKIP_VARIABLE}=1 "
        f"leaves these tests out.  It said: {said}",
        pytrace=False,
    )


class Account:
    """One server as the SDK sees it: every story gets a client of its own."""

    def __init__(self, url: str, token: str = "any", **options: Any) -> None:
        self.sdk = load_sdk()
        self.url, self.token, self.options = url, token, options

    def tell(self, story: Callable[[Any], Awaitable[Result]]) -> Result:
        """What the story makes of a client for this server."""

        async def whole() -> Result:
            async with self.client() as client:
                return await asyncio.wait_for(story(client), STORY_SECONDS_MAX)

        return asyncio.run(whole())

    def client(self) -> Any:
        """A client that no story has opened yet."""
        endpoints = self.sdk.Endpoints(account=self.url, basin=self.url)
        return self.sdk.S2(self.token, endpoints=endpoints, **self.options)

    def tell_with_stream(
        self, story: Callable[[Any], Awaitable[Result]], basin: Any = None, stream: Any = None
    ) -> Result:
        """The same, of a new stream in a new basin, made with these configurations."""

        async def whole(client: Any) -> Result:
            name = new_basin_name()
            await client.create_basin(name, config=basin)
            await client.basin(name).create_stream("events", config=stream)
            return await story(client.basin(name).stream("events"))

        return self.tell(whole)


def new_basin_name() -> str:
    """A name that no other test of this run uses."""
    return f"interop-{next(numbers):08}"
