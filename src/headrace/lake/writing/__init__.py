"""Writing a lake: sync, compaction, vacuum, verification, and telling the server about it."""
