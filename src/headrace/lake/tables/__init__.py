"""The tables of a lake: layout, files, commits, gaps, and tasks that work on them."""
