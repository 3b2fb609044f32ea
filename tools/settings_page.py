"""Write docs/reference/settings.md from the settings themselves.

python tools/settings_page.py            rewrite the page
python tools/settings_page.py --check    fail when the page is not what would be written
"""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.core import config
from headrace.core.settings import DEFAULTS, RULES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "settings.md"

HEAD = """\
# Settings

A flag (`--port 5000`) beats a variable (`HEADRACE_PORT=5000`), which beats a line of the TOML file
named by `--config` (`port = 5000`), which beats the default. Names are flat. Sizes accept `64MiB`,
`1GB` or a number of bytes; durations accept `50ms`, `30s`, `10m`, `1h`, `7d` or a number of
milliseconds. A name that is not here, a value that does not parse, and two settings that contradict
each other refuse to start, naming what was written. `headrace config show --origin` prints the
value of each and where it came from.

| setting | variable | default | meaning |
|---|---|---|---|
"""

CLIENT_HEAD = """
Programs that call a server read these; the server itself does not:

| variable | meaning |
|---|---|
"""

TAIL = """
Only the tests read these:

| variable | meaning |
|---|---|
| `HEADRACE_TEST_MINUTES` | what the long sweeps may spend together |
| `HEADRACE_TEST_SEED` | where their randomness starts; by default the commit's hash |
| `HEADRACE_TEST_CAMPAIGNS` | where campaigns keep their records; `.campaigns` by default |
| `HEADRACE_TEST_BASE` | the commit that `./run test --mutants --changed` compares with |
| `HEADRACE_TEST_TIMES` | the directory that `./run test --times` collects measurements in |
| `HEADRACE_TEST_TURNS` | how servers of tests handle a turn: `split` or `forced` |
| `HEADRACE_TEST_MIN_HEARTBEAT_MS` | lowers the floor of `heartbeat_ms`, at most 1000 |
| `HEADRACE_TEST_WITHOUT_NPM` | leaves out the tests that need packages of npm |
| `HEADRACE_TEST_BENCH_QUICK` | set for the processes of `./run bench --quick` |

This page is written by `python tools/settings_page.py`.
"""


def page() -> str:
    rows = []
    for name, rule in RULES.items():
        variables = " or ".join(f"`{variable}`" for variable in config.variables_of(name))
        default = config.show_value(name, DEFAULTS[name])
        shown = f"`{default}`" if default else "(empty)"
        choices = f" One of {', '.join(rule.choices)}." if rule.choices else ""
        rows.append(f"| `{name}` | {variables} | {shown} | {rule.doc}{choices} |\n")
    clients = [f"| `{name}` | {doc} |\n" for name, doc in config.CLIENT_VARIABLES.items()]
    return HEAD + "".join(rows) + CLIENT_HEAD + "".join(clients) + TAIL


if __name__ == "__main__":
    # Beside this file, where Python looks first when it runs it.
    from pages import main

    sys.exit(main(PAGE, page(), __file__))
