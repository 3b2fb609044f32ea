"""Benchmarks of the engine and of the server: every figure, beside the goal it has to meet.

    ./run bench                     everything, as a table; takes about half an hour
    ./run bench append http_sse     some cases
    ./run bench spark_scan          one of Spark's; the first installs Spark
    ./run bench --json --quick      small sizes: only shows that each case runs
    ./run bench --peers             Redis, NATS, Durable Streams beside ours: a table of ratios
    ./run bench --peers http_queue  only those that do the work of a queue

Only `figures.py` and the files named `figures_*.py` know the goals.  Cases whose name starts with
`http_` start a server and send requests from other processes (`load.py`, `streams.py`, `jobs.py`),
those with `spark_` a server and a Spark session (`spark_data.py`, `spark_run.py`).  Each case is a
module with one `run(directory, quick)`; it gets a process of its own, so that none disturbs
another, and a directory that is removed afterwards.  What was measured is in
docs/internals/performance.md.
"""
