"""Verifying files that nobody reads: a step at a time, with a memory of it, and fetched again."""
