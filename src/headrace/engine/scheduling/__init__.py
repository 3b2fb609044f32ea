"""Whose turn it is, and what gives way when there is more to do than time."""
