"""How the servers of a run of tests handle the requests of a turn, by `HEADRACE_TEST_TURNS`.

`split`: each by itself, as `turn_requests_max = 1` has it.  `forced`: whatever may be handled with
others is, and waits for them (`forced_turns.py`).  Neither changes what a client sees, so every
test of the wire has to pass in both.
"""

from __future__ import annotations

import os

from headrace.core.config import variables_of

VARIABLE = "HEADRACE_TEST_TURNS"
SPLIT, FORCED = "split", "forced"
MODES = (SPLIT, FORCED)


def obey(mode: str) -> None:
    """Have the servers that this process starts from now on handle turns that way."""
    if mode == SPLIT:
        # Not where a test says how many it wants.
        os.environ.setdefault(variables_of("turn_requests_max")[0], "1")
    elif mode == FORCED:
        from tests.support.forced_turns import force  # imports a whole server

        force()
    else:
        assert not mode, f"{VARIABLE}={mode} is neither {' nor '.join(MODES)}"
