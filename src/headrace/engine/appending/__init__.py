"""Appending: what is admitted, numbered, logged and published, and each retry only once."""
