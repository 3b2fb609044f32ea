"""Snapshots: all that an engine knows except its records, as verified files."""
