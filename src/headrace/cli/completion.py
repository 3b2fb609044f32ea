"""`headrace completion`: what a shell has to know to complete commands and flags.

The script is made from the parser, so it names every verb and every flag that there is.
"""

from __future__ import annotations

import argparse

from headrace.cli.options import Verb, print_json

SHELLS = ("bash", "zsh", "fish")
HINTS = {
    "bash": "headrace completion bash > ~/.local/share/bash-completion/completions/headrace",
    "zsh": "headrace completion zsh > ~/.zfunc/_headrace   # with fpath+=~/.zfunc before compinit",
    "fish": "headrace completion fish > ~/.config/fish/completions/headrace.fish",
}


def words_after(parser: argparse.ArgumentParser, path: str = "") -> dict[str, list[str]]:
    """For each command that may be half typed, what may come next: commands, or flags."""
    found: dict[str, list[str]] = {}
    below: dict[str, argparse.ArgumentParser] = {}
    flags: list[str] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = dict(action.choices)
        elif action.help != argparse.SUPPRESS:
            flags += [flag for flag in action.option_strings if flag.startswith("--")]
    found[path] = [*below, *sorted(flags)]
    for name, one in below.items():
        found |= words_after(one, f"{path} {name}".strip())
    return found


def script(shell: str, words: dict[str, list[str]]) -> str:
    """The completion script of a shell."""
    if shell == "fish":
        return _fish(words)
    cases = "\n".join(
        f'    "{path}") words="{" ".join(after)}" ;;' for path, after in words.items()
    )
    body = f"""_headrace() {{
  local path="" word words
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case $word in -*) ;; *) path="${{path:+$path }}$word" ;; esac
  done
  while :; do
    case $path in
{cases}
    *) case $path in *" "*) path=${{path% *}}; continue ;; esac; path=""; continue ;;
    esac
    break
  done
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -F _headrace headrace
"""
    if shell == "zsh":
        return "#compdef headrace\nautoload -U +X bashcompinit && bashcompinit\n" + body
    return body


def _fish(words: dict[str, list[str]]) -> str:
    lines = []
    for path, following in words.items():
        seen = " ".join(path.split())
        condition = (
            f"__fish_seen_subcommand_from {path.split()[-1]}" if seen else "__fish_use_subcommand"
        )
        for word in following:
            what = f"-l {word[2:]}" if word.startswith("--") else f"-a {word}"
            lines.append(f"complete -c headrace -f -n '{condition}' {what}")
    return "\n".join(lines) + "\n"


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS)
    parser.epilog = "; ".join(HINTS.values())


def _run(options: argparse.Namespace) -> int:
    from headrace.cli.main import build_parser

    text = script(options.shell, words_after(build_parser()))
    if options.json:
        print_json({"shell": options.shell, "script": text})
    else:
        print(text, end="")
    return 0


VERBS = (Verb(("completion",), "print the completion of a shell", _arguments, _run),)
