"""Campaigns: what the suite proves in minutes, gone on with for hours, by number and resumable.

`./run test --campaign NAME --hours H` runs one; `--campaign list` names all.  A campaign is a
sequence of numbered units, each decided by its number alone; `runner.py` hands them out, keeps what
came of them, and reports.
"""
