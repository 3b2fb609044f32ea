"""Benchmarks of the engine: one command that prints every figure, beside the goal it has to meet.

    ./run bench                     everything, as a table; takes a few minutes
    ./run bench append read         some cases
    ./run bench --json --quick      small sizes: only shows that each case runs

Only `figures.py` knows the goals.  Each case is a module with one `run(directory, quick)`; it gets
a process of its own, so that none disturbs another, and a directory that is removed afterwards.
What was measured, and what explains it, is in docs/internals/performance.md.
"""
