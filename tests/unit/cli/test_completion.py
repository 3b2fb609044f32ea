"""`headrace` alone, `cheat` and `completion`: what names every command."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from headrace.cli.cheat import SHEETS
from headrace.cli.completion import SHELLS, words_after
from headrace.cli.main import VERBS, build_parser, main


def test_alone_it_shows_every_command_by_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert "topics and records:" in shown and "queues and routers:" in shown
    for verb in VERBS:
        line = next(line for line in shown.splitlines() if line.split()[:1] == [verb.words[0]])
        assert len(verb.words) == 1 or verb.words[-1] in line


@pytest.mark.parametrize("line", [line for text in SHEETS.values() for line in text.splitlines()])
def test_each_line_of_the_cheat_sheets_is_a_command(line: str) -> None:
    import shlex

    command = line.partition("  ")[0].partition(" | ")[0].partition(" < ")[0]
    program, *words = shlex.split(command)
    assert program == "headrace"
    assert build_parser().parse_args(words).run


def test_completion_knows_commands_and_flags(capsys: pytest.CaptureFixture[str]) -> None:
    words = words_after(build_parser())
    assert {"ls", "create", "show", "config", "rm"} <= set(words["topic"])
    assert {"--json", "--url", "--last"} <= set(words["read"])
    for shell in SHELLS:
        assert main(["completion", shell, "--json"]) == 0
        assert "peek" in json.loads(capsys.readouterr().out)["script"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not there")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["to"], {"topic"}),
        (["topic", "c"], {"create", "config"}),
        (["queue", "claim", "mails", "--le"], {"--lease"}),
        (["read", "--url", "http://x", "--la"], {"--last"}),
    ],
)
def test_bash_completes(
    typed: list[str], offered: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["completion", "bash"])
    words = " ".join(f"'{word}'" for word in ["headrace", *typed])
    program = capsys.readouterr().out + (
        f"COMP_WORDS=({words}); COMP_CWORD={len(typed)}; _headrace; echo ${{COMPREPLY[@]}}"
    )
    done = subprocess.run(["bash", "-c", program], check=True, capture_output=True, text=True)
    assert set(done.stdout.split()) == offered
