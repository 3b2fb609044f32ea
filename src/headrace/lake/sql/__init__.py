"""Topics of a lake as tables of SQL: rows of the past without what was deleted since."""
